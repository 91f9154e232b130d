"""What the caller sees beside batches: warnings at their own line, names that they may have meant, progress bars."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

_PACKAGE = __name__.partition(".")[0]


def warn_caller(message: str) -> None:
    """Warn at the line that called into this library, however deep in it the warning is raised."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def nearest(name: object, known: Iterable[str], *, spare: int = 10, least: float = 0.6) -> list[str]:
    """Return up to three names that are spelled like the one that came.

    Args:
        least: how much alike the spellings are at least, from 0 to 1.
        spare: how many of `known` to return where none is near.

    >>> nearest("lable", ["label", "price"])
    ['label']
    >>> nearest("x", ["label", "price"])
    ['label', 'price']
    """
    names = list(known)
    return difflib.get_close_matches(str(name), names, cutoff=least) or names[:spare]


def the_nearest(name: object, known: Iterable[str], *, spare: int = 10) -> str:
    """Return the part of a message that lists the nearest names; see `nearest`.

    >>> the_nearest("lable", ["label", "price"])
    "the nearest are 'label'"
    """
    near = nearest(name, known, spare=spare)
    if near:
        return f"the nearest are {', '.join(map(repr, near))}"
    return "there are none"


def did_you_mean(name: object, known: Iterable[str], *, spare: int = 0) -> str:
    """Return the end of a message that asks for the nearest names, or nothing if there are none; see `nearest`.

    >>> "no column 'lable'" + did_you_mean("lable", ["label", "price"])
    "no column 'lable'; did you mean label?"
    """
    near = nearest(name, known, spare=spare)
    if near:
        return f"; did you mean {', '.join(near)}?"
    return ""


def first_twice(names: Iterable[str]) -> str | None:
    """Return the first name that is there more than once; None if there is none.

    >>> first_twice(["a", "b", "c", "b"])
    'b'
    """
    return next((name for name, times in Counter(names).items() if times > 1), None)


def note_of_folders(keys: Sequence[str]) -> str:
    """Return what to say of the keys of ``key=value`` folders of which no columns are made.

    >>> note_of_folders(["day"])
    'folders are named by day, of which no column is made, because not all files lie in such folders'
    """
    named = f"{', '.join(keys[:-1])} and {keys[-1]}" if len(keys) > 1 else keys[0]
    return f"folders are named by {named}, of which no column is made, because not all files lie in such folders"


class Part(NamedTuple):
    """What has a progress bar of its own below that of the whole.

    Args:
        label: what the bar says in front.
        total: how many there will be; None if nobody knows.
        done: returns how many there are by now.
    """

    label: str
    total: int | None
    done: Callable[[], int]


def no_bar(items: Iterable[Any], _total: int | None) -> Iterable[Any]:
    """Leave an iterable as it is, instead of drawing a progress bar around it."""
    return items


def titled(label: str, show: bool | float | str) -> str:
    """Return what a bar says in front, with the name that `show_progress` gives it.

    >>> titled("epoch 0", "train"), titled("epoch 0", "workers")
    ('train: epoch 0', 'epoch 0')
    """
    if isinstance(show, str) and show != "workers":
        return f"{show}: {label}"
    return label


def progress_bar(
    label: str,
    *,
    show: bool | float | str,
    interval: float,
    beside: Callable[[], str] = str,
    parts: Sequence[Part] = (),
) -> Callable[[Iterable[Any], int | None], Iterable[Any]]:
    """Make a wrapper that draws a progress bar around an iterable, or leaves it as it is.

    Args:
        label: what the bar says in front.
        show: whether to draw, as the option `show_progress` says it: a text but "workers" comes before the label.
        interval: seconds from one drawing to the next.
        beside: returns what it says at its end by now.
    """
    if not show:
        return no_bar
    from tqdm.auto import tqdm

    title = titled(label, show)
    often = {"mininterval": interval, "maxinterval": max(interval, 10.0)}

    def drawn(items: Iterable[Any], total: int | None) -> Iterator[Any]:
        with tqdm(items, desc=title, total=total, **often) as bar, ExitStack() as below:
            bars = [
                below.enter_context(tqdm(desc=part.label, total=part.total, position=1 + number, **often))
                for number, part in enumerate(parts)
            ]
            for item in bar:
                bar.set_postfix_str(beside(), refresh=False)
                _draw(bars, parts)
                yield item
            _draw(bars, parts)

    return drawn


def _draw(bars: Sequence[Any], parts: Sequence[Part]) -> None:
    for bar, part in zip(bars, parts, strict=True):
        bar.update(part.done() - bar.n)


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's text, shortened.

    >>> first_line(ValueError("bad page\nat offset 4"))
    'bad page'
    """
    lines = str(error).splitlines()
    if lines:
        return lines[0][:300]
    return ""
