"""The one table that decides what each Arrow type becomes.

| Arrow type | output |
|---|---|
| integers, floats, bool | tensor of the same width (bool: one byte a value) |
| integers whose nulls become NaN or a mean | float32 tensor up to 16 bits, float64 beyond |
| decimal | float64 tensor with ``unsupported="float64"``, else refused |
| date, time, timestamp, duration | int64 tensor in the column's unit (date32: days) |
| fixed-size list of those | tensor with one dimension more |
| list, large list, list view of those | jagged, padded, or values and offsets (`ragged=`) |
| string, binary, their large, view and fixed-size forms | Python list, codes or buckets (`strings=`) |
| list of strings or binary | list of Python lists, or lists of codes with a vocabulary or of buckets |
| bfloat16, floats of 8 bits and complex numbers (`arrow/datatypes.py`) | tensor of torch's type |
| struct | nested dict, its children as above |
| dictionary, run-end encoded, extension | as what is inside |
| null, map, union, interval, list of list, list of struct | refused; Python values with ``unsupported="list"`` |
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import torch

from torch_table_loader.arrow.arrays import marked_dtype
from torch_table_loader.arrow.datatypes import (
    ElementType,
    children_of,
    is_string,
    is_text,
    opened_type,
    plain_type,
)
from torch_table_loader.arrow.sound import holds_times
from torch_table_loader.batching import outputs
from torch_table_loader.batching.decoders import (
    MASK_SUFFIX,
    ArrowDecoder,
    Cell,
    CodesDecoder,
    Decoder,
    FixedDecoder,
    FlatCell,
    GridCell,
    HashCoder,
    ListsDecoder,
    Stack,
    StructDecoder,
    VocabularyCoder,
)
from torch_table_loader.errors import ConfigError
from torch_table_loader.messages import the_nearest
from torch_table_loader.option_values import ColumnStatistics, Hash, Pad, UnsupportedForm, Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.decoders import Cell, Coder, Cut, Shape
    from torch_table_loader.batching.policy import TypePolicy
    from torch_table_loader.option_values import Strings, Vocabulary

_INT64 = np.dtype(np.int64)
_FLOAT64 = np.dtype(np.float64)

_SAME_WIDTH: Mapping[int, np.dtype[Any]] = {
    pa.int8().id: np.dtype(np.int8),
    pa.int16().id: np.dtype(np.int16),
    pa.int32().id: np.dtype(np.int32),
    pa.int64().id: np.dtype(np.int64),
    pa.uint8().id: np.dtype(np.uint8),
    pa.uint16().id: np.dtype(np.uint16),
    pa.uint32().id: np.dtype(np.uint32),
    pa.uint64().id: np.dtype(np.uint64),
    pa.float16().id: np.dtype(np.float16),
    pa.float32().id: np.dtype(np.float32),
    pa.float64().id: np.dtype(np.float64),
    pa.bool_().id: np.dtype(np.bool_),
}

_OUTPUTS: Mapping[str, outputs.Output] = {"torch": outputs.tensor_of, "numpy": outputs.array_of}

_FIXED_CUTS: Mapping[str, Cut] = {"torch": outputs.cut_tensors, "numpy": outputs.cut_arrays}

_LEAVE_OUT = 'leave it out with columns=[...], or use output_format="arrow"'
_AS_VALUES = f'take it as Python values with unsupported="list", {_LEAVE_OUT}'

_LISTS_OF_STRINGS = "list of strings, where null comes as None"
_USABLE = {
    "nulls": {"number", "fixed-size list", "list", "string", "list of codes"},
    "ragged": {"list", "list of codes"},
    "strings": {"string", "list of codes", _LISTS_OF_STRINGS},
    "decode": {"string"},
}
"""The kinds of columns for which an option by column can be used."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What decodes the columns of a schema, and what is known of them.

    Args:
        columns: one decoder a column.
        shapes: what comes of them all.
        sensitive: the names of single values in which a null is an error.
        refusing: the names of columns in which a null, at whatever depth, is one.
        coded: the names of columns that may come as dictionaries.
        encoded: the places of other columns that may come encoded, and are decoded first.
    """

    columns: list[Decoder]
    shapes: list[Shape]
    sensitive: frozenset[str]
    refusing: frozenset[str]
    coded: frozenset[str]
    encoded: list[int]


def choose(schema: pa.Schema, policy: TypePolicy) -> Chosen:
    """Choose the node that decodes each column."""
    fields = list(schema)  # once: Arrow makes its entries anew each time
    opened = [opened_type(entry.type) for entry in fields]
    named = policy.all_by_column()
    chooser = Chooser(policy, named.get("nulls", {}), policy.masks)
    columns, encoded = list[Decoder](), list[int]()
    for place, (entry, kind) in enumerate(zip(fields, opened, strict=True)):
        columns.append(chooser.column(entry.name, kind, entry.name, nullable=entry.nullable))
        if kind is not entry.type and not columns[-1].takes_encoded and kind != entry.type:
            encoded.append(place)
    shapes = check_keys(columns, "the table")
    for option, usable in _USABLE.items():
        check_names(option, named.get(option, ()), chooser.known, usable)
    _check_unsupported(named.get("unsupported", ()), chooser)
    refusing = [column for column in columns if column.refuses_null]
    single = [each for each in refusing if isinstance(each, FixedDecoder) and isinstance(each.cell, FlatCell)]
    coded = [column for column in columns if column.takes_encoded]
    return Chosen(columns, shapes, _names(single), _names(refusing), _names(coded), encoded)


def _names(columns: Sequence[Decoder]) -> frozenset[str]:
    return frozenset(column.name for column in columns)


@dataclass(frozen=True, slots=True)
class Keyed:
    """What makes each key of a batch, beside it the places of its columns, and what comes of all."""

    makers: Sequence[Decoder | Stack]
    places: Sequence[tuple[int, ...]]
    shapes: list[Shape]


def keyed(schema: pa.Schema, chosen: Chosen, policy: TypePolicy) -> Keyed:
    """Return what makes each key of a batch; columns that no key names come last."""
    columns = chosen.columns
    if not isinstance(policy.columns, Mapping):
        return Keyed(columns, [(place,) for place in range(len(columns))], chosen.shapes)
    makers, found, taken = list[Decoder | Stack](), list[tuple[int, ...]](), set[int]()
    for key, names in policy.columns.items():
        places = tuple(schema.get_field_index(name) for name in ([names] if isinstance(names, str) else names))
        taken.update(places)
        own = [columns[place] for place in places]
        if isinstance(names, str):
            makers.append(replace(own[0], name=key))
            found.append(places)
            continue
        for name, column in zip(names, own, strict=True):
            if not isinstance(column, FixedDecoder) or column.cell.kind.inner or column.masked:
                raise ConfigError(
                    f"columns[{key!r}] becomes one float32 tensor of single numbers, and column {name!r} of the type "
                    f"{schema.field(name).type} is none{_why_none(column)}; give it a key of its own"
                )
        members = tuple(column for column in own if isinstance(column, FixedDecoder))
        makers.append(Stack(key, members, members[0].cut))
        found.append(places)
    left = [place for place in range(len(columns)) if place not in taken]
    makers += [columns[place] for place in left]
    found += [(place,) for place in left]
    return Keyed(makers, found, check_keys(makers, "the batch"))


def _why_none(column: Decoder) -> str:
    if isinstance(column, FixedDecoder) and column.masked:
        return ', since nulls="mask" gives it a mask'
    return ""


def check_keys(columns: Sequence[Decoder | Stack], where: str) -> list[Shape]:
    """Refuse columns of which two would come under one key of a batch; return what comes of all."""
    shapes = [shape for column in columns for shape in column.shapes()]
    for name, count in Counter([shape.name for shape in shapes]).items():
        if count > 1:
            hint = "another column"
            if name.endswith(MASK_SUFFIX):
                hint = "the mask of another column"
            raise ConfigError(
                f"{where} has a column {name!r}, and {hint} would have the same name; "
                "rename one, or leave one out with columns=[...]"
            )
    return shapes


@dataclass(slots=True)
class Chooser:
    """Chooses the node of each column, and notes what is at every dotted path that it meets."""

    policy: TypePolicy
    _fills: Mapping[str, Any]
    _masks: bool
    known: dict[str, str] = field(default_factory=dict)
    formless: set[str] = field(default_factory=set)
    """The dotted paths without a form as tensors."""
    _cuts: Mapping[str, Cut] = field(init=False)
    """How columns are cut into batches, by their form."""

    def __post_init__(self) -> None:
        """Look up what is the same for all columns."""
        output = _OUTPUTS[self.policy.output_format]
        self._cuts = {
            "fixed": _FIXED_CUTS[self.policy.output_format],
            "nested": outputs.cut_nested,
            "offsets": partial(outputs.cut_ragged, output=output),
            "codes": partial(outputs.cut_codes, output=output),
        }

    def column(self, name: str, kind: pa.DataType, path: str, *, nullable: bool) -> Decoder:
        """Choose the node of a column, or of a struct's child, of an opened type; any schema may allow its nulls."""
        if kind.id not in _SAME_WIDTH:
            if pt.is_struct(kind):
                return self._struct(name, kind, path, nullable=nullable)
            if is_text(kind):
                return self._text(name, kind, path)
            if not _has_tensor_form(kind) and self._instead(path) == "list":
                self.known[path] = "list of Python values, where null comes as None"
                return ArrowDecoder(name, kind, outputs.cut_values, checks_times=holds_times(kind))
            if pt.is_list(kind) or pt.is_large_list(kind) or _is_grid_of_text(kind):
                return self._lists(name, kind, path, masked=self._masks and nullable)
        masked = self._masks and nullable and not _becomes_float(kind)
        return FixedDecoder(name, self._cell(kind, path, masked=masked), self._cuts["fixed"], masked)

    def _instead(self, path: str) -> UnsupportedForm | None:
        """Return what becomes of a column, a child or an item without a form as tensors."""
        self.formless.add(path)
        return self.policy.unsupported_of(path)

    def _struct(self, name: str, kind: pa.DataType, path: str, *, nullable: bool) -> Decoder:
        self.known[path] = f"struct, whose children are named '{path}.<child>'"
        children = tuple(
            self.column(
                child.name, opened_type(child.type), f"{path}.{child.name}", nullable=nullable or child.nullable
            )
            for child in children_of(kind)
        )
        check_keys(children, f"the struct {path!r}")
        return StructDecoder(name, children)

    def _text(self, name: str, kind: pa.DataType, path: str) -> Decoder:
        self.known[path] = "string"
        wide = _wide(kind)
        fill = None
        if path in self._fills:
            fill = text_fill(path, self._fills[path], wide)
        form = self.policy.strings_of(path)
        if form == "list":
            return ArrowDecoder(name, wide, outputs.cut_texts, fill)
        coder = self._coder(form, path, wide)
        if coder is None:
            return ArrowDecoder(name, wide, self._cuts["codes"], fill)
        return CodesDecoder(name, wide, self._cuts["fixed"], coder, fill)

    def _coder(self, form: Strings, path: str, wide: pa.DataType) -> Coder | None:
        """Return what makes integers of strings; None where each batch has its own dictionary."""
        if isinstance(form, Hash):
            return HashCoder(form.buckets)
        if isinstance(form, Vocabulary):
            return VocabularyCoder(vocabulary_array(path, form.values, wide))
        return None

    def _lists(self, name: str, kind: pa.DataType, path: str, *, masked: bool) -> Decoder:
        item = opened_type(kind.value_type)
        if is_text(item):
            return self._text_lists(name, path, _wide(item), masked=masked)
        if pt.is_nested(item) and not pt.is_fixed_size_list(item):
            raise unsupported(path, kind, _AS_VALUES)
        self.known[path] = "list"
        return self._lists_of(name, path, self._cell(item, f"{path}.item"), masked=masked)

    def _lists_of(self, name: str, path: str, item: Cell, *, masked: bool) -> ListsDecoder:
        fill = None
        if path in self._fills:
            fill = list_fill(path, self._fills[path], item)
        elif masked:
            fill = list_fill(path, [], item)
        layout = self.policy.layout_of(path)
        if not isinstance(layout, Pad):
            return ListsDecoder(name, path, item, self._cuts[layout], self._cuts["fixed"], masked, fill)
        if fill is not None and layout.longest is not None and len(fill) > layout.longest:
            raise ConfigError(
                f"nulls fills column {path!r} with {len(fill)} values, and Pad(length={layout.length}) takes no more "
                f"than that; fill it with a shorter list, or pass truncate= to Pad"
            )
        value = pad_value(path, layout.value, item)
        cut = partial(outputs.cut_padded, output=_OUTPUTS[self.policy.output_format], pad=layout, value=value)
        return ListsDecoder(name, path, item, cut, self._cuts["fixed"], masked, fill, layout.longest)

    def _text_lists(self, name: str, path: str, wide: pa.DataType, *, masked: bool) -> Decoder:
        form = self.policy.strings_of(path)
        if form == "list":
            self.known[path] = _LISTS_OF_STRINGS
            return ArrowDecoder(name, pa.large_list(wide), outputs.cut_text_lists)
        self.known[path] = "list of codes"
        coder = self._coder(form, path, wide)
        if coder is None:
            raise ConfigError(
                f"column {path!r} holds lists of strings, which need a vocabulary to become codes; pass "
                f"strings={{{path!r}: Vocabulary([...])}} or {{{path!r}: Hash(buckets=...)}}, or leave it out with "
                "columns=[...]"
            )
        codes = FlatCell(f"{path}.item", _INT64, _INT64)
        return replace(self._lists_of(name, path, codes, masked=masked), coder=coder, text=wide)

    def _cell(self, kind: pa.DataType, path: str, *, masked: bool = False) -> Cell:
        cell: FlatCell | GridCell
        if pt.is_fixed_size_list(kind):
            self.known[path] = "fixed-size list"
            cell = GridCell(path, self._cell(opened_type(kind.value_type), f"{path}.item"), kind.list_size)
        else:
            self.known[path] = "number"
            cell = self._flat(kind, path)
        dtype = cell.dtype
        if path in self._fills:
            if (element := outputs.mark_of(dtype)) is not None:
                raise ConfigError(
                    f"nulls fills column {path!r}, whose values are {element}, which numpy does not have; "
                    'leave it out of nulls, or pass nulls="mask"'
                )
            return replace(cell, fill=fixed_fill(path, self._fills[path], cell, kind))
        if masked:
            return replace(cell, fill=np.zeros((), dtype)[()])
        # In place of a list a null is an error, unless something was chosen for the nulls inside.
        becomes_nan = isinstance(cell, FlatCell) or f"{path}.item" in self._fills
        if dtype.kind == "f" and becomes_nan:
            return replace(cell, fill=dtype.type(np.nan))
        return cell

    def _flat(self, kind: pa.DataType, path: str) -> FlatCell:
        if isinstance(kind, ElementType):
            dtype = element_dtype(path, kind.element, numpy=self.policy.output_format == "numpy")
            return FlatCell(path, dtype, dtype)
        if (stored := _SAME_WIDTH.get(kind.id)) is not None:
            loaded = stored
            if stored.kind in "iu" and is_float(self._fills.get(path)):
                loaded = np.result_type(stored, np.float32)
            return FlatCell(path, stored, loaded)
        if pt.is_temporal(kind) and not pt.is_interval(kind):
            return FlatCell(path, np.dtype(np.int32) if kind.bit_width == 32 else _INT64, _INT64)
        if pt.is_decimal(kind):
            if self._instead(path) != "float64":
                raise unsupported(path, kind, f'pass unsupported="float64" to take it as doubles, {_AS_VALUES}')
            return FlatCell(path, _FLOAT64, _FLOAT64, cast=True)
        remedy = _AS_VALUES
        if pt.is_null(kind):
            remedy = f"give its type with schema=, {_AS_VALUES}"
        raise unsupported(path, kind, remedy)


