"""How a facade takes the options as keyword arguments, and shows them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from types import MethodType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingExtraError
from torch_table_loader.options import LoaderKeywords, LoaderOptions
from torch_table_loader.unknown_keywords import refuse_unknown

_FIELDS = {entry.name: entry for entry in fields(LoaderOptions)}


def make_options(keywords: LoaderKeywords, owner: type) -> LoaderOptions:
    """Pack the keyword arguments of a facade.

    Args:
        keywords: as they came.
        owner: the class that was called.

    Raises:
        ConfigTypeError: an unknown keyword; says what it is called here.
        ConfigError: a wrong value.
    """
    check_names(keywords, owner)
    options = LoaderOptions(**keywords)
    if options.schema is not None and not isinstance(options.schema, pa.Schema):
        raise ConfigTypeError(
            f"schema must be a pyarrow Schema such as pa.schema([('x', pa.int64())]), got {_shown(options.schema)}"
        )
    if options.filters is not None and not isinstance(options.filters, pc.Expression):
        raise ConfigTypeError(
            "filters must be a pyarrow compute Expression such as pc.field('x') > 3, "
            f"got {_shown(options.filters)}{_as_expression(options.filters)}"
        )
    try:
        torch.device("cpu" if options.device is None else options.device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device must be one that torch knows, such as 'cuda:0', got {options.device!r}") from error
    if options.show_progress:
        try:
            import tqdm  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(
                "show_progress=True needs tqdm; pip install 'torch-table-loader[progress]'"
            ) from error
    return options


def check_names(keywords: Any, owner: type) -> None:
    """Refuse keyword arguments that are no options.

    Args:
        keywords: as they came.
        owner: the class that was called.

    Raises:
        ConfigTypeError: says what it is called here, or what there is instead.
    """
    if unknown := [name for name in keywords if name not in _FIELDS]:
        takes = list(inspect.signature(owner).parameters)
        raise refuse_unknown(unknown, owner.__name__, takes)


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _as_expression(filters: Any) -> str:
    """Return the end of a message for callers who write filters as pyarrow's or pandas' readers take them."""
    if isinstance(filters, list | tuple):
        of_one = filters and isinstance(filters[0], str)
        listed = "[filters]" if of_one else "filters"
        return f"; pyarrow.parquet.filters_to_expression({listed}) turns it into one"
    if isinstance(filters, str):
        return "; write each comparison with pc.field(name), and join them with & and |"
    return "; what Python must decide row by row belongs into collate_fn=" if callable(filters) else ""


def with_options(
    function: Callable[..., Any], base: Callable[..., Any], takes: frozenset[str] | None = None
) -> inspect.Signature:
    """Return a function's signature with what its ``**options`` take in their place.

    Args:
        function: an ``__init__``; one without ``**options`` is shown as it is.
        base: the one that it hands them to.
        takes: the options that the class takes; None for all.
    """
    own = inspect.signature(function)
    parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(parameters) == len(own.parameters):
        return own
    of_base = [p for p in inspect.signature(base).parameters.values() if p.kind is p.KEYWORD_ONLY]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=entry.default, annotation=entry.type)
        for name, entry in _FIELDS.items()
        if takes is None or name in takes
    ]
    names = {p.name for p in parameters}
    for parameter in (*of_base, *options):
        if parameter.name not in names:
            names.add(parameter.name)
            parameters.append(parameter)
    return own.replace(parameters=parameters)


if TYPE_CHECKING:
    shown_classmethod = classmethod
else:

    class shown_classmethod(classmethod):  # noqa: N801 - a decorator
        """A class method that takes what the class takes, and shows the signature of the class that it is asked of."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """Bind to the class."""
            make = self.__func__
            cls = type(instance) if owner is None else owner

            @functools.wraps(make)
            def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
                return make(cls, *args, **kwargs)

            returns = inspect.signature(make).return_annotation
            call.__signature__ = inspect.signature(cls.__init__).replace(return_annotation=returns)
            return MethodType(call, cls)
