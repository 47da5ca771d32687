"""Which login under way is forgotten for one more."""

from __future__ import annotations

from mcproxy.upstream.oauth.under_way import MAX_LOGINS, crowded_out


def under_way(**counts: int) -> dict[str, str]:
    """Logins in progress, oldest first."""
    return {f"{name}-{number}": name for name, count in counts.items() for number in range(count)}


def test_nothing_is_forgotten_while_there_is_room() -> None:
    assert crowded_out(under_way(ann=MAX_LOGINS - 1)) is None


def test_the_principal_with_the_most_loses_its_oldest() -> None:
    assert crowded_out(under_way(ann=2, bob=MAX_LOGINS - 3, cy=1)) == "bob-0"


def test_of_principals_with_equally_many_the_oldest_of_all_goes() -> None:
    assert crowded_out(under_way(ann=MAX_LOGINS // 2, bob=MAX_LOGINS // 2)) == "ann-0"
