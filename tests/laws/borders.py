"""Imports of today that cross into a guest. `test_levels.py` refuses others, and those that are no longer needed.

Each goes with the step of the rebuild that no longer needs it, and none comes.
"""

_TABLE = """
batching.codec: arrow.token_rows batching.packed
batching.policy: pack
batching.rows: planning.pack_counts
batching.types: planning.column_statistics
cli.named_table: delta iceberg
cli.writing: token_table
dataset: engine.measuring planning.column_statistics
engine.counting: planning.pack_counts
engine.explanation: planning.pack_counts
engine.jobs.indexed_job: planning.pack_counts
engine.jobs.job: planning.pack_counts
engine.jobs.mixed_rows: engine.work.packed_work
engine.jobs.mixture_form: arrow.token_rows batching.packed pack
engine.jobs.modes: engine.jobs.packed_items read.sequence_stages
engine.jobs.planner: planning.pack_counts
engine.jobs.resolve: pack
engine.jobs.stream_job: arrow.token_rows planning.pack_counts read.sequence_stages
engine.jobs.table_rows: engine.row_weights engine.tokens_in_place planning.growth planning.mixture
engine.jobs.table_rows: planning.weighted_rows read.kept_documents
engine.row_store: engine.tokens_in_place
engine.state: planning.mixed_stages planning.mixture
engine.work.indexed_work: planning.mixture planning.weighted_rows
engine.work.source_form: batching.packed
engine.workers.lane_merger: planning.pack_counts
engine.workers.processes: planning.pack_counts
far.remote: planning.placed_documents planning.slices
map_view: batching.packed_outputs
metrics: planning.pack_counts
mixed: pack
planning.mixture: planning.weighted_rows
planning.stages: planning.mixture
read.file_walk: planning.pack_counts
read.ipc: read.token_files
read.row_stage: planning.pack_counts
read.tensorproto.tensor_shards: read.token_files
store.builder: planning.slices
store.gather: planning.placed_documents planning.slices
store.manifest: planning.slices
store.opened: planning.slices
"""
"""Modules, and the modules of guests that each imports and that its own guest does not have."""

BORDERS = frozenset(
    (line.partition(": ")[0], target) for line in _TABLE.split("\n") for target in line.partition(": ")[2].split()
)
"""These as pairs: who imports, and what."""
