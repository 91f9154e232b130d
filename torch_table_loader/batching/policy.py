"""What the caller chose about columns, taken out of all other options: their form, and functions over single ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from torch_table_loader.batching.decoders import Branch
from torch_table_loader.batching.outputs import Codes, Padded, Ragged
from torch_table_loader.errors import ConfigError
from torch_table_loader.messages import the_nearest
from torch_table_loader.option_values import (
    ColumnFunctions,
    ColumnsOption,
    Hash,
    Pad,
    RaggedOption,
    Strings,
    StringsOption,
    UnsupportedForm,
    UnsupportedOption,
    Vocabulary,
)
from torch_table_loader.options import LoaderOptions, OutputFormat
from torch_table_loader.samples import ONE_BY_ONE, Samples

if TYPE_CHECKING:
    from torch_table_loader.batching.decoders import Shape

_NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64}
"""What numbers of Python are stacked as; by default torch would make float32 of floats."""


@dataclass(frozen=True, slots=True)
class TypePolicy:
    """How each Arrow type comes out; the fields are those of `LoaderOptions`.

    In options by column a struct's child is "struct.child", and a list's values are "column.item". Strings that
    `strings` does not name are lists.
    """

    output_format: OutputFormat = "torch"
    nulls: Mapping[str, Any] | Literal["mask"] | None = None
    ragged: RaggedOption | None = None
    strings: StringsOption = "list"
    unsupported: UnsupportedOption | None = None
    transforms: ColumnFunctions | None = None
    decode: ColumnFunctions | None = None
    samples: Samples = ONE_BY_ONE
    columns: ColumnsOption | None = None

    def __post_init__(self) -> None:
        """Refuse what the output format cannot follow."""
        if self.output_format in ("arrow", "dict"):
            for option in fields(self):
                given = getattr(self, option.name)
                if option.name == "columns" and not isinstance(given, Mapping):
                    continue
                if option.name in ("output_format", "samples") or given == option.default:
                    continue
                raise ConfigError(
                    f"{option.name}={given!r} shapes tensors and arrays, but output_format="
                    f"{self.output_format!r} delivers every column as it is; leave {option.name} out"
                )
        for name in self.decode or {}:
            if (form := self.by_column("strings").get(name, "list")) != "list":
                raise ConfigError(
                    f"decode[{name!r}] is called with strings or bytes, and strings={{{name!r}: {form!r}}} turns them "
                    "into numbers; name the column in only one of the two"
                )
        if self.output_format == "numpy" and "nested" in (self.ragged, *self.by_column("ragged").values()):
            raise ConfigError(
                'ragged="nested" is a torch layout, but output_format="numpy"; choose ragged="offsets" or ragged="pad"'
            )

    @classmethod
    def of(cls, options: LoaderOptions) -> TypePolicy:
        """Return the policy that the options ask for."""
        return cls(**{option.name: getattr(options, option.name) for option in fields(cls)})

    @property
    def masks(self) -> bool:
        """Whether validity tensors were asked for."""
        return self.nulls == "mask"

    def by_column(self, option: str) -> Mapping[str, Any]:
        """Return what an option says by column; empty where it says one thing for all."""
        given = getattr(self, option)
        if isinstance(given, Mapping):
            return given
        return {}

    def all_by_column(self) -> dict[str, Mapping[str, Any]]:
        """Return what the options say by column; those that say one thing for all are left out."""
        given = {option.name: getattr(self, option.name) for option in fields(self)}
        return {name: value for name, value in given.items() if isinstance(value, Mapping)}

    def strings_of(self, path: str) -> Strings:
        """Return the form of a column of strings."""
        if path in (self.decode or {}):
            return "list"
        if isinstance(self.strings, Mapping):
            return self.strings.get(path, "list")
        return self.strings

    def unsupported_of(self, path: str) -> UnsupportedForm | None:
        """Return what becomes of a column, a child or an item without a form as a tensor: its own or that above it."""
        if not isinstance(self.unsupported, Mapping):
            return self.unsupported
        while path not in self.unsupported and "." in path:
            path = path.rpartition(".")[0]
        return self.unsupported.get(path)

    def codes(self, path: str) -> bool:
        """Whether strings become integers that mean the same in all batches."""
        return isinstance(self.strings_of(path), Hash | Vocabulary)

    def layout_of(self, path: str) -> Literal["nested", "offsets"] | Pad:
        """Return the layout of a column of lists, the default resolved."""
        chosen = self.ragged
        if isinstance(chosen, Mapping):
            chosen = chosen.get(path)
        if chosen is None:
            if self.output_format == "numpy":
                return "offsets"
            return "nested"
        if chosen == "pad":
            return Pad()
        return chosen


@dataclass(frozen=True, slots=True)
class ColumnFunction:
    """One function over one column of a batch.

    Args:
        option: which option names it, for messages.
        name: of the column, as the caller gave it.
        keys: where the column is in a batch.
    """

    option: str
    name: str
    keys: tuple[str, ...]
    function: Callable[[Any], Any]
    numpy: bool

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{self.option}[{self.name!r}]"

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Put what the function returns in the column's place; the batch is changed and returned."""
        inside = batch
        for key in self.keys[:-1]:
            inside = inside[key]
        came = inside[self.keys[-1]]
        if self.option == "decode":
            inside[self.keys[-1]] = stacked(self._decoded(came), numpy=self.numpy)
            return batch
        rows, returned = _num_rows(came), self.function(came)
        if (found := _num_rows(returned)) != rows:
            came_of = _said(returned)
            if found is not None:
                came_of = f"{type(returned).__name__} of {found} rows"
            raise ConfigError(
                f"{self.label} must return one entry for each of the batch's {rows} rows, got {came_of}; return a "
                "tensor or an array whose first dimension is the rows, a list, or what the function was given"
            )
        inside[self.keys[-1]] = returned
        return batch

    def _decoded(self, values: Sequence[Any]) -> list[Any]:
        found = []
        for row, value in enumerate(values):
            try:
                found.append(None if value is None else self.function(value))
            except BaseException as error:
                error.add_note(f"of the value at row {row} of the batch")
                raise
        return found


