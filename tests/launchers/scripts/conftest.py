"""Launchers run these scripts; nothing in them is a test, and some import what only ``make test-all`` installs."""

collect_ignore_glob = ["*.py"]
