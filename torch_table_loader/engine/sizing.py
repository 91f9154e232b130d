"""How much is read at a time, and how much crosses a process at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_table_loader.arrow.buffers import ROUNDED_PARTS
from torch_table_loader.planning.ranks import Mixing
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.options import LoaderOptions

CHUNK_BYTES = 8 * 1024 * 1024
"""Decoded bytes that a lane aims at with each read of a part of a row group."""

WHOLE_BYTES = 4 * CHUNK_BYTES
"""Decoded bytes up to which a lane reads a row group whole, which costs less than reading its parts."""

CHUNK_BATCHES = 4
"""Batches of a read where they are larger than that, so that few batches are joined over reads."""

LANE_COPIES = 3
"""Times that a lane may hold its rows: as they were read, as they are joined, and as they wait in batches."""

BLOCK_BYTES = 4 * 1024 * 1024
"""Bytes of a block that crosses a process, where a batch is smaller."""

BLOCKS_AHEAD = 2
"""Blocks of a lane that wait to be taken, where the caller set no `prefetch_batches`.

With one, a thread would rest until the consumer has woken and taken it.
"""

LENT_SLOTS = 2
"""Slots of a worker that the trainer's batches may lie in: of the block that is being taken, and of the one before."""

SPARE_SLOTS = 2 + LENT_SLOTS
"""Slots of shared memory beside those of blocks that wait: one is written, one copied out, others are lent."""

MIXING_BYTES = 128 * 1024 * 1024
"""Decoded bytes of a rank's rows that are held for mixing."""

MIXED_WINDOWS = 12
"""Windows of an epoch of a rank, at least, where it has enough rows for as many."""

LEAST_MIXED_BATCHES = 16
"""Batches of a window, at least."""

MIXED_SPLITS = 64
"""Splits of a table that is mixed, at least, as far as row groups allow: ranks have several for each that is open."""

OPEN_SPLITS = 16
"""Splits that a rank reads side by side where it mixes them, if `OPEN_BYTES` are enough for them."""

LEAST_OPEN_SPLITS = 4
"""Splits that are read side by side, whatever they hold."""

OPEN_BYTES = 256 * 1024 * 1024
"""About what the splits that a rank reads side by side may hold together."""

PAGES_BYTES = 3 * 1024 * 1024
"""About what an open column holds beside its rows: a dictionary, and a page before and after decompression."""

_GATHER_BYTES = 2 * CHUNK_BYTES


