"""A table is surveyed and counted; jobs plan it, work reads it, and workers make its batches."""