def element_dtype(path: str, element: str, *, numpy: bool) -> np.dtype[Any]:
    """Return the dtype of numbers that Arrow lacks.

    Raises:
        ConfigError: torch does not have them.
        MissingExtraError: arrays were asked for, and what adds such numbers to numpy is not installed.
    """
    dtype = marked_dtype(element)
    if numpy and outputs.mark_of(dtype) is not None:
        outputs.numpy_dtype(element)
    elif not hasattr(torch, element):
        raise unsupported(
            path, element, f"torch {torch.__version__} does not support it: use a newer one, {_LEAVE_OUT}"
        )
    return dtype


def _check_unsupported(names: Iterable[str], chooser: Chooser) -> None:
    for name in names:
        if name in chooser.formless or any(path.startswith(f"{name}.") for path in chooser.formless):
            continue
        if name in chooser.known:
            raise ConfigError(f"unsupported names {name!r}, which has a form as a tensor; leave it out there")
        near = _nearest(name, sorted(chooser.formless))
        raise ConfigError(f"unsupported names {name!r}, which is not a column here; {near}")


def unsupported(path: str, kind: object, remedy: str) -> ConfigError:
    """Return an error that names the column, its type and the remedy."""
    return ConfigError(f"column {path!r} is of type {kind}, which cannot become a tensor; {remedy}")


