"""Columns of Parquet that are encrypted, where the footer is plain: without keys, the others can still be read.

pyarrow refuses such a footer, or ends the process, as soon as it looks at an encrypted column. So it is given one that
does not have them. The fields are those of parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import override

from torch_table_loader.errors import TableError
from torch_table_loader.read.parquet_footer import ChunkStatistics, FooterWalk, check_footer, parse

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from torch_table_loader.records import DataFile

_SCHEMA, _ROW_GROUPS, _COLUMN_ORDERS = 2, 4, 7
_NUM_CHILDREN, _COLUMNS, _CRYPTO = 5, 1, 8

_Span = tuple[int, int]


def checked_footer(file: DataFile, footer: bytes, parsed: pq.FileMetaData, data_bytes: int) -> bytes:
    """Check a footer, as `check_footer` does, and return it without encrypted columns, if others are left."""
    try:
        check_footer(file, parsed, data_bytes)
    except TableError:
        try:
            plain = without_encrypted(footer)
        except (ValueError, IndexError):  # it is damage
            plain = footer
        if plain == footer or not parse(plain).num_columns:
            raise
        check_footer(file, parse(plain), data_bytes)
        return plain
    return footer


def encrypted_error(name: str, columns: Sequence[str]) -> TableError:
    """Return the error for columns that a footer is without."""
    return TableError(
        f"{name} has encrypted columns, {', '.join(map(repr, columns))} among them; decrypt it first, since this "
        "library has no keys, or leave them out of columns=[...]"
    )


def without_encrypted(footer: bytes) -> bytes:
    """Return a footer without the columns that are encrypted, or have an encrypted field inside; else as it is.

    Raises:
        ValueError, IndexError: it is no footer.
    """
    return _Walk(footer).written()


class _Element(NamedTuple):
    """An element of the schema, and where its number of children stands."""

    span: _Span
    children: int
    counted_at: _Span


class _Walk(FooterWalk):
    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._edits: list[tuple[int, int, bytes]] = []
        self._elements: list[_Element] = []
        self._lists: list[tuple[_Span, list[_Span]]] = []
        """Heads of lists with an entry for each leaf, and the entries."""
        self._encrypted: set[int] = set()

    def written(self) -> bytes:
        schema = (0, 0)
        for field, kind in self._fields():
            begin = self._place
            if field == _SCHEMA:
                count = self._list_head(kind)
                schema = begin, self._place
                self._elements = [self._element() for _ in range(count)]
            elif field == _ROW_GROUPS:
                for _ in range(self._list_head(kind)):
                    self._row_group()
            elif field == _COLUMN_ORDERS:
                self._list(kind)
            else:
                self._skip(kind)
        if not self._encrypted or not self._elements:
            return self._data
        gone = self._drop_columns(schema)
        for head, spans in self._lists:
            self._drop(head, spans, [place for place in range(len(spans)) if place in gone])
        parts, start = [], 0
        for begin, end, new in sorted(self._edits):
            parts += [self._data[start:begin], new]
            start = end
        changed = b"".join([*parts, self._data[start:-8]])
        return changed + (len(changed) - 4).to_bytes(4, "little") + self._data[-4:]

    def _drop_columns(self, schema: _Span) -> set[int]:
        """Take columns at the top out of the schema; return the leaves that go with them."""
        root, place, leaf = self._elements[0], 1, 0
        dropped: list[int] = []
        gone: set[int] = set()
        kept = root.children
        for _ in range(root.children):
            first, first_leaf, open_children = place, leaf, 1
            while open_children:
                children = self._elements[place].children
                leaf += not children
                open_children += children - 1
                place += 1
            leaves = range(first_leaf, leaf)
            if not self._encrypted.isdisjoint(leaves):
                kept -= 1
                gone.update(leaves)
                dropped += range(first, place)
        self._edits.append((*root.counted_at, _varint(kept << 1)))
        self._drop(schema, [element.span for element in self._elements], dropped)
        return gone

    def _drop(self, head: _Span, spans: Sequence[_Span], places: Sequence[int]) -> None:
        """Take entries out of a list of structs."""
        count = len(spans) - len(places)
        self._edits.append((*head, bytes([count << 4 | 12]) if count < 15 else b"\xfc" + _varint(count)))
        self._edits += [(*spans[place], b"") for place in places]

    def _element(self) -> _Element:
        begin, children, counted_at = self._place, 0, (0, 0)
        for field, kind in self._fields():
            at = self._place
            if field == _NUM_CHILDREN:
                children, counted_at = self._int(), (at, self._place)
            else:
                self._skip(kind)
        return _Element((begin, self._place), children, counted_at)

    @override
    def _row_group(self) -> list[ChunkStatistics]:
        for field, kind in self._fields():
            if field == _COLUMNS:
                self._list(kind, find=True)
            else:
                self._skip(kind)
        return []

    def _list(self, kind: int, *, find: bool = False) -> None:
        begin = self._place
        count = self._list_head(kind)
        head, spans = (begin, self._place), []
        for leaf in range(count):
            at = self._place
            for field, inner in self._fields():
                self._skip(inner)
                if find and field == _CRYPTO:
                    self._encrypted.add(leaf)
            spans.append((at, self._place))
        self._lists.append((head, spans))


def _varint(value: int) -> bytes:
    r"""Write a number as Thrift's compact protocol does.

    >>> _varint(5), _varint(300)
    (b'\x05', b'\xac\x02')
    """
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
