"""A path or a catalog becomes a list of data files and a place to open them."""
