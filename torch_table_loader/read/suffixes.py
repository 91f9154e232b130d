"""The format of a table's files by the ends of their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch_table_loader.errors import ConfigError
from torch_table_loader.format_contracts import SidecarReader
from torch_table_loader.read.compressed import CODECS, split_codec
from torch_table_loader.read.formats import FORMATS, format_names, reader_for

if TYPE_CHECKING:
    from torch_table_loader.format_contracts import FormatReader

DEFAULT_FORMAT = "parquet"
"""Of files whose names say nothing, as Hive writes them; the first bytes of a Parquet file say that it is one."""

TEXT_FORMATS = ("csv", "json")
"""Those whose files may be compressed as a whole."""


def suffixes_of(reader: FormatReader) -> tuple[str, ...]:
    """Return how the names of a format's files end, those beside data files included.

    >>> suffixes_of(reader_for("arrow")), suffixes_of(reader_for("megatron")), suffixes_of(reader_for("fms-fsdp"))
    (('.arrow', '.ipc', '.feather'), ('.bin', '.idx'), ('.arrow',))
    """
    own = getattr(reader, "suffixes", None)
    if own is None and isinstance(reader, SidecarReader):
        own = (reader.data_suffix, *(sidecar.suffix for sidecar in reader.sidecars))
    return tuple(own or ())


def reader_by_suffix(names: Sequence[str]) -> FormatReader:
    """Return the reader of files that all end as those of one format do.

    Of two formats with a suffix in common, built-in ones come before installed ones, and otherwise the first in
    `FORMATS`. Installed readers are looked at where no built-in format has the suffix.

    Args:
        names: of the files; where none ends as files of a format do, they are taken for Parquet files.

    Raises:
        ConfigError: there are files of two formats, or of one and others; or compressed files of a format whose files
            are not read so.

    >>> reader_by_suffix(["a.csv", "b.csv.gz"]).name, reader_by_suffix(["000000_0"]).name
    ('csv', 'parquet')
    """
    firsts: dict[str, str] = {}
    known = _by_suffix(FORMATS)
    plain = [split_codec(name)[0] for name in names]
    if any(_ending(name, known) is None and _last_suffix(name) for name in plain):
        known = {**_by_suffix(format_names()), **known}
    for name, without in zip(names, plain, strict=True):
        firsts.setdefault(known.get(_ending(without, known) or "", ""), name)
    if set(firsts) == {""} or not firsts:
        return reader_for(DEFAULT_FORMAT)
    if len(firsts) > 1:
        one, other = list(firsts.values())[:2]
        raise ConfigError(
            "without format=, all files must end as those of one format do, got "
            f"{_shown_suffix(one)} ({one}) and {_shown_suffix(other)} ({other}); pass format=, or a path such as "
            f"'…/*{_shown_suffix(next(first for form, first in firsts.items() if form))}' that names the files of one"
        )
    (form,) = firsts
    for name in names:
        codec = split_codec(name)[1]
        if codec and form not in TEXT_FORMATS:
            raise ConfigError(
                f"files of format={form!r} are not read when they are compressed as a whole, got {name}; take "
                f"{codec!r} away (the format compresses by itself), or compress text: CSV and JSON lines are read "
                f"with {', '.join(CODECS)}"
            )
    return reader_for(form)


def _by_suffix(forms: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for form in forms:
        for suffix in suffixes_of(reader_for(form)):
            found.setdefault(suffix.lower(), form)
    return found


def _ending(name: str, known: Mapping[str, str]) -> str | None:
    """Return the longest suffix that a name ends with."""
    matching = [suffix for suffix in known if name.lower().endswith(suffix)]
    return max(matching, key=len, default=None)


def _last_suffix(name: str) -> str:
    stem, dot, last = name.rpartition("/")[2].rpartition(".")
    return dot + last if stem and dot else ""


def _shown_suffix(name: str) -> str:
    plain, codec = split_codec(name)
    return f"{_last_suffix(plain)}{codec}" or "no suffix"