def _has_tensor_form(kind: pa.DataType) -> bool:
    """Return whether values of an opened type that is neither text nor struct have a form as tensors."""
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        kind = opened_type(kind.value_type)
        if is_text(kind):
            return True
    while pt.is_fixed_size_list(kind):
        kind = opened_type(kind.value_type)
    return (
        isinstance(kind, ElementType) or kind.id in _SAME_WIDTH or (pt.is_temporal(kind) and not pt.is_interval(kind))
    )


def _is_grid_of_text(kind: pa.DataType) -> bool:
    return bool(pt.is_fixed_size_list(kind)) and is_text(opened_type(kind.value_type))


def _becomes_float(kind: pa.DataType) -> bool:
    return bool(pt.is_floating(kind) or pt.is_decimal(kind))


def _wide(kind: pa.DataType) -> pa.DataType:
    if is_string(kind):
        return pa.large_string()
    return pa.large_binary()


def _typed(option: str, path: str, given: object, kind: object, make: Callable[[], T]) -> T:
    try:
        return make()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{option}={{{path!r}: {given!r}}} does not fit the column's type {kind}: {error}") from error


def _refuse_none(path: str, given: object) -> None:
    if given is None:
        raise ConfigError(f"nulls={{{path!r}: None}} fills nothing; give a value, or leave {path!r} out")


