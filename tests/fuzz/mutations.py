"""Seeded damage: to bytes, and to trees of dicts and lists such as table metadata in JSON.

A seed always gives the same damage, so that a case is repeated by its seed. See `damaged` and `damaged_tree`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

_INTEGERS = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 32,
    (1 << 63) - 1,
    -(1 << 63),
)
_EDGE_BYTES = 1024
"""Headers and footers lie within so many bytes of a file's ends; half of all damage is done there."""


def damaged(data: bytes, seed: int) -> tuple[bytes, str]:
    """Damage bytes in one to three ways.

    Args:
        data: what a sound file holds.
        seed: says which damage.

    Returns:
        What is left, and what was done. It may be equal to `data`.

    >>> damaged(b"abcdefgh", 1) == damaged(b"abcdefgh", 1)
    True
    """
    random = Random(seed)
    done = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data, what = random.choice(_DAMAGES)(data, random)
        done.append(what)
    return data, ", ".join(done)


def _place(data: bytes, random: Random) -> int:
    size = max(1, len(data))
    edge = min(size, _EDGE_BYTES)
    return random.choice(
        (random.randrange(size), random.randrange(size), random.randrange(edge), size - 1 - random.randrange(edge))
    )


def _put(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new[: max(0, len(data) - place)] + data[place + len(new) :]


def _flip(data: bytes, random: Random) -> tuple[bytes, str]:
    place, bit = _place(data, random), random.randrange(8)
    old = data[place] if data else 0
    return _put(data, place, bytes([old ^ 1 << bit])), f"bit {bit} of byte {place} flipped"


def _set(data: bytes, random: Random) -> tuple[bytes, str]:
    place, value = _place(data, random), random.choice((0, 1, 127, 128, 254, 255, random.randrange(256)))
    return _put(data, place, bytes([value])), f"byte {place} set to {value}"


def _integer(data: bytes, random: Random) -> tuple[bytes, str]:
    place, value, width = _place(data, random), random.choice(_INTEGERS), random.choice((4, 8))
    order = random.choice(("little", "little", "big"))
    new = (value % (1 << 8 * width)).to_bytes(width, "little" if order == "little" else "big")
    return _put(data, place, new), f"{value} written at byte {place} in {width} bytes, {order} endian"


def _zeros(data: bytes, random: Random) -> tuple[bytes, str]:
    place, length = _place(data, random), random.choice((2, 8, 64, 512))
    return _put(data, place, bytes(length)), f"{length} zeros from byte {place}"


def _noise(data: bytes, random: Random) -> tuple[bytes, str]:
    place, length = _place(data, random), random.choice((4, 16, 64))
    return _put(data, place, random.randbytes(length)), f"{length} random bytes from byte {place}"


def _cut(data: bytes, random: Random) -> tuple[bytes, str]:
    place = _place(data, random)
    return data[:place], f"cut at byte {place}"


def _remove(data: bytes, random: Random) -> tuple[bytes, str]:
    place, length = _place(data, random), random.choice((1, 4, 8, 100))
    return data[:place] + data[place + length :], f"{length} bytes taken out at byte {place}"


def _copy(data: bytes, random: Random) -> tuple[bytes, str]:
    source, place, length = _place(data, random), _place(data, random), random.choice((1, 8, 64, 512))
    return _put(data, place, data[source : source + length]), f"{length} bytes of byte {source} copied to byte {place}"


def _insert(data: bytes, random: Random) -> tuple[bytes, str]:
    source, place, length = _place(data, random), _place(data, random), random.choice((1, 8, 64))
    part = data[source : source + length]
    return data[:place] + part + data[place:], f"{length} bytes of byte {source} inserted at byte {place}"


_DAMAGES: tuple[Callable[[bytes, Random], tuple[bytes, str]], ...] = (
    *(_flip,) * 4,
    *(_set,) * 2,
    *(_integer,) * 3,
    _zeros,
    _noise,
    _cut,
    _remove,
    _copy,
    _insert,
)


def damaged_tree(tree: Any, seed: int) -> tuple[Any, str]:
    """Damage one or two places of a tree of dicts, lists and plain values.

    Args:
        tree: what ``json.loads`` gives, or records of a manifest. It stays as it is.
        seed: says which damage.

    Returns:
        The damaged copy, and what was done.

    >>> damaged_tree({"a": [1, 2]}, 3) == damaged_tree({"a": [1, 2]}, 3)
    True
    """
    random = Random(seed)
    root = [copy.deepcopy(tree)]
    done = []
    for _ in range(random.choice((1, 1, 1, 2))):
        if not root:
            break
        holder, key, path = random.choice(list(_places(root)))
        what = random.choice(_TREE_DAMAGES)(holder, key, random)
        done.append(f"{path or 'the root'}: {what}")
    return root[0] if root else None, ", ".join(done)


def _places(root: list[Any]) -> Iterator[tuple[Any, Any, str]]:
    """Every value of a tree: what holds it, under which key, and its path."""
    waiting: list[tuple[Any, Any, str]] = [(root, 0, "")]
    while waiting:
        holder, key, path = waiting.pop()
        yield holder, key, path
        value = holder[key]
        if isinstance(value, dict):
            waiting += [(value, name, f"{path}/{name}") for name in value]
        elif isinstance(value, list):
            waiting += [(value, at, f"{path}/{at}") for at in range(len(value))]


def _delete(holder: Any, key: Any, random: Random) -> str:
    if isinstance(holder, list) and random.random() < 0.5:
        holder[key] = None
        return "nulled"
    del holder[key]
    return "deleted"


def _retype(holder: Any, key: Any, random: Random) -> str:
    value = random.choice((None, True, "", "x", 0, 1.5, [], {}, [None], {"": None}, "\ud800", "é\x00", float("nan")))
    holder[key] = value
    return f"replaced by {value!r}"


def _number(holder: Any, key: Any, random: Random) -> str:
    value = random.choice((*_INTEGERS, 1 << 64, -(1 << 70), 10**400))
    holder[key] = value
    return f"replaced by {value if abs(value) < 1 << 80 else '10**400'}"


def _nearby(holder: Any, key: Any, random: Random) -> str:
    value = holder[key]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return _retype(holder, key, random)
    if isinstance(value, str):
        place = random.randrange(len(value) + 1)
        holder[key] = random.choice((value[:place], value[place:], value + value, value[:place] + "%" + value[place:]))
    else:
        holder[key] = value + random.choice((-1, 1, 100, -2 * value))
    return f"{value!r} changed to {holder[key]!r}"[:200]


def _twice(holder: Any, key: Any, random: Random) -> str:
    if isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
        return "given twice"
    other = random.choice(list(holder))
    holder[other] = copy.deepcopy(holder[key])
    return f"copied to {other!r}"


def _nest(holder: Any, key: Any, random: Random) -> str:
    depth, as_list = random.choice((1, 2, 200)), random.random() < 0.5
    for _ in range(depth):
        holder[key] = [holder[key]] if as_list else {"type": holder[key]}
    return f"nested {depth} deep in {'lists' if as_list else 'dicts'}"


_TREE_DAMAGES: tuple[Callable[[Any, Any, Random], str], ...] = (
    *(_delete,) * 3,
    *(_retype,) * 3,
    *(_number,) * 2,
    *(_nearby,) * 3,
    *(_twice,) * 2,
    _nest,
)


__all__ = ["damaged", "damaged_tree"]
