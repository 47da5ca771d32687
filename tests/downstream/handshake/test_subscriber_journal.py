"""What is kept between runs of which sessions subscribed to resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mcproxy.downstream.handshake.subscriber_journal import SubscriberJournal

pytestmark = pytest.mark.anyio


def journal(
    path: Path | None,
    issued_after: float = 0,
    digests: Callable[[str], Sequence[str]] = lambda key: (f"digest-of-{key}",),
) -> SubscriberJournal:
    made = SubscriberJournal(path, digests)
    made.load(issued_after, now=1000)
    return made


def test_a_session_that_subscribed_is_known_to_the_next_run_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "subscribers"
    first = journal(path)
    first.add("a", 100)
    assert not first.is_lost("a", 100)
    second = journal(path)
    assert [second.is_lost(key, 100) for key in "ab"] == [True, False]


def test_a_session_is_known_by_the_digest_of_any_secret_that_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "subscribers"
    journal(path, digests=lambda key: (f"old-{key}",)).add("a", 100)
    assert journal(path, digests=lambda key: (f"new-{key}", f"old-{key}")).is_lost("a", 100)
    assert not journal(path, digests=lambda key: (f"new-{key}",)).is_lost("a", 100)


def test_sessions_whose_ids_are_too_old_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "subscribers"
    first = journal(path)
    first.add("old", 100)
    first.add("new", 200)
    second = journal(path, issued_after=150)
    assert (second.is_lost("old", 100), second.is_lost("new", 100)) == (False, True)
    assert path.read_text() == "200 digest-of-new\n"


@pytest.mark.parametrize("damage", [b"", b"\n\n", b"200", b"x y\n", b"\xff\xfe", b"200 \n"])
def test_a_damaged_file_is_no_obstacle(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "subscribers"
    path.write_bytes(damage)
    assert not journal(path).is_lost("a", 1000)


def test_r56_without_a_file_sessions_of_before_this_process_are_lost_and_its_own_are_not(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    for path in (None, tmp_path / "a file" / "subscribers"):
        kept = journal(path)
        kept.add("a", 1000)
        assert kept.is_lost("a", 999)
        assert not kept.is_lost("a", 1000)


def test_the_file_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "subscribers"
    journal(path).add("a", 100)
    assert path.stat().st_mode & 0o077 == 0
