"""Reads a table, as it stands in the lake, into a PyTorch training loop."""