def column_functions(shapes: Sequence[Shape], policy: TypePolicy) -> tuple[ColumnFunction, ...]:
    """Return the functions that a policy names, in the order in which they are called."""
    if not (policy.decode or policy.transforms):
        return ()
    known = dict(_keys(shapes))
    return tuple(
        ColumnFunction(option, name, _place(option, name, known), function, policy.output_format == "numpy")
        for option, given in (("decode", policy.decode), ("transforms", policy.transforms))
        for name, function in (given or {}).items()
    )


def _keys(
    shapes: Sequence[Shape], path: str = "", before: tuple[str, ...] = ()
) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Yield the dotted path of everything in a batch, and the keys that lead there; those of structs come first."""
    for shape in shapes:
        if isinstance(shape, Branch):
            yield from _keys(shape.nodes, f"{path}{shape.name}.", (*before, shape.name))
    for shape in shapes:
        yield f"{path}{shape.name}", (*before, shape.name)


def _place(option: str, name: str, known: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if name not in known:
        raise ConfigError(
            f"{option} names {name!r}, which is not a column of the batches; {the_nearest(name, known, spare=5)}"
        )
    return known[name]


def stacked(values: Sequence[Any], *, numpy: bool) -> Any:
    """Return the values of rows as one tensor, or array with `numpy`, if all have one shape and type; else as a list.

    >>> stacked([1.5, 2.5], numpy=True), stacked([1, None], numpy=True)
    (array([1.5, 2.5]), [1, None])
    """
    first = next(iter(values), None)
    if isinstance(first, torch.Tensor):
        same = all(isinstance(each, torch.Tensor) and _form(each) == _form(first) for each in values)
        return torch.stack(list(values)) if same and not first.is_nested else list(values)
    if isinstance(first, np.ndarray | np.generic):
        same = all(isinstance(each, np.ndarray | np.generic) and _form(each) == _form(first) for each in values)
        if not same or first.dtype.kind not in "biufc":
            return list(values)
        array = np.stack(list(values))
    elif type(first) in _NUMBERS and all(type(each) is type(first) for each in values):
        try:
            array = np.array(values, _NUMBERS[type(first)])
        except OverflowError:  # integers of more than 64 bits
            return list(values)
    else:
        return list(values)
    if numpy:
        return array
    return torch.from_numpy(array)


def _form(value: Any) -> tuple[Any, ...]:
    return tuple(value.shape), value.dtype, getattr(value, "device", None)


def _num_rows(value: Any) -> int | None:
    """Count the rows of a column of a batch; None of what is none."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.shape[0]) if value.ndim else None
    if isinstance(value, Ragged):
        return len(value.offsets) - 1
    if isinstance(value, Padded | Codes):
        return len(value[0])
    if isinstance(value, dict):
        counts = set(map(_num_rows, value.values()))
        return counts.pop() if len(counts) == 1 else None
    if type(value) in (list, tuple):
        return len(value)
    return None


def _said(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"
