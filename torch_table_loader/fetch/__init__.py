"""Bytes of remote files, fetched before they are decoded."""
