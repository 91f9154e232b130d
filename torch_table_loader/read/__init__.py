"""A data file becomes Arrow record batches."""
