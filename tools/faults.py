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
    "tests/laws/test_exactly_once_in_plans.py",
    "tests/torch/test_exactly_once.py::test_every_format_delivers_every_row_once",
    "tests/torch/test_table_laws.py::test_every_live_row_comes_once",
)
_STREAMS = ("tests/laws/test_any_size_of_job.py", "tests/torch/test_state.py", "tests/torch/test_rescaling.py")
_STATES = ("tests/torch/test_state.py", "tests/torch/test_state_edges.py", "tests/torch/test_known_length.py")
_REFUSALS = (
    "tests/torch/test_every_mode_states.py::test_a_state_under_other_options_is_refused_by_name",
    "tests/torch/test_every_mode_states.py::test_a_state_of_another_table_is_refused",
    "tests/torch/test_state.py",
)
_ROWS = (
    "tests/laws/test_global_batches.py",
    "tests/torch/test_rows.py",
    "tests/torch/test_every_mode.py::test_ranks_divide_an_epoch",
    "tests/torch/test_every_mode.py::test_a_global_batch_is_divided_over_the_ranks",
    "tests/torch/test_every_mode.py::test_rows_that_fill_up_a_ranks_steps_are_marked_and_no_others",
)
_MIXTURES = (
    "tests/mixtures/test_mixture.py",
    "tests/mixtures/test_mixed.py::test_the_first_source_to_be_exhausted_ends_the_epoch_at_the_row_that_would_repeat",
    "tests/torch/test_every_mode.py::test_epochs_and_seeds_differ_and_rows_of_tells_them",
    "tests/torch/test_every_mode.py::test_ranks_divide_an_epoch",
)
_DELETES = ("tests/rooms/test_iceberg_deletes.py",)
_PACKING = (
    "tests/text/test_packing_in_plans.py",
    "tests/text/test_every_pack.py",
    "tests/text/test_packing.py::test_presets_have_the_names_of_their_field",
    "tests/text/test_packed_items.py::test_there_are_as_many_sequences_as_the_tokens_need",
)
_NULLS = ("tests/rooms/test_batching_nulls.py", "tests/rooms/test_batching_types.py", "tests/torch/test_masks.py")
_BATCHES = (
    "tests/laws/test_batching_laws.py",
    "tests/torch/test_exactly_once.py::test_every_format_delivers_every_row_once",
)
FAULTS = (
    Fault(
        *(1, "a rank misses the last split", "planning/epoch.py"),
        "return Hands.every(order, ranks, len(target))",
        "return Hands.every(order.take(np.arange(max(0, len(order) - 1))), ranks, len(target))",
        _EXACTLY_ONCE,
    ),
    Fault(
        *(1, "a rank that is balanced drops a row that moves", "planning/epoch.py"),
        "start = np.concatenate((np.zeros_like(ranks), low))[by_rank]",
        "start = np.concatenate((np.zeros_like(ranks), low + 1))[by_rank]",
        ("tests/laws/test_exactly_once_in_plans.py", "tests/rooms/test_engine_even_ranks.py"),
    ),
    Fault(
        *(1, "ranks of row mode take the same rows", "planning/global_batches.py"),
        "np.arange(first + self.rank, first + self.remainder, ranks, dtype=np.int64)",
        "np.arange(first, first + self.remainder, ranks, dtype=np.int64)",
        _ROWS,
    ),
    Fault(
        *(1, "padding of row mode is not marked", "planning/global_batches.py"),
        "return StepPlaces(places, real)",
        "return StepPlaces(places, share)",
        _ROWS,
    ),
    Fault(
        *(1, "padding of streams is not marked", "planning/lanes.py"),
        "padded_from = min(max(tails.num_rows - first, 0), rows.num_rows)",
        "padded_from = rows.num_rows",
        (
            "tests/laws/test_exactly_once_in_plans.py",
            "tests/torch/test_rescaling.py",
            "tests/torch/test_every_mode.py::test_rows_that_fill_up_a_ranks_steps_are_marked_and_no_others",
        ),
    ),
    Fault(
        *(1, "excluded rows still come", "planning/exclusion.py"),
        'return ranks + np.searchsorted(self._shifts, ranks, side="right")',
        'return ranks + np.searchsorted(self._shifts, ranks, side="left")',
        (
            "tests/laws/test_exclusion.py",
            "tests/torch/test_every_mode.py::test_excluded_rows_leave_at_the_next_epoch",
            "tests/torch/test_every_mode.py::test_a_mask_says_the_same_as_ids",
        ),
    ),
    Fault(
        *(1, "a mixture ends one block early", "mixtures/mixture.py"),
        "first = self.shares.start + (blocks - 1) * self.block_rows\n        source",
        "first = self.shares.start + max(0, blocks - 2) * self.block_rows\n        source",
        _MIXTURES,
    ),
    Fault(
        *(1, "only the first of several position deletes counts", "read/deletes.py"),
        "return distinct(np.concatenate(parts))",
        "return parts[0]",
        _DELETES,
    ),
    Fault(
        *(1, "equality deletes reach rows of their own commit", "read/key_set.py"),
        'np.searchsorted(self._commits, after, side="right")',
        'np.searchsorted(self._commits, after, side="left")',
        _DELETES,
    ),
    Fault(
        *(1, "position deletes of the same commit do not count", "iceberg/scan.py"),
        "return entries[bisect_left(entries, number, key=_number_of) :]",
        "return entries[bisect_right(entries, number, key=_number_of) :]",
        (*_DELETES, "tests/rooms/test_iceberg_tables.py", "tests/rooms/test_iceberg_planning.py"),
    ),
    Fault(
        *(1, "the maximum of a statistic is exclusive", "predicates/facts.py"),
        "below = self.low is None or self.low <= value, self.high is None or value <= self.high",
        "below = self.low is None or self.low <= value, self.high is None or value < self.high",
        ("tests/rooms/test_read_prune.py", "tests/rooms/test_iceberg_filters.py", "tests/rooms/test_delta_skipping.py"),
    ),
    Fault(
        *(1, "the minimum of a statistic is exclusive", "predicates/facts.py"),
        "below = self.low is None or self.low <= value, self.high is None or value <= self.high",
        "below = self.low is None or self.low < value, self.high is None or value <= self.high",
        ("tests/rooms/test_read_prune.py", "tests/rooms/test_iceberg_filters.py", "tests/rooms/test_delta_skipping.py"),
    ),
    Fault(
        *(1, "numbers outside of an order land on its first ones", "planning/permutation.py"),
        "block[outside] = self._landings[block[outside] - n]",
        "block[outside] -= n",
        (
            "tests/laws/test_permutation.py",
            "tests/torch/test_exactly_once.py::test_rows_that_are_too_many_for_an_order_by_hashes_come_once",
        ),
    ),
    Fault(
        *(1, "the maximum of a bound in a manifest is exclusive", "iceberg/scan.py"),
        "bound(highs.get(field_id), kind),",
        "(lambda high: high - 1 if isinstance(high, int | float) else high)(bound(highs.get(field_id), kind)),",
        ("tests/rooms/test_iceberg_filters.py", "tests/rooms/test_iceberg_spans.py"),
    ),
    Fault(
        *(1, "deletion vectors of one file are taken for each other", "read/deletes.py"),
        'name = ("vector", delete.file.path, delete.blob, delete.inline)',
        'name = ("vector", delete.file.path, delete.inline)',
        _DELETES,
    ),
    Fault(
        *(1, "a mixture of streams ends one block early", "mixtures/dealing.py"),
        "return int(places[np.flatnonzero(fits)[-1 if first else 0]])",
        "return max(0, int(places[np.flatnonzero(fits)[-1 if first else 0]]) - first * self.block_rows)",
        ("tests/mixtures/test_dealing.py", "tests/products/test_mixed_streams.py"),
    ),
    Fault(
        *(2, "a window's order ignores the epoch", "planning/windows.py"),
        "permuted_range(length, derive_key(seed, epoch, name))",
        "permuted_range(length, derive_key(seed, 0, name))",
        ("tests/torch/test_same_batches.py", "tests/torch/test_frozen_order.py"),
    ),
    Fault(
        *(2, "an epoch's key is the sum of seed and epoch", "planning/keys.py"),
        "signed=True) for value in (seed, epoch))",
        "signed=True) for value in (seed + epoch, 0))",
        (
            "tests/laws/test_permutation.py",
            "tests/torch/test_frozen_order.py",
            "tests/torch/test_every_mode.py::test_epochs_and_seeds_differ_and_rows_of_tells_them",
        ),
    ),
    Fault(
        *(2, "seeds of rows ignore the epoch", "planning/keys.py"),
        'derive_key(seed, epoch, "row seeds")',
        'derive_key(seed, 0, "row seeds")',
        ("tests/laws/test_row_seeds.py", "tests/torch/test_frozen_order.py", "tests/torch/test_row_stage.py"),
    ),
    Fault(
        *(2, "the order of a mixture ignores the epoch", "mixtures/mixture.py"),
        'key = derive_key(self.seed, self.epoch, f"mixture by quotas from {self.shares.start}")',
        'key = derive_key(self.seed, 0, f"mixture by quotas from {self.shares.start}")',
        (
            "tests/torch/test_frozen_order.py",
            "tests/mixtures/test_mixed.py::test_each_epoch_takes_its_sources_in_another_order",
        ),
    ),
    Fault(
        *(3, "a chunk's rest is lost between batches", "batching/rows.py"),
        "self._waiting.add(rows, stop, rows.num_rows)",
        "self._waiting.add(rows, max(stop, rows.num_rows - 1), rows.num_rows)",
        _BATCHES,
    ),
    Fault(
        *(3, "a batch ends where a chunk does", "batching/rows.py"),
        "stop = rows.num_rows - (rows.num_rows - start) % size",
        "stop = rows.num_rows",
        _BATCHES,
    ),
    Fault(
        *(4, "the length counts a short batch under drop_last", "planning/epoch.py"),
        "steps = total // size if topology.drop_last else -(-total // size)",
        "steps = -(-total // size)",
        (
            "tests/laws/test_exactly_once_in_plans.py",
            "tests/laws/test_padding.py",
            "tests/torch/test_every_mode.py::test_ranks_divide_an_epoch",
            "tests/torch/test_known_length.py",
        ),
    ),
    Fault(
        *(4, "the tail of row mode is not counted", "planning/global_batches.py"),
        '"steps": full + (pads or rest > self.rank),',
        '"steps": full,',
        (*_ROWS, "tests/torch/test_known_length.py"),
    ),
    Fault(
        *(4, "what remains is the whole epoch", "position.py"),
        "return job.walk.steps_left(position) + sum(",
        "return job.walk.steps_of_epoch(position) + sum(",
        ("tests/torch/test_known_length.py",),
    ),
    Fault(
        *(5, "samples of a state are counted one step short", "planning/global_batches.py"),
        "return self.start + steps * self.global_batch_size",
        "return self.start + max(0, steps - 1) * self.global_batch_size",
        _STATES,
    ),
    Fault(
        *(5, "a state of a stream forgets the lanes that are ahead", "planning/lanes.py"),
        "        if remaining and count > turns:\n            taken[lane] += 1",
        "        if remaining and count > turns:\n            taken[lane] += 0",
        (*_STATES, "tests/laws/test_exactly_once_in_plans.py"),
    ),
    Fault(
        *(5, "a state counts what was made ahead", "metrics.py"),
        "taken = leg.position.stage.steps + max(0, leg.batches - ahead)\n",
        "taken = leg.position.stage.steps + max(leg.batches, sum(lane.batches for lane in leg.counts.lanes))\n",
        _STATES,
    ),
    Fault(
        *(6, "rows that touch consumed ones come again", "planning/consumption.py"),
        "stop[at] = np.minimum(gap_stops[gap], base + stop[at]) - base",
        "stop[at] = np.minimum(gap_stops[gap], base + stop[at] - 1) - base + 1",
        _STREAMS,
    ),
    Fault(
        *(6, "the rest of an open window is lost", "planning/consumption.py"),
        "OpenWindow(window, ((start, length),))",
        "OpenWindow(window, ((start + 1, length),))",
        _STREAMS,
    ),
    Fault(
        *(7, "an answer that is too short is taken", "source/retrying.py"),
        "if len(data) != stop - start:",
        "if len(data) > stop - start:",
        (
            "tests/rooms/test_source_retrying.py",
            "tests/services/test_source_faults.py::test_a_body_that_stays_short_is_found",
            "tests/services/test_source_faults.py::test_an_epoch_has_every_row_once",
        ),
    ),
    Fault(
        *(7, "bytes of the disk cache are not compared with their checksum", "far/disk_cache.py"),
        "if bytes(head) == _HEAD.pack(_MAGIC, digest, num_bytes, _checksum(data)):",
        "if head:",
        ("tests/far/test_fetch_disk_cache.py", "tests/torch/test_disk_cache.py::test_damage_is_fetched_anew"),
    ),
    Fault(
        *(7, "nulls are delivered as numbers", "batching/decoders.py"),
        "            elif nulls.any():\n                raise refuse_null(self.path, nulls)",
        "            elif nulls.any() and len(nulls) > 10**9:\n                raise refuse_null(self.path, nulls)",
        _NULLS,
    ),
    Fault(
        *(7, "masks of validity are inverted", "batching/decoders.py"),
        "self.cell.values(array, seen))\n        if self.masked:\n            sink.append(valid_mask(array))",
        "self.cell.values(array, seen))\n        if self.masked:\n            sink.append(~valid_mask(array))",
        _NULLS,
    ),
    Fault(
        *(7, "a label stands for a token of another document", "text/packed_outputs.py"),
        "            labels[layout.at] = IGNORED",
        "            labels[layout.at[:1]] = IGNORED",
        _PACKING,
    ),
    Fault(
        *(7, "a pack takes one token too few", "text/packing.py"),
        "length = np.minimum(lengths[document] - start, seq_len)",
        "length = np.minimum(lengths[document] - start, seq_len - 1)",
        _PACKING,
    ),
    Fault(
        *(7, "a state of other options is taken", "engine/jobs/bound.py"),
        "                check_options(own[name].options, theirs.options)",
        "                continue",
        _REFUSALS,
    ),
    Fault(
        *(7, "a state of rows with origins of sequences is taken", "mixtures/mixed_rows.py"),
        "    if position.origins:\n",
        "    if position.origins and items.options.samples.cut_anywhere:\n",
        ("tests/torch/test_foreign_fields.py", "tests/text/test_frozen_packs.py"),
    ),
    Fault(
        *(7, "a state with columns that its record rules out is taken", "engine/state.py"),
        "        if foreign := [name for name in record.without if name in names]:\n",
        "        if foreign := [name for name in record.without if name in names and False]:\n",
        ("tests/torch/test_foreign_fields.py", "tests/torch/test_state_records.py"),
    ),
    Fault(
        *(7, "a state of rows with a record of sequences is read", "text/packing_record.py"),
        '"stage" not in own.options or own.options.get(LENGTH, length) != length',
        "own.options.get(LENGTH, length) != length",
        ("tests/torch/test_foreign_fields.py", "tests/torch/test_state_records.py"),
    ),
    Fault(
        *(4, "an epoch ends before sources that get their weight later", "mixtures/mixed_sources.py"),
        "        ahead = self.later.ahead(epoch, done)\n",
        "        ahead: list[Any] = []\n",
        (
            "tests/products/test_mixed_schedules.py::test_an_epoch_ends_by_all_its_weights",
            "tests/products/test_mixed_schedules.py::test_a_source_that_gets_its_weight_late_is_waited_for",
        ),
    ),
    Fault(
        *(7, "a state of another table is taken", "engine/jobs/bound.py"),
        "_refuse_table(job.tables[name], own[name].table, theirs.table)",
        "continue",
        _REFUSALS,
    ),
    Fault(
        *(7, "a hive value is not decoded", "source/folders.py"),
        'value = None if raw_value == NULL_SEGMENT else unquote(raw_value, errors="strict")',
        "value = None if raw_value == NULL_SEGMENT else raw_value",
        ("tests/rooms/test_source_hive.py",),
    ),
    Fault(
        *(7, "an object that was overwritten meanwhile is taken", "far/object_store.py"),
        'if etag is not None and (now := bare_tag(answer.meta["e_tag"])) not in {None, etag}:',
        'if etag is not None and (now := bare_tag(answer.meta["e_tag"])) == "":',
        (
            "tests/services/test_source_faults.py::test_a_file_replaced_by_one_that_decodes_is_found_where_the_store_ignores_if_match",
            "tests/far/test_source_object_store.py",
        ),
    ),
    Fault(
        *(7, "a commit without actions is taken", "delta/log.py"),
        "    if not actions:\n",
        "    if actions is None:\n",
        (
            "tests/rooms/test_delta_tables.py::test_a_torn_commit_is_refused_by_its_name",
            "tests/torch/test_delta_changelog.py::test_a_commit_that_is_torn_is_named",
        ),
    ),
    Fault(
        *(7, "the checksum of a deletion vector is not compared", "read/deletes.py"),
        'if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):',
        "if zlib.crc32(blob[4:-4]) != zlib.crc32(blob[4:-4]):",
        (
            "tests/rooms/test_delta_tables.py::test_a_deletion_vector_that_is_gone_or_torn_is_an_error",
            "tests/rooms/test_iceberg_deletes.py",
        ),
    ),
    Fault(
        *(8, "views keep whole chunks in memory", "batching/rows.py"),
        "small = self.stop == self.chunk.num_rows and 2 * self.num_rows <= self.stop",
        "small = self.stop == self.chunk.num_rows and not self.num_rows",
        (
            "tests/rooms/test_batching_memory.py",
            "tests/torch/test_batch_by_file.py::test_a_small_rest_of_a_chunk_does_not_keep_the_chunk",
        ),
    ),
    Fault(
        *(8, "bytes are fetched beyond the budget", "far/fetch_queue.py"),
        "(self.held and self.held + piece.queued[0].num_bytes > self._budget)",
        "(self.held and self.held > 8 * self._budget)",
        (
            "tests/far/test_fetch_queue.py",
            "tests/far/test_fetch_fetcher.py::test_each_read_gets_its_bytes_within_the_budget",
            "tests/torch/test_read_ahead.py::test_no_more_comes_ahead_than_was_asked_for",
        ),
    ),
    Fault(
        *(8, "fetched bytes are kept until the file ends", "far/fetch_queue.py"),
        "return self._left_behind(bisect_left(self._numbers, group))",
        "return []",
        (
            "tests/far/test_fetch_fetcher.py::test_a_row_group_is_kept_until_all_its_columns_are_decoded",
            "tests/torch/test_read_ahead.py::test_row_groups_that_are_decoded_are_let_go",
        ),
    ),
    Fault(
        *(8, "a lane makes batches ahead without a limit", "engine/workers/threads.py"),
        "            return len(lane.ready) < BLOCKS_AHEAD\n        return room > 0",
        "            return len(lane.ready) < 100\n        return lane.waiting < 100",
        (
            "tests/torch/test_prefetch.py::test_a_collate_fn_runs_no_further_ahead_than_was_asked_for",
            "tests/torch/test_prefetch.py::test_no_more_rows_are_decoded_ahead_than_explained",
        ),
    ),
    Fault(
        *(9, "bytes are dropped while another column needs them", "far/fetch_queue.py"),
        "        if self._numbers is not None:\n            return []\n        return self._left_behind(",
        "        return self._left_behind(",
        (
            "tests/far/test_fetch_fetcher.py::test_a_row_group_is_kept_until_all_its_columns_are_decoded",
            "tests/torch/test_read_ahead.py::test_columns_of_row_groups_that_are_decoded_together_are_fetched_once",
        ),
    ),
    Fault(
        *(9, "row groups without a row that passes are read", "read/parquet_pruning.py"),
        "    return kept\n",
        "    return [True] * len(kept)\n",
        (
            "tests/rooms/test_read_prune.py",
            "tests/rooms/test_engine_explain.py",
            "tests/torch/test_taken_files.py::test_pruned_row_groups_are_no_part_of_it",
        ),
    ),
    Fault(
        *(10, "a table on this machine opens what its metadata names elsewhere", "source/table_storage.py"),
        "if place != self._root and not any(",
        "if place != self._root and not self._root.is_local and not any(",
        ("tests/rooms/test_iceberg_places.py", "tests/rooms/test_delta_tables.py"),
    ),
    Fault(
        *(10, "secrets follow a redirect to another host", "far/aiohttp_options.py"),
        "same = answer.url.join(URL(target)).origin() == answer.url.origin()",
        "same = bool(answer.url.join(URL(target)).origin())",
        ("tests/rooms/test_iceberg_places.py", "tests/far/test_source_http.py"),
    ),
    Fault(
        *(10, "credentials stand in shown URLs", "scrubbing.py"),
        '    url = f"{protocol}://{authority}{rest}"',
        "    url = path_or_url",
        ("tests/rooms/test_secrets.py",),
    ),
)
