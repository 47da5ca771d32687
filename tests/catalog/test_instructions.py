"""Instructions of several servers within a budget: every server is named first, and none is crowded out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.catalog.instructions import DIRECTORY, INSTRUCTIONS_URI, joined_instructions, shares
from mcproxy.catalog.search.own_tools import HINT

SHORT = [("git", "Be kind."), ("wiki", "Read first.")]
LONG = [(f"server{number}", f"Word{number} " * 400) for number in range(3)]


def names(told: list[tuple[str, str]]) -> list[str]:
    return [name for name, _ in told]


def test_r84_short_ones_have_a_directory_before_them_that_names_silent_servers_too() -> None:
    shown = "Servers behind this gateway: git, wiki, silent.\n\n## git\n\nBe kind.\n\n## wiki\n\nRead first."
    assert joined_instructions([*names(SHORT), "silent"], SHORT, 2000) == (shown, None)


def test_r84_where_no_server_tells_anything_there_is_the_directory() -> None:
    assert joined_instructions(["git", "wiki"], [], 2000) == ("Servers behind this gateway: git, wiki.", None)


def test_without_servers_there_are_none() -> None:
    assert joined_instructions([], [], 2000) == (None, None)
    assert joined_instructions([], [], 2000, HINT) == (HINT, None)


def test_r84_longer_ones_that_fit_have_a_directory_before_them() -> None:
    told = [("git", "x " * 300), ("wiki", "y " * 300)]
    shown, whole = joined_instructions(["git", "wiki", "silent"], told, 2000)
    assert shown is not None
    assert shown.startswith("Servers behind this gateway: git, wiki, silent.\n\n## git\n\nx x")
    assert shown.endswith("y ")
    assert whole is None


def test_r84_of_long_ones_each_server_has_its_share_and_the_rest_is_a_resource() -> None:
    shown, whole = joined_instructions(names(LONG), LONG, 2000)
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
    shown, _ = joined_instructions([*names(LONG), "git"], [*LONG, ("git", "Be kind.")], 2000)
    assert shown is not None
    assert shown.endswith("## git\n\nBe kind.")


def test_r84_of_more_servers_than_there_is_room_for_the_others_are_counted() -> None:
    servers = [f"a-server-with-a-long-name-{number}" for number in range(100)]
    shown, _ = joined_instructions(servers, [(server, "text " * 50) for server in servers], 2000)
    assert shown is not None
    directory = shown.partition("\n")[0]
    assert len(directory) <= DIRECTORY
    assert "more." in directory


def test_r84_where_not_all_servers_have_room_the_resource_names_them_though_none_tells_anything() -> None:
    servers = [f"a-server-with-a-long-name-{number}" for number in range(100)]
    shown, whole = joined_instructions(servers, [], 2000)
    assert shown is not None
    assert len(shown) <= DIRECTORY
    assert INSTRUCTIONS_URI in shown
    assert whole == f"Servers behind this gateway: {', '.join(servers)}."


texts = st.tuples(st.text("abc", min_size=1, max_size=30), st.text("de \n", min_size=1, max_size=700))


SERVERS = st.lists(texts, min_size=1, max_size=8, unique_by=lambda text: text[0])
BUDGETS = st.integers(256, 3000)


@given(SERVERS, st.data(), BUDGETS, st.sampled_from(["", HINT]))
def test_r84_every_name_is_where_hosts_read_and_no_budget_is_exceeded(
    servers: list[tuple[str, str]], data: st.DataObject, most: int, before: str
) -> None:
    told = [server for server in servers if data.draw(st.booleans())]
    shown, whole = joined_instructions(names(servers), told, most, before)
    assert shown is not None
    assert len(shown) <= most
    assert shown.startswith(before)
    first = shown.removeprefix(before).strip("\n").partition("\n")[0]
    assert len(before) + 2 * bool(before) + len(first) <= DIRECTORY
    assert (whole is not None) == (INSTRUCTIONS_URI in shown)
    if " more." not in first:
        assert first.startswith(f"Servers behind this gateway: {', '.join(names(servers))}.")
    else:
        assert whole is not None
    if whole is not None:
        assert whole.startswith(f"Servers behind this gateway: {', '.join(names(servers))}.")
        assert all(text in whole for _, text in told)


@given(st.lists(st.integers(0, 50), max_size=6), st.integers(0, 200))
def test_shares_fill_the_room_and_nobody_gets_more_than_it_wants(wanted: list[int], room: int) -> None:
    given_ = shares(wanted, room)
    assert sum(given_) == min(sum(wanted), room) or sum(given_) > room - len(wanted)
    assert sum(given_) <= room
    assert given_ == wanted or sum(wanted) > room
    assert all(mine <= want for mine, want in zip(given_, wanted, strict=True))
