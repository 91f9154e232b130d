"""Tests of far stores: they go where that guest is taken off."""
