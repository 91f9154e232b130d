"""CSV and JSON files, compressed or not."""
