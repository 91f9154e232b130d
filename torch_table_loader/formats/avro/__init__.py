"""Avro files."""
