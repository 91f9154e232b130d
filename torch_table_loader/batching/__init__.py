"""Record batches become exact batches, as tensors, arrays, Arrow or Python values."""
