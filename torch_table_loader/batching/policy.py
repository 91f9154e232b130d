"""What the caller chose about the form of columns, taken out of all other options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch_table_loader.column_options import (
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
from torch_table_loader.errors import ConfigError
from torch_table_loader.options import LoaderOptions, OutputFormat
from torch_table_loader.pack import Pack


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
    pack: Pack | None = None
    columns: ColumnsOption | None = None

    def __post_init__(self) -> None:
        """Refuse what the output format cannot follow."""
        if self.output_format in ("arrow", "dict"):
            for option in fields(self):
                given = getattr(self, option.name)
                if option.name == "columns" and not isinstance(given, Mapping):
                    continue
                if option.name in ("output_format", "pack") or given == option.default:
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

    @property
    def fills(self) -> Mapping[str, Any]:
        """The fills by column; empty where there are none."""
        return self.by_column("nulls")

    def by_column(self, option: str) -> Mapping[str, Any]:
        """Return what an option says by column; empty where it says one thing for all."""
        given = getattr(self, option)
        return given if isinstance(given, Mapping) else {}

    def strings_of(self, path: str) -> Strings:
        """Return the form of a column of strings."""
        if path in (self.decode or {}):
            return "list"
        return self.strings.get(path, "list") if isinstance(self.strings, Mapping) else self.strings

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
        chosen = self.ragged.get(path) if isinstance(self.ragged, Mapping) else self.ragged
        if chosen is None:
            return "offsets" if self.output_format == "numpy" else "nested"
        return Pad() if chosen == "pad" else chosen
