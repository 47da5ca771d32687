"""The twin of `mcproxy.catalog.uri_matching`."""

from __future__ import annotations

import re
from collections.abc import Callable
from posixpath import normpath
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcproxy.catalog.uri_matching import MAX_READINGS, _read, matcher, pattern, readings, uri_flaw
from mcproxy.catalog.uris import MAX_URI


def allowed(glob: str, uri: str) -> bool:
    """Whether a rule that allows `glob` lets a caller use `uri`."""
    test, found = matcher((glob,)), readings(uri)
    return bool(found) and all(test(reading) for reading in found)


def denied(glob: str, uri: str) -> bool:
    """Whether a rule that denies `glob` keeps a caller from `uri`."""
    test, found = matcher((glob,)), readings(uri)
    return not found or any(test(reading) for reading in found)


OUT_OF_PUBLIC = [
    "SCHEME://public/../private/s.md",
    "SCHEME://public/%2e%2e/private/s.md",
    "SCHEME://public/..%2Fprivate/s.md",
    "SCHEME://public/%252e%252e/private/s.md",
    "SCHEME://public/..%252Fprivate/s.md",
    "SCHEME://public/%25252e%25252e%25252fprivate/s.md",
    "SCHEME://public/..\\private/s.md",
    "SCHEME://public\\..\\private\\s.md",
    "SCHEME://public/..%5cprivate/s.md",
    "SCHEME://public/a/../../private/s.md",
    "SCHEME://public/a//../../private/s.md",
    "SCHEME://public//../private/s.md",
    "SCHEME://public/./../private/s.md",
    "SCHEME://public/..;/private/s.md",
    "SCHEME://public/..;a=b/private/s.md",
    "SCHEME://public/..%3b/private/s.md",
    "SCHEME://public/%u002e%u002e/private/s.md",
    "SCHEME://public/%25u002e./private/s.md",
    "SCHEME://public/\uff0e\uff0e/private/s.md",
    "SCHEME://public/%EF%BC%8E%EF%BC%8E/private/s.md",
    "SCHEME://public/..\uff0fprivate/s.md",
    "SCHEME://public/\u2025/private/s.md",
    "SCHEME://public/..\u2215private/s.md",
    "SCHEME://public/%c0%ae%c0%ae/private/s.md",
    "SCHEME://public/%2e%2e%00/private/s.md",
    "SCHEME://public%2f..%2fprivate/s.md",
    "SCHEME://public%2f../private/s.md",
    "SCHEME://public%5c..%5cprivate/s.md",
    "SCHEME://public?/../private/s.md",
    "SCHEME://public?/../../private/s.md",
    "SCHEME://public#/../private/s.md",
    "SCHEME://public/?/../../private/s.md",
    "SCHEME://public/%3f/../../private/s.md",
    "SCHEME://x@public/../private/s.md",
    "SCHEME://./private/s.md",
    "SCHEME:///private/s.md",
    "SCHEME:/private/s.md",
    "SCHEME:private/s.md",
    "SCHEME:\\\\private\\s.md",
    "SCHEME:////private/s.md",
    "scheme:///public/../private/s.md",
    "SCHEME://PUBLIC/../private/s.md",
]


@pytest.mark.parametrize("scheme", ["notes", "ui", "x-y+z.1"])
@pytest.mark.parametrize("uri", OUT_OF_PUBLIC)
def test_no_spelling_leads_out_of_the_folder_that_stands_as_authority(scheme: str, uri: str) -> None:
    uri = uri.replace("SCHEME", scheme).replace("scheme:", f"{scheme}:")
    assert allowed(f"{scheme}://public/*", f"{scheme}://public/a/b.md")
    assert not allowed(f"{scheme}://public/*", uri)
    assert not denied(f"{scheme}://private/*", f"{scheme}://public/a/b.md")
    assert denied(f"{scheme}://private/*", uri)


