"""Imports of today that cross into a guest. `test_levels.py` refuses others, and those that are no longer needed.

Each goes with the step of the rebuild that no longer needs it, and none comes.
"""

_TABLE = """
batching.types: planning.column_statistics
cli.named_table: delta iceberg
cli.writing: text.token_table
dataset: engine.measuring planning.column_statistics
engine.counting: fetch.fetcher
engine.jobs.mixed_streams: fetch.fetcher
engine.jobs.modes: fetch.fetcher
engine.jobs.resolve: fetch.fetcher
engine.jobs.stream_job: fetch.fetcher planning.requests
engine.jobs.table_rows: engine.row_weights fetch.fetcher planning.growth planning.mixture
engine.jobs.table_rows: planning.weighted_rows
engine.measuring: fetch.fetcher
engine.row_store: fetch.fetcher store.remote
engine.row_weights: fetch.fetcher
engine.state: planning.mixed_stages planning.mixture
text.tokens_in_place: store.remote
text.tokens_read: planning.requests source.clients
engine.work.indexed_work: fetch.fetcher planning.mixture planning.weighted_rows
engine.work.lane_work: fetch.fetcher
engine.work.mixed_stream_work: fetch.fetch_queue fetch.fetcher
text.packed_work: fetch.fetcher
engine.work.stream_work: fetch.fetch_queue fetch.fetcher
engine.workers.executor: fetch.fetcher
engine.workers.lane_iterator: fetch.fetcher
engine.workers.lane_merger: fetch.fetcher
engine.workers.processes: fetch.fetcher
engine.workers.threads: fetch.fetcher
metrics: fetch.fetcher
planning.mixture: planning.weighted_rows
planning.stages: planning.mixture
read.avro: read.far_files
read.deletes: read.far_files
read.ipc: read.far_files
read.orc: read.far_files
read.parquet_footer: read.far_files
read.reader_base: read.far_files
read.tasks: planning.requests
read.tensorproto.tensor_shards: read.far_files
read.text_files: read.far_files
text.token_files: read.far_files
source.delta.delta_options: source.object_store source.s3_client source.store_options
source.folders: source.clients
source.iceberg.manifests: source.clients
source.listing: source.clients
source.plan_cache: source.clients
source.storage: source.clients source.object_store source.s3_client source.store_options
source.table_storage: source.clients source.store_options
store.gather: planning.requests
text.token_table: fetch.fetcher
"""
"""Modules, and the modules of guests that each imports and that its own guest does not have."""

BORDERS = frozenset(
    (line.partition(": ")[0], target) for line in _TABLE.split("\n") for target in line.partition(": ")[2].split()
)
"""These as pairs: who imports, and what."""
