"""Arrow helpers shared by reading, the row store and batching: types, arrays, memory and reserved names."""
