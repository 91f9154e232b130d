"""File formats beside Parquet: a folder each, which a build may lack."""
