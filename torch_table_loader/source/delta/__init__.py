"""Delta Lake tables: the log becomes data files (https://github.com/delta-io/delta/blob/master/PROTOCOL.md)."""