def is_float(given: object) -> bool:
    """Return whether a fill is a float whatever the column holds: NaN, or the mean of statistics."""
    if isinstance(given, float):
        return math.isnan(given)
    return isinstance(given, ColumnStatistics) or (isinstance(given, str) and given == "nan")


def _float_fill(path: str, given: Any, dtype: np.dtype[Any], kind: pa.DataType) -> Any:
    """Return NaN, or the mean of statistics, in a cell's dtype."""
    if dtype.kind != "f":
        remedy = "give a value of that type"
        if pt.is_nested(plain_type(kind)) and pt.is_integer(plain_type(kind).value_type):
            remedy = f"name '{path}.item'"
        raise ConfigError(
            f"nulls fills column {path!r} of type {kind} with {_told(given)}, which only ints and floats take; "
            f'{remedy}, or pass nulls="mask"'
        )
    if not isinstance(given, ColumnStatistics):
        return dtype.type(np.nan)
    if given.mean is None or not given.count:
        raise ConfigError(
            f"nulls fills column {path!r} with the mean of statistics that have none; measure values, without "
            "bounds_only=True"
        )
    return dtype.type(given.mean)


def _told(given: object) -> str:
    if isinstance(given, ColumnStatistics):
        return "the mean of statistics"
    return "NaN"


