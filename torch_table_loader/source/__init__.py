"""Turn a path or a catalog into a list of data files and a storage to open them."""
