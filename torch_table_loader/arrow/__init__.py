"""Arrow helpers shared by reading, the row store and batching: types, arrays and memory."""
