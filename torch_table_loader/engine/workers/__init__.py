"""The executors that make the batches: the caller's thread, threads or processes; and how results are transferred."""
