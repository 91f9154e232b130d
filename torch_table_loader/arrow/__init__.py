"""What reading, the row store and batching have in common about Arrow: types, arrays, memory and reserved names."""
