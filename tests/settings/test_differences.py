"""The twin of `mcproxy.settings.differences`."""

from __future__ import annotations

import pytest

from mcproxy.settings import Proxy, Settings, UpstreamSettings
from mcproxy.settings.differences import (
    Changed,
    Difference,
    changed_sections,
    diff,
    in_force,
)
from mcproxy.settings.section import Reload, Section


def settings(*upstreams: UpstreamSettings, **proxy: object) -> Settings:
    return Settings(proxy=Proxy.model_validate(proxy), upstreams=upstreams)


def upstream(name: str, **options: object) -> UpstreamSettings:
    return UpstreamSettings.model_validate({"name": name, "prefix": name, "command": "run", **options})


def test_r49_equal_settings_differ_in_nothing() -> None:
    assert not diff(settings(upstream("a")), settings(upstream("a")))


def test_r49_upstreams_come_and_go_by_name() -> None:
    difference = diff(settings(upstream("a"), upstream("b")), settings(upstream("b"), upstream("c")))
    assert difference == Difference(added=("c",), removed=("a",))
    assert difference.gone == {"a"}
    assert difference.fresh == {"c"}
    assert not difference.adjusted


def test_r49_a_disabled_upstream_is_none() -> None:
    on, off = settings(upstream("a")), settings(upstream("a", enabled=False))
    assert diff(on, off).removed == ("a",)
    assert diff(off, on).added == ("a",)
    assert not diff(off, settings(upstream("a", enabled=False, command="other")))


@pytest.mark.parametrize(
    "options",
    [{"command": "other"}, {"args": ("x",)}, {"env": {"A": "b"}}, {"connection": "session"}, {"era": "legacy"}],
)
def test_r49_whom_to_connect_to_and_how_takes_another_link(options: dict[str, object]) -> None:
    difference = diff(settings(upstream("a")), settings(upstream("a", **options)))
    assert difference.changed == (Changed("a", tuple(options)),)
    assert difference.gone == difference.fresh == {"a"}


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"prefix": "other"}, "prefix"),
        ({"tools": {"exclude": ["x"]}}, "tools.exclude"),
        ({"cache": {"shared": True}}, "cache.shared"),
        ({"timeouts": {"idle": 1}}, "timeouts.idle"),
        ({"list_poll": 5}, "list_poll"),
    ],
)
def test_r49_what_callers_see_and_how_long_takes_none(options: dict[str, object], key: str) -> None:
    difference = diff(settings(upstream("a")), settings(upstream("a", **options)))
    assert difference.changed == (Changed("a", (key,)),)
    assert not difference.gone
    assert difference.adjusted == {"a"}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"timeouts": {"idle": 1}, "required": True}, set()),
        ({"list_poll": 5}, {"upstreams"}),
        ({"timeouts": {"idle": 1}, "prefix": "other"}, {"upstreams"}),
    ],
)
def test_sections_differ_where_more_does_than_what_links_go_by(options: dict[str, object], changed: set[str]) -> None:
    old, new = settings(upstream("a"), upstream("b")), settings(upstream("a"), upstream("b", **options))
    assert changed_sections(old, new) == changed
    assert changed_sections(new, settings(upstream("a"))) == {"upstreams"}
    assert changed_sections(old, settings(upstream("b"), upstream("a"))) == {"upstreams"}


def test_r49_the_order_of_upstreams_is_that_of_the_lists() -> None:
    assert diff(settings(upstream("a"), upstream("b")), settings(upstream("b"), upstream("a"))).reordered
    assert not diff(settings(upstream("a"), upstream("b")), settings(upstream("b"), upstream("c"))).reordered


def test_r49_what_the_listener_is_made_with_stays_in_force() -> None:
    old = settings(port=1, limits={"max_batch": 5}, paths={"mcp": "/a"})
    new = settings(port=2, limits={"max_batch": 6}, paths={"mcp": "/b"}, keep_alive=3)
    difference = diff(old, new)
    assert difference.restart == ("proxy.paths.mcp", "proxy.port")
    assert difference.proxy == ("keep_alive", "limits.max_batch")
    forced = in_force(old, new).proxy
    assert (forced.port, forced.paths.mcp) == (1, "/a")
    assert (forced.limits.max_batch, forced.keep_alive) == (6, 3)


def test_r49_another_secret_is_in_force_at_once() -> None:
    old, new = (
        settings(secret="a long and random one"),
        settings(secret=["a newer and random one", "a long and random one"]),
    )
    assert (diff(old, new).proxy, diff(old, new).restart) == (("secret",), ())
    assert in_force(old, new).proxy.secret == new.proxy.secret


def test_r49_https_stays_what_it_was_spoken_by() -> None:
    secured = settings(tls={"certificate": "/a.pem"})
    assert in_force(secured, settings()).proxy.tls == secured.proxy.tls
    assert diff(secured, settings()).restart


def test_what_needs_a_restart_alone_applies_to_nothing() -> None:
    difference = diff(settings(port=1), settings(port=2))
    assert difference
    assert not difference.applies


def test_r44_a_difference_names_keys_and_no_value() -> None:
    old, new = upstream("a", env={"TOKEN": "sentinel-old"}), upstream("a", env={"TOKEN": "sentinel-new"})
    assert "sentinel" not in repr(diff(settings(old), settings(new)))


def test_each_key_says_what_a_reload_does() -> None:
    def of(section: type[Section], key: str) -> Reload:
        return Reload.of(section.model_fields[key], Reload.RECONNECT)

    assert of(Proxy, "port") is of(Proxy, "tls") is Reload.RESTART
    assert of(UpstreamSettings, "command") is Reload.RECONNECT
    assert of(UpstreamSettings, "timeouts") is Reload.LINK
    assert of(UpstreamSettings, "cache") is Reload.CACHE
    assert of(UpstreamSettings, "tools") is Reload.VIEW


def test_an_endpoint_that_is_another_applies_and_a_listener_of_operators_needs_a_restart() -> None:
    old = Settings.model_validate({"endpoints": {"a": {}, "b": {}}, "admin": {"port": 1}})
    new = Settings.model_validate({"endpoints": {"b": {"tools": ["x"]}, "c": {}}, "admin": {"port": 2}})
    difference = diff(old, new)
    assert (difference.endpoints, difference.restart) == (("a", "b", "c"), ("admin.port",))
    assert difference.applies
    assert in_force(old, new).admin == old.admin