@pytest.mark.parametrize(
    "uri",
    [
        "notes://PRIVATE/s.md",
        "NOTES://private/s.md",
        "notes://%70rivate/s.md",
        "notes://me@private/s.md",
        "notes://private//s.md",
        "notes://private;v=1/s.md",
        "notes:///private/s.md",
        "notes:private/s.md",
        "notes://private/%2e/s.md",
        "notes://priv\u00adate/s.md",
        "notes://private?/s.md",
    ],
)
def test_no_spelling_leads_past_a_denied_folder(uri: str) -> None:
    assert denied("notes://private/*", uri)


@pytest.mark.parametrize(
    ("glob", "uri"),
    [
        ("https://*.good.example/*", "https://evil/x.good.example/"),
        ("https://*.good.example/*", "https://evil?x.good.example/"),
        ("https://*.good.example/*", "https://evil#x.good.example/"),
        ("https://*.good.example/*", "https://evil\\x.good.example/"),
        ("https://*.good.example/*", "https://evil%2fx.good.example/"),
        ("https://*.good.example/*", "https://x.good.example@evil/"),
        ("https://*.good.example/*", "https://evil/https://x.good.example/"),
        ("https://*.good.example", "https://evil/x.good.example/"),
        ("https://*good.example/*", "https://evil/good.example/"),
        ("https://a?.good.example/*", "https://a/.good.example/"),
        ("https://a?.good.example/*", "https://a?.good.example/"),
        ("https://a[!b].good.example/*", "https://a/.good.example/"),
        ("https://a[+-9].good.example/*", "https://a/.good.example/"),
        ("https://*.*.good.example/*", "https://evil/a.b.good.example/"),
        ("*://good.example/*", "https://evil/x://good.example/"),
        ("http*://good.example/*", "http://evil/://good.example/"),
        ("*://public/*", "notes://evil/://public/x"),
        ("notes://*.pub/*", "notes://evil/x.pub/y"),
        ("notes://*/public/*", "notes://a/b/public/x"),
        ("notes://%2A/public/*", "notes://a/public/x"),
        ("file:///a%2A/*", "file:///ab/c"),
        ("https://*.good.example/*", "https://evil%5c.good.example/x"),
        ("https://*.good.example/*", "https://evil%252f.good.example/x"),
        ("https://*.good.example/*", "https://evil%255c.good.example/x"),
        ("https://*.good.example/*", "https://evil%2525252f.good.example/x"),
        ("https:*.good.example/*", "https://evil/x.good.example/"),
        ("https:*.good.example/*", "https:evil/x.good.example/"),
        ("https:/*.good.example/*", "https://evil/x.good.example/"),
        ("https:*.good.example/*", "https://evil?.good.example/"),
        ("https:*good.example/*", "https://evil/good.example/"),
        ("postgres://db:5432/*", "postgres://db:5433/x"),
    ],
)
def test_a_wildcard_stays_in_its_part_of_the_uri(glob: str, uri: str) -> None:
    assert not allowed(glob, uri)


