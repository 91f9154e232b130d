"""The exceptions; the type says where the cause lies.

```
TableLoaderError
├── ConfigError(ValueError)                the caller's: an option, a name, a rank
│   ├── ConfigTypeError(TypeError)         ... an argument of the wrong type
│   ├── MissingExtraError(ImportError)     ... an optional package or part that is not installed
│   └── MissingPathError(FileNotFoundError)     ... a path that matches nothing
├── TableError                             the data's: missing, torn, changed, of another type
│   └── MissingFileError(FileNotFoundError)     ... a file of the table that is gone
├── ResumeError                            the checkpoint's: it belongs to something else
├── StorageError(OSError)                  the store's: it refused, or did not answer
│   ├── AccessRefusedError(PermissionError)     ... it refused access
│   ├── OutOfMemoryError(MemoryError)           ... there is too little memory
│   └── StorageTimeoutError(TimeoutError)       ... it did not answer in time
└── WorkerError(RuntimeError)              the machine's: a worker process was killed
```
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar


class TableLoaderError(Exception):
    """The base of all errors of this library."""


class ConfigError(TableLoaderError, ValueError):
    """An option is wrong, or two options do not fit each other."""


class ConfigTypeError(ConfigError, TypeError):
    """An argument has the wrong type."""


class TableError(TableLoaderError):
    """A file or table is missing or torn, changed since it was listed, or is not what its metadata says."""


class ResumeError(TableLoaderError):
    """A state belongs to another table, seed or set of options."""


class StorageError(TableLoaderError, OSError):
    """A store refused a request or did not answer it."""


class WorkerError(TableLoaderError, RuntimeError):
    """A worker process ended before its work did."""


class MissingExtraError(ConfigError, ImportError):
    """A required optional package is not installed, or this build lacks a part of the library."""


class _SystemError(OSError):
    """What Python's own OSErrors carry: `errno`, `strerror` and `filename`.

    OSError takes these from two or three arguments and builds its text from them. Here the one argument is the text.
    """

    _ERRNO: ClassVar[int]

    def __init__(self, message: str, filename: str | None = None) -> None:
        """Keep the message as the text.

        Args:
            filename: the path as messages may show it, if one is known.
        """
        super().__init__(message)
        self.errno = self._ERRNO
        self.strerror = message
        self.filename = filename

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.filename)


class MissingPathError(_SystemError, ConfigError, FileNotFoundError):
    """The caller's path matches nothing."""

    _ERRNO = errno.ENOENT


class MissingFileError(_SystemError, TableError, FileNotFoundError):
    """A file of the table is gone."""

    _ERRNO = errno.ENOENT


class AccessRefusedError(_SystemError, StorageError, PermissionError):
    """A store refused access."""

    _ERRNO = errno.EACCES


class OutOfMemoryError(_SystemError, StorageError, MemoryError):
    """There is too little memory for the request."""

    _ERRNO = errno.ENOMEM


class StorageTimeoutError(_SystemError, StorageError, TimeoutError):
    """A store, or another rank, did not answer in time."""

    _ERRNO = errno.ETIMEDOUT


__all__ = [
    "AccessRefusedError",
    "ConfigError",
    "ConfigTypeError",
    "MissingExtraError",
    "MissingFileError",
    "MissingPathError",
    "OutOfMemoryError",
    "ResumeError",
    "StorageError",
    "StorageTimeoutError",
    "TableError",
    "TableLoaderError",
    "WorkerError",
]
