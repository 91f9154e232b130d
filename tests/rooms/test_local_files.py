"""Folders writable by others: links, pipes and hard links are refused, and new files belong to this user."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_table_loader import local_files
from torch_table_loader.errors import StorageError
from torch_table_loader.local_files import (
    allocate,
    check_owned,
    make_folder,
    new_file,
    open_regular,
    read_regular,
    stat_regular,
)

WRITE = os.O_WRONLY | os.O_CREAT


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that must not change."""
    (tmp_path / "theirs").mkdir()
    path = tmp_path / "theirs" / "key"
    path.write_text("secret")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def test_a_link_is_neither_read_nor_written(folder: Path, victim: Path) -> None:
    (folder / "a").symlink_to(victim)
    (folder / "dangling").symlink_to(victim.with_name("new"))
    for call in (lambda: open_regular(folder / "a", WRITE), lambda: read_regular(folder / "a")):
        with pytest.raises(StorageError, match=r"a' must be what this library made there, got a symbolic link"):
            call()
    with pytest.raises(StorageError, match="a symbolic link"):
        stat_regular(folder / "a")
    with pytest.raises(StorageError, match="a symbolic link"):
        open_regular(folder / "dangling", WRITE)
    assert victim.read_text() == "secret"
    assert [path.name for path in victim.parent.iterdir()] == ["key"]


def test_a_file_in_a_linked_folder_is_refused(folder: Path, victim: Path) -> None:
    (folder / "store").symlink_to(victim.parent)
    for call in (lambda: open_regular(folder / "store" / "key", WRITE), lambda: make_folder(folder / "store")):
        with pytest.raises(StorageError, match=r"store' must be .* got a symbolic link"):
            call()


@pytest.mark.parametrize("flags", [os.O_RDONLY, WRITE, os.O_RDWR])
@pytest.mark.timeout(20)
def test_a_pipe_is_refused_without_waiting(folder: Path, flags: int) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(StorageError, match="got a pipe"):
        open_regular(folder / "pipe", flags)


def test_a_directory_a_device_and_a_second_name_are_refused(folder: Path, victim: Path) -> None:
    (folder / "sub").mkdir()
    os.link(victim, folder / "second")
    with pytest.raises(StorageError, match="a directory"):
        open_regular(folder / "sub", WRITE)
    with pytest.raises(StorageError, match="a device"):
        open_regular(Path("/dev/null"), os.O_WRONLY)
    with pytest.raises(StorageError, match="a file with a second name"):
        open_regular(folder / "second", os.O_WRONLY)
    assert read_regular(folder / "second") == b"secret"


def test_a_missing_file_raises_pythons_own_error(folder: Path) -> None:
    for path in (folder / "none", folder / "none" / "none"):
        with pytest.raises(FileNotFoundError):
            open_regular(path)


def test_a_new_file_has_a_unique_name_and_is_removed_unless_named(folder: Path) -> None:
    names = set()
    for _ in range(3):
        with new_file(folder / "a") as (path, file):
            file.write(b"x")
            names.add(path.name)
            assert stat.S_IMODE(path.stat().st_mode) & 0o111 == 0
        assert not list(folder.iterdir())
    assert len(names) == 3
    with new_file(folder / "a") as (path, file):
        file.close()
        path.replace(folder / "a")
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_naming_a_file_replaces_a_link_and_not_what_it_points_to(folder: Path, victim: Path) -> None:
    (folder / "a").symlink_to(victim)
    with new_file(folder / "a") as (path, file):
        file.write(b"mine")
        file.close()
        path.replace(folder / "a")
    assert victim.read_text() == "secret"
    assert read_regular(folder / "a") == b"mine"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_new_folders_are_private_unless_in_a_shared_folder(tmp_path: Path) -> None:
    private = tmp_path / "new" / "newer" / "rows"
    team, sticky = tmp_path / "team", tmp_path / "sticky"
    for folder, bits in ((team, 0o775), (sticky, 0o1777)):
        folder.mkdir()
        folder.chmod(bits)
    for folder in (private, team / "rows", sticky / "rows"):
        make_folder(folder)
        make_folder(folder)
        make_folder(folder / "parts")
    assert [mode(path) for path in (tmp_path / "new", private.parent, private, private / "parts")] == [0o700] * 4
    assert [mode(path) for path in (team / "rows", team / "rows" / "parts")] == [0o775] * 2
    assert [mode(path) for path in (sticky / "rows", sticky / "rows" / "parts")] == [0o700] * 2


def test_a_file_in_place_of_a_folder_is_refused(folder: Path) -> None:
    (folder / "store").write_text("")
    with pytest.raises(StorageError, match="got a file"):
        make_folder(folder / "store")


def test_a_folder_owned_by_or_open_to_others_is_refused(
    folder: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o700)
    check_owned(folder)
    check_owned(folder / "none")
    for bits in (0o770, 0o702, 0o1777):
        folder.chmod(bits)
        with pytest.raises(StorageError, match=rf"others may write to .* \(mode {bits:04o}\).*`chmod go-w`"):
            check_owned(folder)
    folder.chmod(0o755)
    check_owned(folder)
    (folder / "link").symlink_to(victim.parent)
    with pytest.raises(StorageError, match="a symbolic link"):
        check_owned(folder / "link")
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner:  # what root owns is trusted
        with pytest.raises(StorageError, match=f"belongs to user {owner}"):
            check_owned(folder)
    else:
        os.chown(folder, 12345, -1)
        with pytest.raises(StorageError, match="belongs to user 12345"):
            check_owned(folder)


def test_disk_space_is_allocated_and_existing_content_stays(folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"rows")
    file = os.open(path, os.O_RDWR)
    os.ftruncate(file, 1 << 20)
    sparse = os.fstat(file).st_blocks
    allocate(file, 1 << 20)
    blocks = os.fstat(file).st_blocks
    os.close(file)
    assert blocks * 512 >= 1 << 20 > sparse * 512
    assert path.read_bytes() == b"rows" + bytes((1 << 20) - 4)


def test_allocating_space_on_a_full_file_system_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [errno.EINTR, errno.ENOSPC]

    def full(*_: int) -> int:
        ctypes.set_errno(answers.pop(0))
        return -1

    monkeypatch.setattr(local_files, "_fallocate", lambda: full)
    with pytest.raises(OSError, match="No space left") as raised:
        allocate(1, 10)
    assert raised.value.errno == errno.ENOSPC
    answers[:] = [errno.EOPNOTSUPP]
    allocate(1, 10)
    assert not answers
