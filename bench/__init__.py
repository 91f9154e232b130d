"""Runnable comparisons: everything is a ratio of one run, interleaved."""
