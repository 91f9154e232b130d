"""Lanes at work: the survey of the table, the counting pass, threads and processes."""
