"""The twin of `mcproxy.access.audit.journal`."""

from __future__ import annotations

import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcproxy.access.audit.journal import Journal


def test_what_is_appended_stands_at_the_end_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.write_bytes(b"old\n")
    path.chmod(0o600)
    Journal(path, None, 1).append(b"new\n")
    assert path.read_bytes() == b"old\nnew\n"
    Journal(tmp_path / "fresh", None, 1).append(b"x\n")
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o600


def test_a_full_file_is_put_aside_and_so_many_are_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "audit", 8, 2)
    for number in range(6):
        journal.append(b"line%d\n" % number)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "audit": b"line5\n",
        "audit.1": b"line4\n",
        "audit.2": b"line3\n",
    }


def test_what_is_larger_than_a_file_may_be_gets_one_of_its_own(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "audit", 4, 2)
    journal.append(b"a long line\n")
    journal.append(b"b\n")
    assert (tmp_path / "audit.1").read_bytes() == b"a long line\n"


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "audit", None, 1)
    journal.append(b"1\n")
    (tmp_path / "audit").rename(tmp_path / "moved")
    journal.append(b"2\n")
    assert (tmp_path / "audit").read_bytes() == b"2\n"


def test_nothing_is_left_of_what_does_not_fit(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "audit", None, 1)
    journal.append(b"whole\n")
    with files_no_larger_than(10), pytest.raises(OSError, match="File too large"):
        journal.append(b"this does not fit\n")
    assert (tmp_path / "audit").read_bytes() == b"whole\n"


def test_what_cannot_be_opened_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        Journal(tmp_path, None, 1).append(b"x\n")


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """As on a full disk: what is over it is not written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_symbolic_link_is_not_followed_even_where_the_file_would_rotate(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else\n")
    (tmp_path / "audit").symlink_to(other)
    for max_bytes in (None, 1):
        with pytest.raises(OSError, match="symbolic link") as refused:
            Journal(tmp_path / "audit", max_bytes, 1).append(b"line\n")
        assert "name the file itself" in str(refused.value.strerror)
    assert other.read_bytes() == b"of somebody else\n"
    assert (tmp_path / "audit").is_symlink()


def test_a_link_to_a_file_that_is_not_there_makes_none(tmp_path: Path) -> None:
    (tmp_path / "audit").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        Journal(tmp_path / "audit", None, 1).append(b"line\n")
    assert not (tmp_path / "elsewhere").exists()


def test_the_systems_own_links_to_open_files_are_followed() -> None:
    Journal(Path("/dev/stderr"), None, 1).append(b"")
