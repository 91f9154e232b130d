"""Faults that `tools.plant` puts into the package, by the promise that each breaks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of the package that breaks a promise.

    Args:
        promise: its number in docs/design.md.
        name: what goes wrong.
        file: in the package.
        old: text that the file contains once.
        new: what takes its place.
        tests: files or folders of tests that should see it, and options of pytest.
    """

    promise: int
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_EXACTLY_ONCE = (
    "tests/laws/test_exactly_once.py",
    "tests/torch/test_exactly_once.py",
    "tests/torch/test_every_mode.py",
)
_STATES = ("tests/torch/test_state.py", "tests/torch/test_every_mode_states.py", "tests/laws/test_any_size_of_job.py")
_MIXTURES = ("tests/laws/test_mixture.py", "tests/torch/test_mixed.py", "tests/torch/test_every_mode.py")
_ICEBERG = ("tests/rooms/test_iceberg_deletes.py", "tests/torch/test_iceberg_laws.py", "tests/torch/test_every_mode.py")
_PACKING = ("tests/laws/test_packing.py", "tests/torch/test_packing.py", "tests/torch/test_packed_items.py")

FAULTS = (
    Fault(
        *(1, "a rank misses the last split", "planning/ranks.py"),
        "own = order.take(np.arange(rank, len(order), ranks))",
        "own = order.take(np.arange(rank, max(rank, len(order) - 1), ranks))",
        _EXACTLY_ONCE,
    ),
    Fault(
        *(1, "a rank that is balanced drops a row that moves", "planning/ranks.py"),
        "slice(int(target[donor]), int(before[donor]))",
        "slice(int(target[donor]) + 1, int(before[donor]))",
        (*_EXACTLY_ONCE, "tests/rooms/test_engine_even_ranks.py"),
    ),
    Fault(
        *(1, "ranks of row mode take the same rows", "planning/global_batches.py"),
        "np.arange(first + self.rank, first + self.remainder, ranks, dtype=np.int64)",
        "np.arange(first, first + self.remainder, ranks, dtype=np.int64)",
        ("tests/laws/test_global_batches.py", "tests/torch/test_rows.py", "tests/torch/test_every_mode.py"),
    ),
    Fault(
        *(1, "padding of row mode is not marked", "planning/global_batches.py"),
        "return StepPlaces(places, real)",
        "return StepPlaces(places, share)",
        ("tests/laws/test_global_batches.py", "tests/laws/test_padding.py", "tests/torch/test_every_mode.py"),
    ),
    Fault(
        *(1, "padding of streams is not marked", "planning/lanes.py"),
        "padded_from = min(max(tails.num_rows - first, 0), rows.num_rows)",
        "padded_from = rows.num_rows",
        ("tests/laws/test_padding.py", "tests/laws/test_exactly_once.py", "tests/torch/test_every_mode.py"),
    ),
    Fault(
        *(1, "excluded rows still come", "planning/exclusion.py"),
        'return ranks + np.searchsorted(self._shifts, ranks, side="right")',
        'return ranks + np.searchsorted(self._shifts, ranks, side="left")',
        ("tests/laws/test_exclusion.py", "tests/torch/test_rows.py", "tests/torch/test_every_mode.py"),
    ),
    Fault(
        *(1, "a mixture ends one block early", "planning/mixture.py"),
        "first = self.shares.start + (blocks - 1) * self.block_rows\n        source",
        "first = self.shares.start + max(0, blocks - 2) * self.block_rows\n        source",
        _MIXTURES,
    ),
    Fault(
        *(1, "only the first of several position deletes counts", "read/deletes.py"),
        "return parts[0] if len(parts) == 1 else distinct(np.concatenate(parts))",
        "return parts[0]",
        _ICEBERG,
    ),
    Fault(
        *(1, "equality deletes reach rows of their own commit", "source/iceberg/scan.py"),
        "return self.entries[bisect_right(self.numbers, number) :]",
        "return self.entries[bisect_left(self.numbers, number) :]",
        (*_ICEBERG, "tests/rooms/test_iceberg_planning.py", "tests/rooms/test_iceberg_tables.py"),
    ),
    Fault(
        *(1, "position deletes of the same commit do not count", "source/iceberg/scan.py"),
        "return self.entries[bisect_left(self.numbers, number) :]",
        "return self.entries[bisect_right(self.numbers, number) :]",
        (*_ICEBERG, "tests/rooms/test_iceberg_planning.py", "tests/rooms/test_iceberg_tables.py"),
    ),
    Fault(
        *(1, "the maximum of a statistic is exclusive", "read/prune.py"),
        "between = (field >= low) & (field <= high)",
        "between = (field >= low) & (field < high)",
        ("tests/rooms/test_read_prune.py", "tests/rooms/test_iceberg_filters.py", "tests/torch/test_iceberg_laws.py"),
    ),
    Fault(
        *(1, "the minimum of a statistic is exclusive", "read/prune.py"),
        "between = (field >= low) & (field <= high)",
        "between = (field > low) & (field <= high)",
        ("tests/rooms/test_read_prune.py", "tests/rooms/test_iceberg_filters.py", "tests/torch/test_iceberg_laws.py"),
    ),
    Fault(
        *(1, "a window of the permutation walks once too little", "planning/permutation.py"),
        "while outside.size:\n            walking",
        "if outside.size:\n            walking",
        ("tests/laws/test_permutation.py", "tests/torch/test_rows.py", "tests/torch/test_store_at_scale.py"),
    ),
    Fault(
        *(2, "a window's order ignores the epoch", "planning/windows.py"),
        "derive_key(seed, epoch, name)",
        "derive_key(seed, 0, name)",
        ("tests/laws", "tests/torch/test_frozen_order.py", "tests/torch/test_same_batches.py", "-k", "window or order"),
    ),
    Fault(
        *(2, "an epoch's key is the sum of seed and epoch", "planning/keys.py"),
        "fields = (_int_bytes(seed), _int_bytes(epoch),",
        "fields = (_int_bytes(seed + epoch), _int_bytes(0),",
        ("tests/laws/test_permutation.py", "tests/torch/test_frozen_order.py", "tests/laws/test_shuffle_statistics.py"),
    ),
    Fault(
        *(2, "the order of splits depends on the rank", "planning/epoch.py"),
        "permutation = Permutation(len(present), derive_key(seed, epoch, purpose))",
        "permutation = Permutation(len(present), derive_key(seed + len(present), epoch, purpose))",
        ("tests/torch/test_frozen_order.py", "tests/laws/test_growing_tables.py", "tests/torch/test_growing.py"),
    ),
    Fault(
        *(2, "seeds of rows ignore the epoch", "planning/row_seeds.py"),
        'derive_key(seed, epoch, "row seeds")',
        'derive_key(seed, 0, "row seeds")',
        (
            "tests/laws/test_row_seeds.py",
            "tests/torch/test_frozen_order.py",
        ),
    ),
    Fault(
        *(3, "a chunk's rest is lost between batches", "batching/rebatching.py"),
        "        self._carry.add(rows, stop)\n        return ready\n\n    def rest",
        "        self._carry.add(rows, max(stop, rows.num_rows - 1))\n        return ready\n\n    def rest",
        ("tests/laws/test_batching_laws.py", "tests/torch/test_exactly_once.py", "tests/torch/test_every_mode.py"),
    ),
    Fault(
        *(4, "the length counts a short batch under drop_last", "planning/ranks.py"),
        "steps = total // size if topology.drop_last else -(-total // size)",
        "steps = -(-total // size)",
        ("tests/laws/test_exactly_once.py", "tests/torch/test_every_mode.py", "tests/laws/test_padding.py"),
    ),
    Fault(
        *(4, "the tail of row mode is not counted", "planning/global_batches.py"),
        "return self.full_steps + bool(len(self.tail.places))",
        "return self.full_steps + (len(self.tail.places) == self.batch_size)",
        ("tests/laws/test_global_batches.py", "tests/torch/test_rows.py", "tests/torch/test_every_mode.py"),
    ),
    Fault(
        *(5, "samples of a state are counted one step short", "planning/global_batches.py"),
        "return self.start + steps * self.global_batch_size",
        "return self.start + max(0, steps - 1) * self.global_batch_size",
        _STATES,
    ),
    Fault(
        *(5, "a state of a stream forgets the lanes that are ahead", "planning/lanes.py"),
        "            if remaining and count > turns:\n                taken[lane] += 1",
        "            if remaining and count > turns:\n                taken[lane] += 0",
        (*_STATES, "tests/laws/test_exactly_once.py"),
    ),
    Fault(
        *(6, "rows that touch consumed ones come again", "planning/consumption.py"),
        'first = np.searchsorted(gap_stops, begin, side="right")',
        'first = np.searchsorted(gap_stops, begin, side="left") - 1',
        ("tests/laws/test_any_size_of_job.py", "tests/torch/test_rescaling.py", "tests/torch/test_growing.py"),
    ),
    Fault(
        *(6, "the rest of an open window is lost", "planning/consumption.py"),
        "opened.append(OpenWindow(window, ((start, length),)))",
        "opened.append(OpenWindow(window, ((start + 1, length),)))",
        (
            "tests/laws/test_any_size_of_job.py",
            "tests/torch/test_rescaling.py",
            "tests/torch/test_every_mode_states.py",
        ),
    ),
    Fault(
        *(7, "an answer that is too short is taken", "source/retrying.py"),
        "if len(data) != stop - start:",
        "if len(data) > stop - start:",
        ("tests/services/test_source_faults.py", "tests/rooms/test_source_retrying.py"),
    ),
    Fault(
        *(7, "bytes of the disk cache are not compared with their checksum", "fetch/disk_cache.py"),
        "return data if bytes(head) == _HEAD.pack(_MAGIC, digest, num_bytes, _checksum(data)) else None",
        "return data",
        ("tests/rooms/test_fetch_disk_cache.py", "tests/torch/test_disk_cache.py"),
    ),
    Fault(
        *(7, "nulls are delivered as numbers", "batching/cells.py"),
        "            elif nulls.any():\n                raise refuse_null(self.path, nulls)",
        "            elif nulls.any() and len(nulls) > 10**9:\n                raise refuse_null(self.path, nulls)",
        ("tests/rooms/test_batching_nulls.py", "tests/torch/test_masks.py", "tests/rooms/test_batching_types.py"),
    ),
    Fault(
        *(7, "masks of validity are inverted", "batching/decoders.py"),
        "sink.append(self.cell.values(array, seen))\n        if self.masked:\n            sink.append(valid_mask(array))",
        "sink.append(self.cell.values(array, seen))\n        if self.masked:\n            sink.append(~valid_mask(array))",
        ("tests/rooms/test_batching_nulls.py", "tests/torch/test_masks.py", "tests/rooms/test_batching_types.py"),
    ),
    Fault(
        *(7, "a label stands for a token of another document", "batching/packed_outputs.py"),
        "            labels[layout.at] = IGNORED",
        "            labels[layout.at[:1]] = IGNORED",
        _PACKING,
    ),
    Fault(
        *(7, "a pack takes one token too many", "planning/packing.py"),
        "return Pieces(document, start, np.minimum(lengths[document] - start, seq_len))",
        "return Pieces(document, start, np.minimum(lengths[document] - start, seq_len - 1))",
        _PACKING,
    ),
    Fault(
        *(7, "a state of other options is taken", "engine/state.py"),
        '    _compare_options(bound["options"], theirs)',
        "    del theirs",
        _STATES,
    ),
    Fault(
        *(7, "a state of another table is taken", "engine/state.py"),
        '    _compare_tables(table, bound["table"], state["table"])',
        "    del table",
        _STATES,
    ),
    Fault(
        *(7, "a hive value is not decoded", "source/hive.py"),
        'value = None if raw_value == NULL_SEGMENT else unquote(raw_value, errors="strict")',
        "value = None if raw_value == NULL_SEGMENT else raw_value",
        (
            "tests/rooms/test_source_hive.py",
            "tests/rooms/test_source_listing.py",
            "tests/torch/test_epochs_and_places.py",
        ),
    ),
    Fault(
        *(8, "views keep whole chunks in memory", "batching/rebatching.py"),
        "            if left <= start:\n                part = self._codec.concat([part])",
        "            if left <= start and not part.num_rows:\n                part = self._codec.concat([part])",
        (
            "tests/rooms/test_batching_memory.py",
            "tests/laws/test_batching_laws.py",
            "tests/torch/test_memory_of_epochs.py",
        ),
    ),
    Fault(
        *(10, "credentials stand in shown URLs", "scrubbing.py"),
        '    url = f"{protocol}://{authority}{rest}"',
        "    url = path_or_url",
        (
            "tests/rooms/test_secrets.py",
            "tests/services/test_iceberg_credentials.py",
        ),
    ),
)
