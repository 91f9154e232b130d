"""Bytes of files that are far away, fetched before they are decoded."""
