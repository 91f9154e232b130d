"""How much is read at a time, and how much crosses a process at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_table_loader.arrow.buffers import ROUNDED_PARTS
from torch_table_loader.option_values import DEFAULT_MEMORY
from torch_table_loader.planning.interleaving import ROWS_OF_A_PIECE
from torch_table_loader.planning.ranks import Mixing
from torch_table_loader.planning.window_sizes import GROWTH, WindowSizes
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.options import LoaderOptions

CHUNK_BYTES = DEFAULT_MEMORY // 128
"""Decoded bytes that a lane aims at with each read of a part of a row group, where a rank has no less memory."""

_WHOLE_CHUNKS = 4
"""Such reads that a row group is at most if it is read whole, which costs less than reading its parts."""

CHUNK_BATCHES = 4
"""Batches of a read where they are larger than that, and row groups too, so that few are joined over reads."""

_SMALL_READ_SHARE = 4
"""The part of such bytes, one of so many, that a read has at least where batches are joined of small row groups."""

LANE_COPIES = 3
"""Times that a lane may hold its rows: as they were read, as they are joined, and as they wait in batches. Most of
them are copied once more where they turn in one window."""

BLOCK_BYTES = CHUNK_BYTES
"""Bytes of a block that crosses a process, where a batch is smaller, and a rank has no less memory: those of a read,
since each block has a cost of its own in both processes."""

BLOCKS_AHEAD = 2
"""Blocks of a lane that wait to be taken, where the caller set no `prefetch_batches`.

With one, a thread would rest until the consumer has woken and taken it.
"""

FIRST_BATCHES = 4
"""Batches of a short run with which a dealt window begins: the trainer may hold so many batches of the one before."""

LENT_SLOTS = 2
"""Slots of a worker that the trainer's batches may lie in: of the block that is being taken, and of the one before."""

SPARE_SLOTS = 2 + LENT_SLOTS
"""Slots of shared memory beside those of blocks that wait: one is written, one copied out, others are lent."""

_MIXING_SHARE = 8
"""The part of a rank's memory, one of so many, that two windows of mixed rows have. Others wait beside them."""

_WINDOW_SHARE = 12
"""The same of a window of all lanes together, where each lane has its own: several wait there too."""

MIXED_WINDOWS = 20
"""Windows of an epoch of a rank, at least, where it has enough rows for as many."""

LEAST_MIXED_BATCHES = 16
"""Batches of a window, at least, and of the first one, where windows grow."""

MIXED_SPLITS = 64
"""Splits of a table that is mixed, at least, as far as row groups allow: ranks have several for each that is open."""

OPEN_SPLITS = 16
"""Splits that a rank reads side by side where it mixes them, if a part of its memory is enough for them."""

LEAST_OPEN_SPLITS = 4
"""Splits that are read side by side, whatever they hold."""

_OPEN_SHARE = 4
"""The part of a rank's memory, one of so many, that the splits may hold that are read side by side."""

_GATHER_BYTES = 2 * CHUNK_BYTES


def _within(num_bytes: int, memory: int) -> int:
    """Return fewer bytes in proportion where a rank has less memory than the default."""
    return num_bytes * min(memory, DEFAULT_MEMORY) // DEFAULT_MEMORY


