"""How much is done at a time, in one record: tests make these sizes small, so that small tables reach every path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of steps, in bytes, rows or values, that are no options.

    They bound memory and set the speed, and no batch depends on them. The exceptions come last: limits, where row
    groups end, and waits.
    """

    # planning/
    numbers_at_once: int = 1 << 20
    """Numbers that are summed together. This many numbers of 27 bits still add up exactly in float64, and no more."""

    lookups_at_once: int = 1 << 14
    """Documents, or tokens, whose blocks of lengths are looked through together."""

    lengths_at_once: int = 1 << 20
    """Documents whose lengths are widened together."""

    # planning/, read/ and store/, of files that are far away
    far_gap_bytes: int = 256 * 1024
    """Unneeded bytes that are read between two ranges to avoid a second request: a few milliseconds of a fast line."""

    far_request_bytes: int = 8 * 1024 * 1024
    """The most bytes of one request."""

    # read/
    json_block_bytes: int = 4 << 20
    """Bytes of lines that are parsed together, about, which bounds the memory of a reader."""

    sparse_values: int = 1 << 24
    """Values of JSON lines that are parsed together, beyond one a byte of text: each key becomes one in every line."""

    dictionary_bytes: int = 1 << 25
    """Bytes at most, about, that texts come to at once: few bytes of a file may stand for any number. What may come to
    more is decoded in parts of a quarter."""

    parquet_values: int = 1 << 19
    """Values that one call of pyarrow decodes where a row group is read whole: 2 to 4 MiB of numbers."""

    live_rows_ahead: int = 1 << 22
    """Rows of which a bit is held each: threads would wait for one another at each of many small steps."""

    # store/
    store_chunk_bytes: int = 32 * 1024 * 1024
    """Record bytes that a chunk of a row store aims at."""

    window_rows: int = 4096
    """Rows of the first window of a row store that memory does not hold: few rows are ready sooner than many."""

    list_indices: int = 1 << 20
    """Values of lists whose indices are in memory at a time."""

    record_block_bytes: int = 1 << 19
    """Bytes of records that are filled before they are written: with the same values by column they fit a core's
    second cache."""

    record_block_rows: int = 64
    """Rows of such blocks at the least, however wide they are."""

    chunk_word_bytes: int = 1 << 26
    """Bytes of distinct strings in the batches of a chunk beyond which a column is kept as it is."""

    store_word_bytes: int = 1 << 28
    """The same for the dictionaries of all chunks of a store: a rank that reads a store at a URL holds the strings."""

    # engine/
    open_files: int = 64
    """Token files that are kept open where they are read in any order."""

    # batching/
    cut_objects: int = 340
    """Objects of batches that are cut together, about: enough that each costs little, and of two lanes fewer than the
    700 that make Python collect garbage."""

    kept_integers: int = 1 << 21
    """Tokens of a batch up to which their numbers are kept for the next batches; those of all powers of two take
    32 MiB."""

    # engine/ and the loader
    gather_rows: int = 65_536
    """Rows that a lane takes from a row store at once."""

    joined_values: int = 1 << 16
    """Distinct values of a file that are joined whenever so many have come beyond those that were joined before."""

    watched_batches: int = 256
    """Batches between two checks of who waits: training, or its data."""

    # Limits: beyond them data is refused, or described in another way.
    columns: int = 1 << 16
    """Columns of a batch at most: each costs some tens of microseconds whenever a loader is made, however few rows it
    has."""

    csv_block_bytes: int = 1 << 20
    """Bytes of a row of CSV at most; pyarrow reads up to 32 such blocks ahead of decoding: 32 MiB of text a reader."""

    json_line_bytes: int = 1 << 28
    """Bytes of a JSON line at most: parsing takes some four times as many, and few bytes of a compressed file may be a
    line of any length."""

    inference_bytes: int = 1 << 30
    """Bytes of a text file whose types are guessed: it is parsed whole in memory, and a larger one refused."""

    orc_footer_bytes: int = 64 << 20
    """Bytes of an ORC footer at most, decompressed: it holds the least and the greatest text of each column, whole."""

    json_levels: int = 200
    """Objects and arrays of JSON inside of one another: parsers call themselves for each, and would end the process.
    A nested column takes three levels of a schema in JSON."""

    catalog_answer_bytes: int = 256 << 20
    """Bytes of an answer of a catalog at most, decompressed; and of the pages of a listing of its names together."""

    catalog_pages: int = 1000
    """Pages of such a listing."""

    type_levels: int = 64
    """Types inside of one another in a column, encodings included: as many as Arrow's messages may have."""

    list_values: int = 1 << 32
    """Values that a list of a row store must have fewer of: its length takes four bytes."""

    balanced_classes: int = 1 << 16
    """Distinct values of a column that draws are balanced over."""

    distinct_values: int = 1 << 16
    """Distinct values up to which quantiles are exact."""

    answer_bytes: int = 64 << 20
    """Bytes of a page of a listing at most, and of a page of the web that is one: a page of S3 has a few MiB."""

    whole_file_bytes: int = 1 << 30
    """Bytes of a file at most that is read whole from a store: metadata, lists of files, deletes, manifests."""

    listed_files: int = 1 << 24
    """Files and folders of a listing at most; each takes some 0.5 KB of memory."""

    pages_without_files: int = 1 << 12
    """Pages of a listing, or folders of a file system, at most that come in a row and name no file."""

    # Where row groups end: the order of rows depends on it, and what files contain.
    held_group_bytes: int = 1 << 20
    """Bytes of the row groups of a table in memory, about."""

    text_batch_rows: int = 256
    """Texts that a tokenizer takes at once: enough to keep it busy, and few enough where they are books. No row group
    ends inside of them, so that the number is part of the format of token tables."""

    text_group_tokens: int = 1 << 22
    """Tokens from which on a row group of a token table ends, at the end of a batch."""

    # Waits: nothing depends on them but when something is said or done.
    progress_s: float = 0.1
    """From one drawing of a progress bar to the next."""

    late_s: float = 0.05
    """A request is late once it has taken at least this many seconds longer than the median of its peers."""

    first_wait_s: float = 0.1
    """The longest wait before the second try of a request; it doubles before each further one."""

    longest_wait_s: float = 8.0
    """The longest wait between two tries."""

    catalog_answer_s: float = 300.0
    """Seconds within which a catalog's whole answer must have come, as long as some of it comes now and then."""

    names_s: float = 20.0
    """Seconds in which a catalog lists its names, to say which are like the one that it lacks."""

    answer_s: float = 60.0
    """Seconds that a whole answer of a store may take, beyond those that its bytes take at the least rate."""

    least_bytes_per_s: int = 1 << 14
    """The least rate: an answer that comes slower is given up, and asked for again while `retry_seconds` last."""

    store_warning_s: float = 5.0
    """Seconds after which the caller is warned of a store that has served no request."""

    look_again_s: float = 0.1
    """Seconds after which a process that waits for others to build checks again."""

    lease_beat_s: float = 2.0
    """Seconds between two signs of life of a process that builds a part of a row store."""

    lease_s: float = 30.0
    """Seconds without such a sign after which another process takes the part over."""

    looks_until_warning: int = 20
    """Checks after which a builder that waits for other processes logs that it waits."""

    exclusions_s: float = 10.0
    """Seconds that a rank waits at the start of an epoch for the others to start it, as its first step would anyway."""


_in_force = Sizes()


def sizes() -> Sizes:
    """Return the sizes in force: the defaults, except inside of `small_sizes`."""
    return _in_force


@contextmanager
def small_sizes(**changes: Any) -> Iterator[Sizes]:
    """Set sizes for a block of a test, in all threads of this process, and restore them at its end.

    Processes that are forked inside the block inherit them. Processes that are started anew have the defaults. What was
    made of a size keeps it: a loader that the block opens has its sizes after it, where it reads them when it is made.

    Args:
        changes: fields of `Sizes`, by name.

    Raises:
        TypeError: there is no size of this name.

    >>> with small_sizes(gather_rows=12):
    ...     sizes().gather_rows
    12
    >>> sizes().gather_rows
    65536
    """
    global _in_force  # noqa: PLW0603 - the sizes of the process
    before = _in_force
    _in_force = replace(before, **changes)
    try:
        yield _in_force
    finally:
        _in_force = before
