"""The twin of `mcproxy.catalog.naming`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from mcproxy.call.identity import AGGREGATE
from mcproxy.catalog.naming import Layout, NameTable, Space, layouts
from mcproxy.protocol.methods import Kind
from mcproxy.settings.endpoints import Endpoint
from tests.catalog.whole import name_table
from tests.fakes.upstream import settings_of

LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")

prefixes = st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,31}", fullmatch=True), min_size=1, max_size=4, unique=True)
schemes = st.sampled_from(["git", "git+ssh", "GIT+x", "ui", "UI", "file", "http", "a", "srv-bare", "a+b", "{scheme}"])
uris = st.one_of(
    st.text(max_size=30),
    st.builds(str.__add__, schemes, st.sampled_from([":x", "://Host/a", "://git/x", "://git", "://a/b{?q}", "://"])),
    st.sampled_from(["{+uri}", "g{x}", "ui://{host}/a", "ui://{+rest}", "git+{x}", "srv-bare+srv-bare+x", ""]),
)


def aggregate(*prefixes: str, limit: int = 64, **options: object) -> Layout:
    """The aggregate of one upstream for each prefix; each is called after its prefix, the bare one `srv`."""
    specs = {prefix or "srv": {"prefix": prefix, **options} for prefix in prefixes}
    return layouts(settings_of(specs).upstreams, limit)[AGGREGATE]


def table(prefix: str, names: Sequence[str], limit: int = 64, **options: object) -> NameTable:
    return name_table(aggregate(prefix, limit=limit, **options).spaces[0], Kind.TOOLS, names)


def test_a_name_is_exposed_after_its_prefix() -> None:
    assert table("gh", ["search"]).exposed == {"search": "gh__search"}


def test_r30_characters_outside_are_replaced_and_reported() -> None:
    names = table("gh", ["issues/list", "plain"])
    assert names.exposed == {"issues/list": "gh__issues_list", "plain": "gh__plain"}
    assert [(entry.name, entry.exposed) for entry in names.renamed] == [("issues/list", "gh__issues_list")]


def test_r30_names_that_differ_only_after_the_cut_end_in_different_hashes() -> None:
    names = table("gh", ["x" * 70 + "1", "x" * 70 + "2"], limit=20).exposed
    assert len(set(names.values())) == 2
    assert all(len(name) == 20 and name.startswith("gh__xxxx") for name in names.values())


def test_r30_a_cut_name_is_the_same_tomorrow() -> None:
    assert table("gh", ["y" * 80], limit=24).exposed == {"y" * 80: "gh__yyyyyyyyyyy_c0bc55a1"}


@given(prefixes, st.lists(st.text(max_size=90), unique=True), st.integers(16, 128))
def test_r30_every_exposed_name_is_legal_and_belongs_to_one_tool(taken: list[str], names: list[str], n: int) -> None:
    for space in aggregate(*taken, limit=n).spaces:
        exposed = name_table(space, Kind.TOOLS, names)
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", name) and len(name) <= n for name in exposed.exposed.values())
        assert len(set(exposed.exposed.values())) == len(exposed.exposed)
        assert {entry.name for entry in exposed.refused} == set(names) - set(exposed.exposed)


@given(st.lists(st.text(max_size=6), unique=True), st.randoms(use_true_random=False))
def test_r29_the_order_of_names_changes_nothing(names: list[str], random: object) -> None:
    assert table("a", names).exposed == table("a", sorted(names)).exposed


def test_r29_of_colliding_names_the_unchanged_one_wins() -> None:
    names = table("gh", ["a.b", "a_b", "a/b"])
    assert names.exposed == {"a_b": "gh__a_b"}
    assert [(entry.name, entry.why) for entry in names.refused] == [
        ("a.b", "it would be called 'gh__a_b', as 'a_b' is"),
        ("a/b", "it would be called 'gh__a_b', as 'a_b' is"),
    ]


def test_r29_of_changed_colliding_names_the_first_in_order_wins() -> None:
    assert table("gh", ["a/b", "a.b"]).exposed == {"a.b": "gh__a_b"}


def test_a_configured_name_replaces_the_upstreams() -> None:
    names = table("gh", ["x", "y"], tools={"overrides": {"x": {"name": "search"}}})
    assert names.exposed == {"x": "gh__search", "y": "gh__y"}
    assert names.renamed == ()


def test_a_configured_name_does_not_take_a_tool_that_is_called_so() -> None:
    names = table("gh", ["x", "y"], tools={"overrides": {"x": {"name": "y"}}})
    assert names.exposed == {"y": "gh__y"}
    assert [entry.name for entry in names.refused] == ["x"]


def test_a_configured_tool_name_does_not_name_prompts() -> None:
    space = aggregate("gh", tools={"overrides": {"x": {"name": "search"}}}).spaces[0]
    assert name_table(space, Kind.PROMPTS, ["x"]).exposed == {"x": "gh__x"}


def test_r33_a_bare_upstreams_names_pass_verbatim() -> None:
    space = aggregate("", "gh").spaces[0]
    names = ["a.b", "x" * 90, "odd__name", "ghost__x"]
    assert name_table(space, Kind.TOOLS, names).exposed == {name: name for name in names}


def test_r33_a_bare_name_that_reads_as_anothers_is_refused() -> None:
    names = name_table(aggregate("", "gh").spaces[0], Kind.TOOLS, ["gh__search", "search"])
    assert names.exposed == {"search": "search"}
    assert names.refused[0].name == "gh__search"


def test_r33_an_upstreams_own_endpoint_shows_its_names_and_uris_as_they_are() -> None:
    settings = settings_of({"gh": {}, "git": {}})
    (space,) = layouts(settings.upstreams, 64)["gh"].spaces
    assert space.expose_name("git__a.b" * 20) == "git__a.b" * 20
    assert space.expose_uri("git+ssh://x") == "git+ssh://x"
    assert layouts(settings.upstreams, 64)["gh"].locate("git+ssh://x") == (space, "git+ssh://x")


def test_a_disabled_upstream_keeps_its_prefix_and_shows_nothing() -> None:
    settings = settings_of({"b": {"prefix": ""}, "off": {"enabled": False}})
    layout = layouts(settings.upstreams, 64)[AGGREGATE]
    assert [space.upstream for space in layout.spaces] == ["b"]
    assert layout.spaces[0].expose_name("off__x") is None
    assert layout.locate("off+file:///a") is None


def test_uris_are_prefixed_and_ui_keeps_its_scheme() -> None:
    (space,) = aggregate("gh").spaces
    assert space.expose_uri("file:///a") == "gh+file:///a"
    assert space.expose_uri("memo:x") == "gh+memo:x"
    assert space.expose_uri("ui://dash/main") == "ui://gh/dash/main"
    assert space.expose_uri("{scheme}://x{?q,r}") == "gh+{scheme}://x{?q,r}"


def test_a_bare_uri_is_escaped_only_where_it_would_pass_for_anothers() -> None:
    bare = aggregate("", "git").spaces[0]
    assert bare.expose_uri("file:///a") == "file:///a"
    assert bare.expose_uri("ui://dash") == "ui://dash"
    assert bare.expose_uri("git+ssh://h/r") == "srv-bare+git+ssh://h/r"
    assert bare.expose_uri("ui://git/x") == "ui://srv-bare/git/x"
    assert bare.expose_uri("{+uri}") == "srv-bare+{+uri}"


def test_a_namespace_that_no_upstream_has_leads_to_none() -> None:
    assert aggregate("gh", "git").locate("other+file:///a") is None
    assert aggregate("gh", "git").locate("file:///a") is None
    assert aggregate("gh", "git").locate("ui://other/a") is None


def test_the_namespace_is_found_in_any_case() -> None:
    layout = aggregate("gh", "git")
    assert layout.locate("GH+file:///A") == (layout.spaces[0], "file:///A")
    assert layout.locate("UI://Git/A") == (layout.spaces[1], "ui://A")


@given(prefixes, uris)
def test_r27_every_exposed_uri_resolves_back_byte_for_byte(taken: list[str], uri: str) -> None:
    for layout in (aggregate(*taken), aggregate("", *taken), aggregate(*taken, "git")):
        for space in layout.spaces:
            assert layout.locate(space.expose_uri(uri)) == (space, uri)


@given(prefixes, st.lists(uris, unique=True))
def test_r27_no_two_uris_are_exposed_alike(taken: list[str], some: list[str]) -> None:
    assume("git" not in taken)
    layout = aggregate("", *taken, "git")
    exposed = [space.expose_uri(uri) for space in layout.spaces for uri in some]
    assert len(set(exposed)) == len(exposed)


@given(st.sampled_from(["", "f", "git", "git+", "ui://", "file:///", "g", "srv-bare"]), st.text(max_size=12))
def test_r28_whatever_a_template_expands_to_stays_its_upstreams(head: str, value: str) -> None:
    layout = aggregate("", "git")
    for space in layout.spaces:
        expanded = space.expose_uri(f"{head}{{+value}}").replace("{+value}", value)
        assert layout.locate(expanded) == (space, head + value)


@given(st.sampled_from(["ssh://Host", "ssh://Host/", "SSH://host"]))
def test_r63_a_respelled_escape_still_belongs_to_the_bare_upstream(uri: str) -> None:
    layout = aggregate("", "git")
    bare = layout.spaces[0]
    for exposed in (bare.expose_uri(f"GIT+{uri}"), bare.expose_uri("ui://GIT"), bare.expose_uri("UI://git")):
        for respelled in (exposed, exposed.lower(), f"{exposed.lower()}/"):
            located = layout.locate(respelled)
            assert located is not None
            assert located[0] == bare


def shows(kind: Kind, own: str, **options: object) -> bool:
    space: Space = aggregate("gh", limit=64, **options).spaces[0]
    return space.shows(kind, own)


def test_filters_are_globs_on_own_names_and_exclude_wins() -> None:
    tools = {"tools": {"include": ["get_*", "list"], "exclude": ["get_secret*"]}}
    assert shows(Kind.TOOLS, "get_x", **tools)
    assert shows(Kind.TOOLS, "list", **tools)
    assert not shows(Kind.TOOLS, "get_secrets", **tools)
    assert not shows(Kind.TOOLS, "put", **tools)
    assert not shows(Kind.TOOLS, "GET_X", **tools)
    assert shows(Kind.PROMPTS, "put", **tools)


def test_no_spelling_of_an_excluded_uri_slips_through() -> None:
    rules = {"resources": {"exclude": ["http://ex.com/secret/*", "file:///a b/*"]}}
    for uri in (
        "http://ex.com/secret/x",
        "HTTP://EX.com/secret/x",
        "http://ex.com/%73ecret/x",
        "http://ex.com/open/../secret/x",
        "http://ex.com/open/%2e%2e/secret/x",
        "http://ex.com/open/..%2Fsecret/x",
        "file:///a%20b/c",
    ):
        assert not shows(Kind.RESOURCES, uri, **rules), uri
    assert shows(Kind.RESOURCES, "http://ex.com/open/x", **rules)


def test_an_inclusion_is_not_left_by_dots() -> None:
    rules = {"resources": {"include": ["file:///pub/*"]}}
    assert shows(Kind.RESOURCES, "file:///pub/x", **rules)
    assert shows(Kind.TEMPLATES, "file:///pub/{+path}", **rules)
    assert not shows(Kind.RESOURCES, "file:///pub/../etc/passwd", **rules)


def test_neither_a_filter_nor_a_selection_is_left_where_a_folder_stands_as_authority() -> None:
    inside, outside = "notes://public/a/b.md", "notes://public/..%2Fprivate/s.md"
    for rules in ({"include": ["notes://public/*"]}, {"exclude": ["notes://private/*"]}):
        assert shows(Kind.RESOURCES, inside, resources=rules)
        assert not shows(Kind.RESOURCES, outside, resources=rules)
    upstreams = settings_of({"gh": {}}).upstreams
    selected = layouts(upstreams, 64, {"some": Endpoint(resources=("notes://public/*",))})["/some"].spaces[0]
    assert selected.shows(Kind.RESOURCES, inside)
    assert not selected.shows(Kind.RESOURCES, outside)
