"""Tests of rows that come more or less often than once, or came during an epoch."""