@pytest.mark.parametrize(
    ("glob", "uri"),
    [
        ("notes://public/*", "notes://public/a/b/c.md"),
        ("https:*.good.example/*", "https://a.good.example/x"),
        ("https:*", "https://a.example/x/y"),
        ("postgres://db:5432/*", "postgres://db:5432/x"),
        ("notes://public/*", "notes://public/a b;v=1?q=/x#y"),
        ("notes://public/*", "notes://public/a/../b"),
        ("notes://Public/*", "notes://Public/a"),
        ("notes://*", "notes://public/a/b"),
        ("notes://pub*", "notes://public/a/b"),
        ("notes://*/public/*", "notes://a/public/x/y"),
        ("notes:///public/*", "notes:///public/x"),
        ("https://*.good.example/*", "https://a.b.good.example/x/y?q=/z"),
        ("https://*.good.example/*", "https://a.good.example:443/x"),
        ("https://*.good.example/*", "https://a.good.example?q"),
        ("https://*/x/*", "https://good.example:8443/x/y"),
        ("https://a?.good.example/*", "https://a1.good.example/"),
        ("https://a[12].good.example/*", "https://a1.good.example/"),
        ("https://good.example", "https://good.example/"),
        ("https://*", "https://good.example/x/y"),
        ("http*://good.example/*", "https://good.example/x"),
        ("*://public/*", "notes://public/x"),
        ("*.md", "notes://public/x.md"),
        ("*", "anything:at%2Fall"),
        ("memo:*", "memo:100%25"),
        ("file:///srv/*", "file://localhost/srv/x"),
        ("file:///srv/a;v=1/*", "file:///srv/a;v=1/b"),
        ("file:/srv/*", "file:///srv/x"),
        ("file://server/share/*", "file://server/share/x"),
        ("x:a%2fb", "x:a%2fb"),
        ("file:///100%25/[[]x]/*", "file:///100%25/[x]/y"),
    ],
)
def test_what_a_glob_names_may_be_used(glob: str, uri: str) -> None:
    if "file://server" not in glob:  # which some servers take for a local path
        assert allowed(glob, uri)
    assert denied(glob, uri)


@pytest.mark.parametrize(
    ("glob", "uri"),
    [
        ("http://inside/*", "http://inside?q=secret"),
        ("http://inside/*", "http://inside"),
        ("http://inside/*", "http://\uff49nside/x"),
        ("http://inside/*", "http://in\u00adside/x"),
        ("http://inside/*", "http://inside%3a80/x"),
        ("http://inside/*", "http://me%40inside/x"),
        ("http://in.side/*", "http://in\u3002side/x"),
        ("http://127.0.0.1/*", "http://2130706433/x"),
        ("http://127.0.0.1/*", "http://0x7f.1/x"),
        ("http://127.0.0.1/*", "http://0177.0.0.01/x"),
        ("http://inside/secret/*", "http://inside/secret;v=1/x"),
        ("http://inside/secret/*", "http://inside/a/..;/secret/x"),
        ("file:///etc/*", "file://etc/passwd"),
        ("*secret*", "notes://public/%73ecret"),
        ("notes:*", "NOTES://public/x"),
    ],
)
def test_a_denial_holds_for_every_reading(glob: str, uri: str) -> None:
    assert denied(glob, uri)


def test_a_rule_for_one_case_of_a_folder_is_none_for_another() -> None:
    assert not allowed("notes://public/*", "notes://Public/x")
    assert not allowed("notes://Public/*", "notes://public/x")


def test_a_rule_for_a_path_with_parameters_is_none_for_the_path_without() -> None:
    assert not allowed("http://h/a;v=1/b", "http://h/a/b")


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("file:///a b", None),
        ("memo:100%", None),
        ("x:%41%2f", None),
        ("x:", None),
        ("x:" + "%25" * 70 + "41", None),
        ("no uri", "has no scheme"),
        ("", "has no scheme"),
        ("x:a\nb", "has control characters in it, or white space around it"),
        ("x:%00", "has control characters in it, percent-encoded"),
        ("x:%2500", "has control characters in it, percent-encoded"),
        ("x:%ff", "is no UTF-8 once it is decoded"),
        (" x:a", "has no scheme"),
        ("x:%" + "25" * 70 + "41", "can be read in too many ways"),
        ("file:///../a", "climbs above its root with `..`"),
        ("memo:../a", "climbs above its root with `..`"),
        ("x:%u0041", "has an escape of the form %uXXXX, which RFC 3986 does not know"),
        ("x:" + "a" * MAX_URI, f"has more than {MAX_URI} characters"),
    ],
)
def test_what_is_wrong_with_a_refused_uri(uri: str, why: str | None) -> None:
    assert uri_flaw(uri) == why
    assert why in (None, "has no scheme") or not readings(uri)


