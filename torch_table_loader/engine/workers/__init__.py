"""Who makes the batches: the caller's thread, threads or processes, and how results cross to the trainer."""