def rows_of_a_read(row_bytes: int, batch_size: int, group_rows: int = 0) -> int:
    """Size a read: whole row groups, if they are large enough and no larger than `WHOLE_BYTES`.

    The rows of the largest row group are 0 if unknown.

    Elsewhere a whole number of batches, near `CHUNK_BYTES`, or `CHUNK_BATCHES` of them where they are larger.

    >>> rows_of_a_read(64, 8192, 100_000), rows_of_a_read(64, 8192, 10**6), rows_of_a_read(2000, 8192, 12_500)
    (100000, 131072, 32768)
    """
    if CHUNK_BATCHES * batch_size <= group_rows <= WHOLE_BYTES // row_bytes:
        return group_rows
    most = 8 * CHUNK_BYTES // row_bytes
    aimed = max(CHUNK_BYTES // row_bytes, min(CHUNK_BATCHES * batch_size, most), 1)
    return -(-aimed // batch_size) * batch_size


def open_bytes(row_bytes: int, group_rows: int, read_rows: int, columns: int) -> int:
    """Return what an open row group holds: all its rows if it is read whole, else a part of them, and pages.

    >>> open_bytes(64, 100_000, 100_000, 8), open_bytes(64, 10**6, 100_000, 8)
    (6400000, 31565824)
    """
    return row_bytes * min(read_rows, group_rows) + page_bytes(row_bytes, group_rows, read_rows, columns)


def page_bytes(row_bytes: int, group_rows: int, read_rows: int, columns: int) -> int:
    """Return what an open row group holds beside the rows that were read of it; nothing if it is read whole.

    >>> page_bytes(64, 100_000, 100_000, 8), page_bytes(64, 10**6, 100_000, 8)
    (0, 25165824)
    """
    if read_rows >= group_rows:
        return 0
    return min(PAGES_BYTES * columns, 2 * row_bytes * group_rows)


def mixing_of(row_bytes: int, rows: int, batch_size: int, window: int | None, held: int) -> Mixing:
    """Size how a rank of so many rows mixes its splits; `window` is what the caller asked for, in rows.

    A window has at most half of `MIXING_BYTES`, since one is filled while another is taken, and at most a part of the
    rank's rows, since a resume reads it again. In threads, full windows wait as well: see `rows_in_flight`.

    Args:
        held: what an open split holds; see `open_bytes`.

    >>> mixing_of(64, 10**6, 1024, None, 4 << 20), mixing_of(64, 10**6, 1024, 5000, 1 << 30)
    (Mixing(rows=83333, splits=16), Mixing(rows=5000, splits=4))
    """
    splits = max(LEAST_OPEN_SPLITS, min(OPEN_SPLITS, OPEN_BYTES // max(1, held)))
    if window is None:
        part = max(rows // MIXED_WINDOWS, LEAST_MIXED_BATCHES * batch_size)
        window = max(1, min(MIXING_BYTES // (2 * row_bytes), part))
    return Mixing(window, splits)


def reads_ahead(threads: int) -> int:
    """Size how many reads threads begin beyond what is needed, where they read splits side by side: two wait.

    >>> reads_ahead(2), reads_ahead(0)
    (4, 0)
    """
    return threads + 2 if threads else 0


def batches_of_sequences(sequence_bytes: int, batch_size: int) -> int:
    """Size what is made of packed rows at once: tensors take several times what the tokens take.

    >>> batches_of_sequences(4096 * 28, 8), batches_of_sequences(1 << 20, 64)
    (9, 1)
    """
    return max(1, CHUNK_BYTES // (sequence_bytes * batch_size))


def batches_in_flight(options: LoaderOptions, at_once: int, blocks: tuple[int, int]) -> int:
    """Bound the batches of packed rows that a lane holds; see `rows_in_flight`.

    Args:
        at_once: batches that are made together.
    """
    if options.processes:
        block_batches, blocks_ahead = blocks
        return at_once + (2 + (blocks_ahead + SPARE_SLOTS) * 5 // 4) * block_batches
    given = options.prefetch_batches
    return (2 + BLOCKS_AHEAD) * at_once if given is None else 2 * min(given, at_once) + given


def batches_of_a_gather(row_bytes: int, batch_size: int) -> int:
    """Size what a lane takes from a row store at once.

    >>> batches_of_a_gather(64, 1024), batches_of_a_gather(64, 10**6)
    (64, 1)
    """
    return max(1, min(sizes().gather_rows, _GATHER_BYTES // row_bytes) // batch_size)


def blocks_of_a_process(
    row_bytes: int, batch_size: int, prefetch_batches: int | None, *, collated: bool
) -> tuple[int, int]:
    """Return how many batches cross a process together, and how many such blocks of a lane wait to be taken.

    A block has about `BLOCK_BYTES`, for every lane alike, so that none runs ahead of the others. Batches
    that the caller's functions made (`collated`) cross one by one.

    >>> blocks_of_a_process(64, 8192, None, collated=False), blocks_of_a_process(64, 8192, 4, collated=True)
    ((8, 2), (1, 4))
    """
    batches = 1 if collated else max(1, BLOCK_BYTES // (row_bytes * batch_size))
    if prefetch_batches is None:
        return batches, BLOCKS_AHEAD
    batches = min(batches, prefetch_batches)
    return batches, -(-prefetch_batches // batches)


def rows_in_flight(options: LoaderOptions, read_rows: int, blocks: tuple[int, int]) -> int:
    """Bound the rows that a lane holds, without shuffle windows.

    In threads: one read that is being made or cut, one that is being taken, and those that the batches which wait are
    views of. From processes: one read, the block that it fills, the slots that blocks cross in (with a quarter to
    spare), and one that was copied out.

    Args:
        blocks: batches of a block that crosses a process, and how many blocks of a lane wait.
    """
    size = options.most_rows
    if options.processes:
        block_batches, blocks_ahead = blocks
        slots = (blocks_ahead + SPARE_SLOTS) * 5 // 4
        return read_rows + (2 + slots) * block_batches * size
    given = options.prefetch_batches
    waiting = BLOCKS_AHEAD if given is None else -(-given * size // read_rows)
    return (2 + waiting) * read_rows


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
    return held + (2 + (blocks_ahead + SPARE_SLOTS) * 5 // 4) * block_batches * options.batch_size


def collated_ahead(options: LoaderOptions, lanes: int) -> int:
    """Bound the results of the caller's functions that wait to be taken, over all lanes."""
    if not options.calls_functions or options.num_workers == 0:
        return 0
    return lanes * (options.prefetch_batches or BLOCKS_AHEAD)
