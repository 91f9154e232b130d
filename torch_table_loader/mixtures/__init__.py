"""Several tables as one, in shares that the caller chooses: a part that builds can lack."""
