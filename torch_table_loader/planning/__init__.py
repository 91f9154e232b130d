"""Pure planning: what is read where and in which order. Opens no file, imports numpy alone."""
