"""Blocks that raise an error of their own for one that came."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar, cast

from typing_extensions import override

P = ParamSpec("P")
T = TypeVar("T")


class _Translation(AbstractContextManager[T]):
    """What `translating` makes of one call of a generator."""

    def __init__(self, steps: Iterator[T]) -> None:
        self._steps = cast(Generator[T, None, None], steps)

    @override
    def __enter__(self) -> T:
        return next(self._steps)

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            if error is None:
                next(self._steps)
            else:
                self._steps.throw(error)
        except StopIteration:
            return error is not None
        except BaseException as raised:
            if raised is error:
                raised.__traceback__ = trace
                return False
            raise
        finally:
            del error, trace  # the error knows the generator's frame, which knows this one
        raise RuntimeError("a block must yield once")


def translating(make: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Make blocks of a generator, as `contextlib.contextmanager` does, for one that replaces the errors that come.

    From Python 3.12 on, a frame that an error ends keeps the frame that called it, and that of `contextmanager` keeps
    the error: with all that the frames of its traceback hold, such as a file's bytes, an error that was replaced would
    live until garbage is collected.

    >>> @translating
    ... def looking(name):
    ...     try:
    ...         yield
    ...     except KeyError as error:
    ...         raise ValueError(f"there is no {name}") from error
    >>> with looking("x"):
    ...     {}["x"]
    Traceback (most recent call last):
    ValueError: there is no x
    """

    @wraps(make)
    def block(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Translation(make(*args, **kwargs))

    return block
