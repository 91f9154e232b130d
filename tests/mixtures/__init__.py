"""Tests of several tables in shares."""
