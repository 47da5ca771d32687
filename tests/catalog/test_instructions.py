"""Instructions of several servers within a budget: every server is named first, and none is crowded out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.catalog.instructions import DIRECTORY, INSTRUCTIONS_URI, joined, shares
from mcproxy.catalog.search.own_tools import HINT

SHORT = [("git", "Be kind."), ("wiki", "Read first.")]
LONG = [(f"server{number}", f"Word{number} " * 400) for number in range(3)]


def names(told: list[tuple[str, str]]) -> list[str]:
    return [name for name, _ in told]


def test_short_ones_are_joined_as_they_are() -> None:
    assert joined(names(SHORT), SHORT, 2000) == ("## git\n\nBe kind.\n\n## wiki\n\nRead first.", None)


def test_without_any_there_are_none() -> None:
    assert joined(["git"], [], 2000) == (None, None)


def test_longer_ones_that_fit_have_a_directory_before_them() -> None:
    told = [("git", "x " * 300), ("wiki", "y " * 300)]
    shown, whole = joined(["git", "wiki", "silent"], told, 2000)
    assert shown is not None
    assert shown.startswith("Servers behind this gateway: git, wiki, silent.\n\n## git\n\nx x")
    assert shown.endswith("y ")
    assert whole is None


def test_r84_of_long_ones_each_server_has_its_share_and_the_rest_is_a_resource() -> None:
    shown, whole = joined(names(LONG), LONG, 2000)
    assert shown is not None
    assert whole is not None
    assert len(shown) <= 2000
    assert shown[:DIRECTORY].startswith("Servers behind this gateway: server0, server1, server2.")
    assert INSTRUCTIONS_URI in shown[:DIRECTORY]
    sizes = [shown.count(f"Word{number}") for number in range(3)]
    assert min(sizes) > 60
    assert max(sizes) - min(sizes) <= 2
    assert all(text in whole for _, text in LONG)


def test_a_server_that_says_little_is_not_cut() -> None:
    shown, _ = joined([*names(LONG), "git"], [*LONG, ("git", "Be kind.")], 2000)
    assert shown is not None
    assert shown.endswith("## git\n\nBe kind.")


def test_r84_of_more_servers_than_there_is_room_for_the_others_are_counted() -> None:
    servers = [f"a-server-with-a-long-name-{number}" for number in range(100)]
    shown, _ = joined(servers, [(server, "text " * 50) for server in servers], 2000)
    assert shown is not None
    directory = shown.partition("\n")[0]
    assert len(directory) <= DIRECTORY
    assert "more." in directory


texts = st.tuples(st.text("abc", min_size=1, max_size=30), st.text("de \n", min_size=1, max_size=700))


@given(st.lists(texts, max_size=8), st.integers(256, 3000))
def test_no_budget_is_exceeded_and_what_is_cut_says_so(told: list[tuple[str, str]], most: int) -> None:
    shown, whole = joined(names(told), told, most)
    headings = sum(len(name) + 7 for name in names(told))
    assert len(shown or "") <= max(most, DIRECTORY + headings)
    assert (whole is not None) == (INSTRUCTIONS_URI in (shown or ""))


@given(st.lists(texts, max_size=8), st.integers(256, 3000))
def test_r84_what_comes_before_is_whole_and_counts_and_the_directory_still_ends_where_hosts_cut(
    told: list[tuple[str, str]], most: int
) -> None:
    shown, whole = joined(names(told), told, most, HINT)
    without, _ = joined(names(told), told, max(0, most - len(HINT) - 2))
    assert shown is not None
    assert shown.startswith(HINT)
    assert len(shown) <= max(most, len(HINT) + 2 + len(without or ""))
    if whole is not None:
        directory = shown.split("\n\n")[1]
        assert len(HINT) + 2 + len(directory) <= DIRECTORY


def test_without_instructions_what_comes_before_is_all() -> None:
    assert joined(["a"], [], 2000, HINT) == (HINT, None)


@given(st.lists(st.integers(0, 50), max_size=6), st.integers(0, 200))
def test_shares_fill_the_room_and_nobody_gets_more_than_it_wants(wanted: list[int], room: int) -> None:
    given_ = shares(wanted, room)
    assert sum(given_) == min(sum(wanted), room) or sum(given_) > room - len(wanted)
    assert sum(given_) <= room
    assert all(mine <= want for mine, want in zip(given_, wanted, strict=True))