def rows_of_a_read(row_bytes: int, batch_size: int, group_rows: int = 0, memory: int = DEFAULT_MEMORY) -> int:
    """Size a read: whole row groups, if they are large enough and no larger than four parts of one.

    The rows of the largest row group are 0 if unknown.

    Elsewhere a whole number of batches, near `CHUNK_BYTES`, or `CHUNK_BATCHES` of them where they are larger. But a
    batch that is larger than row groups of less than that is joined anyway: they are read one by one.

    Args:
        memory: of a rank; reads are smaller where it is less than the default.

    >>> rows_of_a_read(64, 8192, 100_000), rows_of_a_read(64, 8192, 10**6), rows_of_a_read(2000, 8192, 12_500)
    (100000, 131072, 32768)
    >>> rows_of_a_read(3300, 8192, 1000), rows_of_a_read(3300, 8192, 10)
    (1000, 635)
    >>> rows_of_a_read(64, 512, 100_000, 16 << 20)
    2048
    """
    chunk = _within(CHUNK_BYTES, memory)
    if CHUNK_BATCHES * batch_size <= group_rows <= _WHOLE_CHUNKS * chunk // row_bytes:
        return group_rows
    if 0 < group_rows * row_bytes <= chunk < batch_size * row_bytes:
        return max(group_rows, chunk // _SMALL_READ_SHARE // row_bytes)
    most = 8 * chunk // row_bytes
    aimed = max(chunk // row_bytes, min(CHUNK_BATCHES * batch_size, most), 1)
    return -(-aimed // batch_size) * batch_size


def rows_of_an_open_read(
    row_bytes: int, rows: int, piece: int, group_rows: int, splits: int, memory: int = DEFAULT_MEMORY
) -> int:
    """Size the reads of splits that are open side by side: no more than they are asked for, or is worth a call.

    Args:
        rows: of a read of one split alone; whole row groups stay whole.
        piece: rows of a split in a window.
        memory: of a rank.

    >>> rows_of_an_open_read(80, 40_000, 1000, 400, 16), rows_of_an_open_read(80, 40_000, 1000, 20_000, 16)
    (6553, 20000)
    >>> rows_of_an_open_read(80, 100_000, 20_000, 10**6, 4)
    26214
    """
    least = _within(CHUNK_BYTES, memory) // splits // row_bytes
    if group_rows <= rows:
        least = max(least, group_rows)
    return min(rows, max(piece, least))


def mixing_of(
    row_bytes: int, rows: int, batch_size: int, window: int | None, held: int, memory: int = DEFAULT_MEMORY
) -> Mixing:
    """Size how a rank of so many rows mixes its splits; `window` is what the caller asked for, in rows.

    A window has at most half of what its rank's memory has for mixing, since one is filled while another is taken, and
    at most a part of the rank's rows, since a resume reads it again. Windows grow where many follow those that do.

    Args:
        held: what an open split holds; see `Table.open_bytes`.
        memory: of a rank.

    >>> mixing_of(64, 10**6, 256, None, 4 << 20), mixing_of(64, 10**6, 256, 5000, 1 << 30)
    (Mixing(rows=50000, splits=16, first=4096), Mixing(rows=5000, splits=4, first=None))
    >>> mixing_of(64, 10**6, 256, None, 4 << 20, 64 << 20)
    Mixing(rows=50000, splits=4, first=4096)
    """
    splits = max(LEAST_OPEN_SPLITS, min(OPEN_SPLITS, memory // _OPEN_SHARE // max(1, held)))
    if window is None:
        window = _mixed_window(row_bytes, rows, batch_size, memory)
    first = max(LEAST_MIXED_BATCHES * batch_size, splits * ROWS_OF_A_PIECE)
    if GROWTH * first <= window <= rows // MIXED_WINDOWS:
        return Mixing(window, splits, first)
    return Mixing(window, splits)


def _mixed_window(row_bytes: int, rows: int, batch_size: int, memory: int) -> int:
    """Size a window so that two of them, as memory is rounded, are within a part of the memory of a rank.

    >>> _mixed_window(160, 10**7, 8192, 1 << 30), _mixed_window(160, 10**6, 8192, 1 << 30)
    (384615, 131072)
    """
    part = max(rows // MIXED_WINDOWS, LEAST_MIXED_BATCHES * batch_size)
    most = memory * ROUNDED_PARTS // ((ROUNDED_PARTS + 1) * 2 * _MIXING_SHARE * row_bytes)
    most = max(1, most // batch_size) * batch_size
    if WindowSizes.growing(rows, part, part, batch_size).rows <= most:
        return part
    return max(1, rows // -(-rows // most))


def reads_ahead(threads: int) -> int:
    """Return how many reads beyond the one that is needed are begun by threads that read splits side by side: two wait.

    >>> reads_ahead(2), reads_ahead(0)
    (4, 0)
    """
    if threads:
        return threads + 2
    return 0


def window_of_a_lane(row_bytes: int, lanes: int, memory: int) -> int:
    """Size the windows of lanes that are shuffled each alone.

    >>> window_of_a_lane(64, 4, 1 << 30)
    349525
    """
    return max(1, memory // (_WINDOW_SHARE * lanes * row_bytes))


def batches_of_sequences(sequence_bytes: int, batch_size: int) -> int:
    """Size what is made of packed rows at once: tensors take several times what the tokens take.

    >>> batches_of_sequences(4096 * 28, 8), batches_of_sequences(1 << 20, 64)
    (9, 1)
    """
    return max(1, CHUNK_BYTES // (sequence_bytes * batch_size))


def batches_in_flight(options: LoaderOptions, at_once: int, blocks: tuple[int, int], window: int | None = None) -> int:
    """Bound the batches of packed rows that a lane holds; see `rows_in_flight`.

    Args:
        at_once: batches that are made together.
        window: those of a window, where splits are mixed.
    """
    if options.processes:
        block_batches, blocks_ahead = blocks
        return at_once + (2 + (blocks_ahead + SPARE_SLOTS) * 5 // 4) * block_batches
    given = options.prefetch_batches
    if given is not None:
        return 2 * min(given, at_once) + given
    if window is not None:
        return _dealt_in_flight(window, at_once)
    return (2 + BLOCKS_AHEAD) * at_once


def _dealt_in_flight(window: int, at_once: int) -> int:
    """Bound the batches of blocks that follow one another, where windows of so many batches begin with short blocks.

    >>> _dealt_in_flight(64, 36), _dealt_in_flight(1000, 36)
    (64, 144)
    """
    short = [min(FIRST_BATCHES, at_once)] * BLOCKS_AHEAD
    whole, last = divmod(max(0, window - sum(short)), at_once)
    blocks = [*short, *[at_once] * whole, last]
    held = 2 + BLOCKS_AHEAD
    around = blocks * (1 + -(-held // len(blocks)))
    return max(sum(around[at : at + held]) for at in range(len(blocks)))


def batches_of_a_gather(row_bytes: int, batch_size: int) -> int:
    """Size what a lane takes from a row store at once.

    >>> batches_of_a_gather(64, 1024), batches_of_a_gather(64, 10**6)
    (64, 1)
    """
    return max(1, min(sizes().gather_rows, _GATHER_BYTES // row_bytes) // batch_size)


def blocks_of_a_process(
    row_bytes: int, batch_size: int, prefetch_batches: int | None, *, collated: bool, memory: int = DEFAULT_MEMORY
) -> tuple[int, int]:
    """Return how many batches cross a process together, and how many such blocks of a lane wait to be taken.

    A block has about `BLOCK_BYTES`, for every lane alike, so that none runs ahead of the others. Batches
    that the caller's functions made (`collated`) cross one by one.

    >>> blocks_of_a_process(64, 8192, None, collated=False), blocks_of_a_process(64, 8192, 4, collated=True)
    ((16, 2), (1, 4))
    """
    batches = 1
    if not collated:
        batches = max(1, _within(BLOCK_BYTES, memory) // (row_bytes * batch_size))
    if prefetch_batches is None:
        return batches, BLOCKS_AHEAD
    batches = min(batches, prefetch_batches)
    return batches, -(-prefetch_batches // batches)


def rows_in_flight(options: LoaderOptions, read_rows: int, blocks: tuple[int, int]) -> int:
    """Bound the rows that a lane holds, without shuffle windows.

    In threads: one read that is being made or cut, one that is being taken, the one before it, of which the trainer has
    the last batch, and those that the batches which wait are views of. From processes: one read, the one before it, of
    which a block still has rows, that block, the slots that blocks cross in (with a quarter to spare), and one that was
    copied out.

    Args:
        blocks: batches of a block that crosses a process, and how many blocks of a lane wait.
    """
    size = options.most_rows
    if options.processes:
        block_batches, blocks_ahead = blocks
        slots = (blocks_ahead + SPARE_SLOTS) * 5 // 4
        return 2 * read_rows + (2 + slots) * block_batches * size
    waiting = BLOCKS_AHEAD
    if options.prefetch_batches is not None:
        waiting = -(-options.prefetch_batches * size // read_rows)
    return (3 + waiting) * read_rows


def mixed_rows_in_flight(options: LoaderOptions, window: int, copies: int, blocks: tuple[int, int]) -> int:
    """Bound the rows of windows that a lane holds where it mixes splits.

    One window is being taken, and the next one is filled; batches that the trainer asked for beyond that wait.

    Args:
        copies: of a window, while it is filled.
        blocks: batches of a block that crosses a process, and how many blocks of a lane wait.
    """
    held = (1 + copies) * (window + window // ROUNDED_PARTS)
    if not options.processes:
        return held
    block_batches, blocks_ahead = blocks
    return held + (2 + (blocks_ahead + SPARE_SLOTS) * 5 // 4) * block_batches * options.most_rows


def collated_ahead(options: LoaderOptions, lanes: int) -> int:
    """Bound the results of the caller's functions that wait to be taken, over all lanes."""
    if not options.calls_functions or options.num_workers == 0:
        return 0
    return lanes * (options.prefetch_batches or BLOCKS_AHEAD)