SERVERS: dict[str, Callable[[str], str]] = {
    "decodes": unquote,
    "resolves": normpath,
    "takes a backslash for a slash": lambda path: path.replace("\\", "/"),
    "takes slashes for one": lambda path: re.sub("/+", "/", path),
    "drops the query": lambda path: path.partition("?")[0],
    "drops parameters": lambda path: re.sub(";[^/]*", "", path),
    "folds full-width dots": lambda path: path.replace("\uff0e", "."),
}
SEGMENTS = st.sampled_from(
    ["pub", "x", "..", ".", "%2e%2e", "%252E.", "", "%2f", "\\", "%5c", "%25", "?", "srv", "..;", ";", "\uff0e."]
)
SEPARATORS = st.sampled_from(["/", "\\", "%2f", "%255c"])
HABITS = st.lists(st.sampled_from(sorted(SERVERS)), max_size=6)


@given(st.lists(SEGMENTS, max_size=8), SEPARATORS, HABITS)
def test_no_server_opens_what_lies_outside_of_an_allowed_tree(
    segments: list[str], separator: str, habits: list[str]
) -> None:
    path = "/srv/pub/" + separator.join(segments)
    if not allowed("file:///srv/pub/*", f"file://{path}"):
        return
    for habit in ("decodes", *habits, "resolves"):
        path = SERVERS[habit](path)
    assert f"{path}/".startswith("/srv/pub/")


@given(st.sampled_from(["pub", "pub%2f", "x@pub", "PUB", ""]), st.lists(SEGMENTS, max_size=8), SEPARATORS, HABITS)
@example("pub", ["..", "x"], "/", [])
def test_no_server_whose_folders_stand_as_authorities_opens_what_is_not_allowed_or_is_denied(
    authority: str, segments: list[str], separator: str, habits: list[str]
) -> None:
    path = f"{authority}/{separator.join(segments)}"
    uri = f"notes://{path}"
    for habit in ("decodes", *habits, "resolves"):
        path = SERVERS[habit](path)
    folder = path.strip("/").partition("/")[0]
    if allowed("notes://pub/*", uri):
        assert folder == "pub"
    if folder == "srv" and path.strip("/") != "srv":
        assert denied("notes://srv/*", uri)


@given(
    st.sampled_from(["notes://", "http://", "file://", "x:"]),
    st.text("aB1./_-:@%;?#~*", max_size=12),
)
def test_the_usual_uris_are_read_as_any_other(head: str, rest: str) -> None:
    found = readings(head + rest)
    # What makes it unusual is in no glob's way.
    unusual = readings(f"{head}{rest}#")
    if found and "#" not in rest and "?" not in rest:
        assert {reading + "#" for reading in found} <= set(unusual)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_the_readings_of_any_text_are_bounded_and_match_the_glob_of_everything(text: str) -> None:
    found = readings(text)
    assert len(found) <= MAX_READINGS
    assert all(matcher(("*",))(reading) for reading in found)


@pytest.mark.parametrize(
    "piece", ["%25", "/..\\", "a/../", "//", "%2f", ";/", "\uff0e/", "%5c..", "?a=../", "/a;b/..", "%252e", "@", ":"]
)
def test_a_uri_that_is_read_in_many_ways_is_read_or_refused_in_bounds(piece: str) -> None:
    _read.cache_clear()
    uri = "x://" + piece * ((MAX_URI - 4) // len(piece))
    found = readings(uri)
    assert len(found) <= MAX_READINGS
    assert sum(map(len, found)) <= MAX_READINGS * (MAX_URI + 8)


@pytest.mark.parametrize("glob", ["a*" * 40 + "b", "notes://" + "a*" * 40 + "b/*", "*" * 50 + "b"])
def test_no_glob_takes_time_that_blows_up(glob: str) -> None:
    # With backtracking this takes longer than anybody waits.
    assert not allowed(glob, "notes://" + "a" * 4000 + "/x")


@given(st.text("[]!*?-a/:.%;\\", max_size=12), st.sampled_from(["", "x:", "x://", "https://", "file:"]))
def test_any_text_is_a_glob(glob: str, head: str) -> None:
    assert re.compile(pattern(head + glob))
