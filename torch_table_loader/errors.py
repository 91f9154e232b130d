"""The exception tree; the type says whose fault it is.

```
TableLoaderError
├── ConfigError(ValueError)                the caller's: an option, a name, a rank
│   ├── ConfigTypeError(TypeError)         ... an argument of the wrong type
│   └── MissingExtraError(ImportError)     ... an optional package that is not installed
├── TableError                             the data's: missing, torn, changed, of another type
├── ResumeError                            the checkpoint's: it speaks of something else
├── StorageError(OSError)                  the store's: it refused, or did not answer
└── WorkerError(RuntimeError)              the machine's: a worker process was killed
```
"""

from __future__ import annotations


class TableLoaderError(Exception):
    """The root of everything this library raises on its own account."""


class ConfigError(TableLoaderError, ValueError):
    """An option is wrong, or two options do not fit each other."""


class ConfigTypeError(ConfigError, TypeError):
    """An argument has the wrong type."""


class TableError(TableLoaderError):
    """A file or table is missing, torn, changed under us, or holds what was not promised."""


class ResumeError(TableLoaderError):
    """A state speaks of another table, seed, or set of options."""


class StorageError(TableLoaderError, OSError):
    """A store refused a request or did not answer it."""


class WorkerError(TableLoaderError, RuntimeError):
    """A worker process ended before its work did."""


class MissingExtraError(ConfigError, ImportError):
    """An optional package is needed that is not installed."""


__all__ = [
    "ConfigError",
    "ConfigTypeError",
    "MissingExtraError",
    "ResumeError",
    "StorageError",
    "TableError",
    "TableLoaderError",
    "WorkerError",
]
