"""How a facade takes the options as keyword arguments, and shows them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingExtraError
from torch_table_loader.options import LoaderKeywords, LoaderOptions


def make_options(keywords: LoaderKeywords) -> LoaderOptions:
    """Pack the keyword arguments of a facade.

    Raises:
        TypeError: an unknown keyword, as Python raises it for any function.
        ConfigError: a wrong value.
    """
    options = LoaderOptions(**keywords)
    if options.schema is not None and not isinstance(options.schema, pa.Schema):
        raise ConfigTypeError(f"schema must be a pyarrow Schema, got {type(options.schema).__name__}")
    if options.filters is not None and not isinstance(options.filters, pc.Expression):
        raise ConfigTypeError(
            "filters must be a pyarrow compute Expression such as pc.field('x') > 3, "
            f"got {type(options.filters).__name__}"
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


def with_options(function: Callable[..., Any], takes: frozenset[str] | None = None) -> inspect.Signature:
    """Give a function's signature with the options that it takes (None: all) in place of its keyword arguments."""
    own = inspect.signature(function)
    parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters += [
        inspect.Parameter(entry.name, keyword, default=entry.default, annotation=entry.type)
        for entry in fields(LoaderOptions)
        if takes is None or entry.name in takes
    ]
    return own.replace(parameters=parameters)


def showing(signature: inspect.Signature, make: Callable[..., Any]) -> Any:
    """Make a class method that shows a signature and calls `make`."""

    @functools.wraps(make)
    def create_dataloader(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return make(cls, *args, **kwargs)

    create_dataloader.__signature__ = signature.replace(  # type: ignore[attr-defined]
        return_annotation=inspect.signature(make).return_annotation
    )
    return classmethod(create_dataloader)


__all__ = ["make_options", "showing", "with_options"]
