"""Iceberg tables: catalogs, snapshots, manifests and deletes become data files (https://iceberg.apache.org/spec/)."""
