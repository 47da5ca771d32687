"""The prefix that an upstream gets from its name."""

from __future__ import annotations

import pytest

from mcproxy.configuration.prefixes import prefixes, slug


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("github", "github"),
        ("GitHub (work)", "github-work"),
        ("my_server", "my-server"),
        ("7zip", "s-7zip"),
        ("x" * 50, "x" * 32),
    ],
)
def test_a_prefix_is_the_slug_of_the_name(name: str, expected: str) -> None:
    assert slug(name) == expected


def test_a_name_without_letters_still_has_a_prefix() -> None:
    assert slug("日本") != slug("中国")
    assert slug("日本").startswith("s-")


def test_r29_prefixes_do_not_depend_on_the_order_of_the_file() -> None:
    chosen = {"My Server": None, "my-server": None, "other": None, "taken": "other"}
    forward, backward = prefixes(chosen), prefixes(dict(reversed(chosen.items())))
    assert forward == backward
    assert len(set(forward.values())) == 4
    assert forward["taken"] == "other"
