"""Filters: what they refer to, how they are named and written, and whether known facts rule them out."""
