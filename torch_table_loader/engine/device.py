"""Batches on their way to a device: copied ahead of the trainer, on a stream beside the trainer's own.

A batch is packed into one page-locked buffer and crosses in one copy; its tensors are views of what arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from typing_extensions import override

from torch_table_loader.errors import ConfigError

BATCHES_AHEAD = 1
"""Batches that are copied while the trainer works on the one before."""

ALIGNMENT = 256
"""Where a tensor begins in the buffer, in bytes: as the device's own allocator aligns."""


class Mark(Protocol):
    """A moment on a stream."""

    def synchronize(self) -> None:
        """Wait until the stream has come there."""
        ...


class Copier(Protocol):
    """A stream beside the trainer's own, which copies."""

    def page_locked(self, num_bytes: int) -> torch.Tensor:
        """Allocate uint8[num_bytes] that the device can read by itself."""
        ...

    def send(self, data: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        """Begin to copy page-locked bytes; return what they will be on the device, and when."""
        ...

    def receive(self, data: torch.Tensor, mark: Mark) -> None:
        """Let the trainer's stream wait for a copy, and keep its memory until that stream is done with it."""
        ...

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor on the trainer's own stream."""
        ...


class CudaCopier(Copier):
    """Copies to a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream on a CUDA device; without an index, on the current one."""
        self._device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self._stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @override
    def page_locked(self, num_bytes: int) -> torch.Tensor:
        with torch.cuda.device(self._device):  # else a rank takes memory of the first device, too
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    @override
    def send(self, data: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        with torch.cuda.stream(self._stream):
            return data.to(self._device, non_blocking=True), self._stream.record_event()

    @override
    def receive(self, data: torch.Tensor, mark: Any) -> None:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(mark)
        data.record_stream(stream)

    @override
    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor's place in the buffer."""

    start: int
    stop: int
    dtype: torch.dtype
    shape: torch.Size

    def view(self, data: torch.Tensor) -> torch.Tensor:
        return data[self.start : self.stop].view(self.dtype).view(self.shape)


class _Views:
    """The tensors of a batch in its buffer; nested ones that shared their offsets share them here too."""

    def __init__(self, data: torch.Tensor) -> None:
        self._data = data
        self._offsets: dict[_Piece, torch.Tensor] = {}

    def of(self, place: _Piece | _Lists) -> torch.Tensor:
        if isinstance(place, _Piece):
            return place.view(self._data)
        if place.offsets not in self._offsets:
            self._offsets[place.offsets] = place.offsets.view(self._data)
        return torch.nested.nested_tensor_from_jagged(
            place.values.view(self._data),
            offsets=self._offsets[place.offsets],
            min_seqlen=place.shortest,
            max_seqlen=place.longest,
        )


@dataclass(frozen=True, slots=True)
class _Lists:
    """A nested tensor's values and offsets in the buffer, and its shortest and longest list where it knows them."""

    values: _Piece
    offsets: _Piece
    shortest: int | None
    longest: int | None


@dataclass(frozen=True, slots=True)
class _Odd:
    """A tensor that stays where it is until it is handed over."""

    tensor: torch.Tensor


class _Joined:
    """Finds a place for each tensor of a batch."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._placed: list[tuple[_Piece, torch.Tensor]] = []
        self._offsets: dict[int, _Piece] = {}
        """Where offsets are, by the id of their tensor, which `_placed` keeps."""

    def place(self, tensor: Any) -> _Piece | _Lists | _Odd:
        if tensor.device.type != "cpu" or tensor.requires_grad or tensor.is_quantized:
            return _Odd(tensor)
        if tensor.layout == torch.strided and type(tensor) is torch.Tensor:
            return self._piece(tensor)
        plain = tensor.layout == torch.jagged and getattr(tensor, "_lengths", 0) is None
        if plain and getattr(tensor, "_ragged_idx", 0) == 1:
            known = (_known_length(tensor, "_min_seqlen_tensor"), _known_length(tensor, "_max_seqlen_tensor"))
            offsets = tensor.offsets()
            if id(offsets) not in self._offsets:
                self._offsets[id(offsets)] = self._piece(offsets)
            return _Lists(self._piece(tensor.values()), self._offsets[id(offsets)], *known)
        return _Odd(tensor)

    def _piece(self, tensor: torch.Tensor) -> _Piece:
        start = -(-self.num_bytes // ALIGNMENT) * ALIGNMENT
        self.num_bytes = start + tensor.numel() * tensor.element_size()
        piece = _Piece(start, self.num_bytes, tensor.dtype, tensor.shape)
        self._placed.append((piece, tensor))
        return piece

    def write(self, data: torch.Tensor) -> None:
        for piece, tensor in self._placed:
            piece.view(data).copy_(tensor)


def _known_length(tensor: torch.Tensor, name: str) -> int | None:
    """Return a length that a nested tensor knows without looking at its offsets; torch keeps it as a shape."""
    kept: torch.Tensor | None = getattr(tensor, name, None)
    if kept is None:
        return None
    return kept.shape[0]


class _Slot:
    """A page-locked buffer that is used again, once what was in it has crossed."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._crossed: Mark | None = None

    def send(self, joined: _Joined, copier: Copier) -> tuple[torch.Tensor, Mark]:
        if self._crossed is not None:
            self._crossed.synchronize()
        if self._memory is None or self._memory.numel() < joined.num_bytes:
            self._memory = copier.page_locked(joined.num_bytes + joined.num_bytes // 4)
        data = self._memory[: joined.num_bytes]
        joined.write(data)
        sent, self._crossed = copier.send(data)
        return sent, self._crossed


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch on its way: as it was, but with places instead of tensors."""

    batch: Any
    data: torch.Tensor
    mark: Mark


class BatchMover(Iterator[Any]):
    """Hands over batches on the device, and has those that follow copied meanwhile.

    An error of the batches comes where its batch would have.
    """

    def __init__(self, batches: Iterator[Any], copier: Copier, ahead: int = BATCHES_AHEAD) -> None:
        """Begin with the first batch that is asked for.

        Args:
            ahead: batches that are copied ahead, at least 1; each takes its bytes on the device.
        """
        self._batches = batches
        self._copier = copier
        self._ahead = ahead
        self._slots = deque(_Slot() for _ in range(ahead + 1))
        self._sent: deque[_Sent] = deque()
        self._end: Exception | None = None

    def __next__(self) -> Any:
        """Return the next batch."""
        while self._end is None and len(self._sent) <= self._ahead:
            self._send_next()
        if not self._sent:
            end, self._end = self._end, StopIteration()
            raise end or StopIteration
        sent = self._sent.popleft()
        self._copier.receive(sent.data, sent.mark)
        moved = mapped(sent.batch, _Piece | _Lists, _Views(sent.data).of)
        return mapped(moved, _Odd, lambda odd: self._copier.move(odd.tensor))

    def _send_next(self) -> None:
        try:
            batch = next(self._batches)
        except Exception as error:  # noqa: BLE001 it is raised when the batches before it are taken
            self._end = error
            return
        joined = _Joined()
        batch = mapped(batch, torch.Tensor, joined.place)
        self._slots.rotate(-1)
        self._sent.append(_Sent(batch, *self._slots[0].send(joined, self._copier)))


def check_device(device: Any) -> None:
    """Refuse a device that is not there.

    Raises:
        ConfigError: torch sees no such device.
    """
    target = torch.device(device)
    if target.type == "cuda" and (target.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device={device!r} must be one of the {count} CUDA devices that torch sees here")


def moved(batches: Iterator[Any], device: Any) -> Iterator[Any]:
    """Move the tensors of batches, also in dicts, lists and tuples, to a device.

    For a CUDA device, `BATCHES_AHEAD` batches are read and copied ahead.
    """
    target = torch.device(device)
    if target.type == "cuda":
        return BatchMover(batches, CudaCopier(target))
    return map(partial(mapped, kind=torch.Tensor, function=lambda tensor: tensor.to(target)), batches)


def mapped(value: Any, kind: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to every instance of a type, inside dicts, lists and tuples too.

    >>> mapped({"a": 1, "b": ["x", (2, None)]}, int, lambda number: -number)
    {'a': -1, 'b': ['x', (-2, None)]}
    """
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        return {key: mapped(entry, kind, function) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        entries = [mapped(entry, kind, function) for entry in value]
        if hasattr(value, "_fields"):
            return type(value)(*entries)
        return type(value)(entries)
    return value