def fixed_fill(path: str, given: Any, cell: Cell, kind: pa.DataType) -> Any:
    """Return a fill in a cell's dtype, which broadcasts to the shape of a row.

    Args:
        given: a value, or for fixed-size lists also a list of values; "nan"; statistics, whose mean is taken.
        cell: decodes the column, and makes the fill too, so that both follow one rule.
    """
    _refuse_none(path, given)
    if is_float(given):
        return _float_fill(path, given, cell.kind.dtype, kind)
    if not isinstance(given, list | tuple | np.ndarray):
        while isinstance(cell, GridCell):
            kind, cell = opened_type(kind.value_type), cell.item
    if pt.is_decimal(kind):
        kind = pa.float64()

    def make() -> Any:
        found = cell.values(pa.array([given], kind), set())[0]
        plain = np.asarray(given)
        # pyarrow takes 1.5 as the integer 1.
        if found.dtype.kind in "iub" and plain.dtype.kind in "iufb" and not np.array_equal(found, plain):
            raise ValueError(f"{given!r} would become {found!r}")
        return found

    return _typed("nulls", path, given, kind, make)


def list_fill(path: str, given: Any, item: Cell) -> NDArray[Any]:
    """Return the list that a null list becomes, often [], in the values' dtype."""
    _refuse_none(path, given)
    kind = item.kind
    if not isinstance(given, list | tuple | np.ndarray):
        raise ConfigError(
            f"nulls={{{path!r}: {given!r}}} must be a list (such as []), since the column holds lists; "
            f"for nulls inside the lists name '{path}.item'"
        )

    def make() -> NDArray[Any]:
        found = np.asarray(given) if len(given) else np.empty((0, *kind.inner), kind.dtype)
        if found.shape[1:] != kind.inner:
            raise ValueError(f"a value must have the shape {kind.inner}, got {found.shape[1:]}")
        exact = found.astype(kind.dtype)
        if kind.dtype.kind != "f" and not np.array_equal(exact, found):
            raise ValueError(f"values must be {kind.dtype}")
        return exact

    return _typed("nulls", path, given, kind.dtype, make)


