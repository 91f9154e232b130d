"""What pyarrow's reader of JSON lines does not do: objects that stand otherwise, and how numbers are written."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from torch_table_loader.errors import TableError
from torch_table_loader.read.guessed_types import Bounds
from torch_table_loader.sizes import sizes

_SPACE = re.compile(r"[ \t\r\n]*")
_THEN_OBJECT = re.compile(r"[ \t\r\n]*(?=\{)")
_COMMA_THEN_OBJECT = re.compile(r"[ \t\r\n]*,[ \t\r\n]*(?=\{)")
_ONE_LINE = str.maketrans("\r\n", "  ")
_CHUNK_BYTES = 1 << 20
_DIGITS = pa.decimal256(76, 0)


class ObjectLines:
    """Objects of an array, or that stand over several lines, as lines. About twice one object is held."""

    def __init__(self, source: Any, name: str) -> None:
        self._source = source
        self._name = name
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._parse = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
        self._text = ""
        self._place = 0
        self._ended = False
        self._lines = self._objects()
        self._made = b""

    def read(self, length: int = -1) -> bytes:
        """Return the next bytes of lines."""
        parts, num_bytes = [self._made], len(self._made)
        while length < 0 or num_bytes < length:
            line = next(self._lines, None)
            if line is None:
                break
            parts.append(line)
            num_bytes += len(line)
        text = b"".join(parts)
        if length < 0:
            length = len(text)
        self._made = text[length:]
        return text[:length]

    def _objects(self) -> Iterator[bytes]:
        while letter := self._next():
            if letter == "{":
                yield self._whole_objects(_THEN_OBJECT)
            elif letter == "[":
                yield from self._array()
            else:
                raise self._refusal(repr(letter))

    def _array(self) -> Iterator[bytes]:
        self._place += 1
        letter = self._next()
        while letter != "]":
            if letter != "{":
                raise self._refusal(letter and repr(letter))
            yield self._whole_objects(_COMMA_THEN_OBJECT)
            letter = self._next()
            if letter == ",":
                self._place += 1
                letter = self._next()
                if letter == "]":
                    raise self._refusal("']' after a comma")
            elif letter != "]":
                raise self._refusal(letter and f"{letter!r} after an object")
        self._place += 1

    def _next(self) -> str:
        """Return the next letter that is no space, and go there; "" at the end."""
        while True:
            self._place = _after_space(self._text, self._place)
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                return ""

    def _whole_objects(self, between: re.Pattern[str]) -> bytes:
        """Return the objects that begin here, one or as many as are held whole, as lines, and go to their end."""
        lines: list[str] = []
        found: re.Match[str] | None = None
        while True:
            text, place = self._text, self._place if found is None else found.end()
            try:
                end = self._parse(text, place)[1]
            except ValueError as error:
                if lines:
                    break
                if not self._more():
                    raise self._refusal(f"an object that does not parse ({error})") from error
                continue
            lines.append(text[place:end])
            self._place = end
            if (found := between.match(text, end)) is None:
                break
        if "\n" in text or "\r" in text:
            lines = [line.translate(_ONE_LINE) for line in lines]
        return "\n".join([*lines, ""]).encode()

    def _more(self) -> bool:
        """Read as much again as is held: an object of any length is parsed few times."""
        if self._ended:
            return False
        rest = self._text[self._place :]
        if len(rest) > sizes().json_line_bytes:
            raise pa.ArrowInvalid(f"an object is longer than {sizes().json_line_bytes} bytes, or does not parse")
        piece = self._source.read(max(_CHUNK_BYTES, len(rest)))
        self._ended = not piece
        self._text, self._place = rest + self._decode(piece, final=self._ended), 0
        return True

    def _refusal(self, found: str) -> TableError:
        """Return the error for other JSON; or for a file that is cut off, where nothing or no whole object is found."""
        remedy = "write an object for each row"
        if not found or found.startswith("an object"):
            found, remedy = found or "the end of the file", "the file is cut off or damaged: write it again"
        return TableError(
            f"{self._name} must be JSON objects, one a line, one after the other or in an array, got {found}; {remedy}"
        )


class Written:
    """How the numbers of some keys are written, in lines of objects: as whole numbers, between which bounds."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._found: dict[tuple[str, ...], Bounds | None] = {}
        self._parse = json.JSONDecoder(parse_int=_integer, parse_float=float).raw_decode

    def add(self, lines: bytes) -> None:
        """Take more lines."""
        text = lines.decode("utf-8-sig").rstrip()
        place = 0
        while place < len(text):
            row, place = self._parse(text, _after_space(text, place))
            for name in self._names:
                self._look((name,), row.get(name))

    def _look(self, path: tuple[str, ...], value: Any) -> None:
        if isinstance(value, dict):
            for name, each in value.items():
                self._look((*path, name), each)
        elif isinstance(value, list):
            for each in value:
                self._look((*path, ""), each)
        elif isinstance(value, float):
            self._found[path] = None
        elif isinstance(value, int) and (bounds := self._found.setdefault(path, Bounds())) is not None:
            bounds.add(value)

    def typed(self, own: pa.Field, name: str, path: tuple[str, ...] = ()) -> pa.Field:
        """Return a field of a file with types that hold its whole numbers.

        Raises:
            TableError: a number has more digits than any type.
        """
        kind, path = own.type, (*path, own.name)
        if pa.types.is_list(kind):
            return own.with_type(pa.list_(self.typed(kind.value_field.with_name(""), name, path).with_name("item")))
        if pa.types.is_struct(kind):
            return own.with_type(pa.struct([self.typed(each, name, path) for each in kind]))
        bounds = self._found.get(path)
        if bounds is None or not pa.types.is_floating(kind):
            return own
        if max(-bounds.low, bounds.high) >= 10**_DIGITS.precision:
            raise TableError(
                f"{name} must have whole numbers of at most {_DIGITS.precision} digits, got a longer one as "
                f"{'.'.join(filter(None, path))!r}; write such numbers as text, or pass "
                f'format=Json(types={{"{path[0]}": "double"}})'
            )
        return own.with_type(bounds.type or _DIGITS)


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    if found is None:
        return place
    return found.end()


def _integer(digits: str) -> int:
    """Parse a whole number; one of more digits than any type has counts as one more than the greatest."""
    if len(digits) > _DIGITS.precision + 1:
        return 10**_DIGITS.precision  # type: ignore[no-any-return]
    return int(digits)


def retyped(own: pa.Field, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.Field:
    """Return a field with other types: lists and structs stay such, what they hold becomes what `leaf` says.

    >>> retyped(pa.field("x", pa.list_(pa.int8())), lambda kind: pa.string()).type
    ListType(list<item: string>)
    """
    kind = own.type
    if pa.types.is_list(kind):
        return own.with_type(pa.list_(retyped(kind.value_field, leaf)))
    if pa.types.is_struct(kind):
        return own.with_type(pa.struct([retyped(each, leaf) for each in kind]))
    return own.with_type(leaf(kind))


def leaves(values: pa.Array) -> list[pa.Array]:
    """Return the values inside of lists and structs, in the order in which `retyped` asks for their types.

    >>> [leaf.to_pylist() for leaf in leaves(pa.array([{"a": [1, 2], "b": "x"}]))]
    [[1, 2], ['x']]
    """
    if pa.types.is_list(values.type):
        return leaves(values.flatten())
    if pa.types.is_struct(values.type):
        return [leaf for each in values.flatten() for leaf in leaves(each)]
    return [values]
