"""ORC files."""