def pad_value(path: str, given: float, item: Cell) -> Any:
    """Return the value that pads a column of lists, in the values' dtype."""
    dtype = item.kind.dtype
    element = outputs.mark_of(dtype)
    if element is not None and given == 0:
        return np.zeros((), dtype)[()]
    found = None
    if element is None:
        with suppress(OverflowError, ValueError), np.errstate(all="ignore"):
            found = np.asarray(given).astype(dtype)[()]
    fits = found is not None and (found == given if dtype.kind != "f" else np.isinf(found) == math.isinf(given))
    if not fits:
        raise ConfigError(
            f"Pad(value={given!r}) does not fit column {path!r}, whose values are {element or dtype}; choose one that "
            f"they can have, for this column alone with ragged={{{path!r}: Pad(...)}}"
        )
    return found


def text_fill(path: str, given: Any, wide: pa.DataType) -> str | bytes:
    """Check the fill of a string or binary column."""
    _refuse_none(path, given)
    scalar = _typed("nulls", path, given, wide, partial(pa.scalar, given, wide))
    found: str | bytes = scalar.as_py()
    return found


def vocabulary_array(path: str, given: Any, wide: pa.DataType) -> pa.Array:
    """Check a vocabulary and make it an Arrow array."""
    values = _typed("the Vocabulary of strings", path, given, wide, lambda: pa.array(given, wide))
    if values.null_count or len(values.unique()) != len(values):
        raise ConfigError(
            f"the Vocabulary of strings[{path!r}] must not repeat a value or contain None; null is always −1"
        )
    return values


def check_names(option: str, names: Iterable[str], known: Mapping[str, str], usable_for: set[str]) -> None:
    """Refuse names of an option that cannot be used for them.

    Args:
        known: every path of the schema, and its kind.
        usable_for: the kinds for which the option can be used.
    """
    usable = [path for path, what in known.items() if what in usable_for]
    for name in names:
        if known.get(name) in usable_for:
            continue
        if name in known:
            raise ConfigError(f"{option} names {name!r}, which is a {known[name]}; {_few(usable)}")
        raise ConfigError(f"{option} names {name!r}, which is not a column here; {_nearest(name, usable)}")


def _nearest(name: str, usable: Sequence[str]) -> str:
    if usable:
        return the_nearest(name, usable, spare=5)
    return _few(usable)


def _few(names: Sequence[str]) -> str:
    if names:
        return f"it is for: {', '.join(map(repr, names[:5]))}"
    return "no column here can have it, so leave it out"
