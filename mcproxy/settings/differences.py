"""Compare two settings: what a reload must reconnect, what it adopts, what needs a restart, and what callers see anew.

Names keys and never values, which may be secret (R44). Applies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from mcproxy.settings import Settings, UpstreamSettings
from mcproxy.settings.section import Section

ADOPTED: Final = frozenset(
    {
        "cache", "content", "list_poll", "max_connections", "max_in_flight", "max_in_flight_per_principal",
        "prefix", "prompts", "required", "resources", "results", "stderr_lines", "timeouts", "tools",
    }
)  # fmt: skip
"""Keys of an upstream that an existing link adopts; any other key needs a new link."""

OF_LINKS: Final = frozenset({"max_connections", "required", "stderr_lines", "timeouts"})
"""Keys of an upstream that affect neither callers' views nor what is cached of it."""

RESTART: Final = (
    "host",
    "port",
    "tls",
    "paths",
    "tracing",
    "grant_key",
)
"""Keys of `proxy` whose old values stay in force until the process restarts."""

S = TypeVar("S", bound=Section)


class Changed(msgspec.Struct, frozen=True):
    """An upstream in both settings, and the keys that differ."""

    name: str
    keys: tuple[str, ...]

    @property
    def reconnects(self) -> bool:
        """Whether its link is made anew: a key differs that is not in ADOPTED."""
        return not ADOPTED.issuperset(key.partition(".")[0] for key in self.keys)


class Difference(msgspec.Struct, frozen=True):
    """What differs between two settings; a disabled upstream counts as absent. Keys are dotted: `limits.max_batch`."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[Changed, ...] = ()
    reordered: bool = False
    """Whether the upstreams in both settings come in another order, which is that of the lists."""
    proxy: tuple[str, ...] = ()
    access: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    """Names of the endpoints that were added, removed or changed."""
    features: tuple[str, ...] = ()
    """Names of the features of other packages that were added, removed or changed."""
    restart: tuple[str, ...] = ()
    """Keys, with their section, whose old values stay in force until a restart."""

    def __bool__(self) -> bool:
        return self != Difference()

    @property
    def gone(self) -> frozenset[str]:
        """Upstreams whose links end."""
        return frozenset({*self.removed, *(change.name for change in self.changed if change.reconnects)})

    @property
    def fresh(self) -> frozenset[str]:
        """Upstreams that get new links."""
        return frozenset({*self.added, *(change.name for change in self.changed if change.reconnects)})

    @property
    def adjusted(self) -> frozenset[str]:
        """Upstreams that changed and keep their links."""
        return frozenset(change.name for change in self.changed if not change.reconnects)

    @property
    def applies(self) -> bool:
        """Whether any of it takes effect without a restart."""
        upstreams = self.added or self.removed or self.changed or self.reordered
        return bool(upstreams or self.proxy or self.access or self.endpoints or self.features)


def diff(old: Settings, new: Settings) -> Difference:
    """The changes that a reload makes, in the terms by which the gateway applies them."""
    before, after = enabled(old), enabled(new)
    stay = [name for name in before if name in after]
    keys = set(_changed_keys(old.proxy, new.proxy))
    restart = {key for key in keys if any(key == fixed or key.startswith(f"{fixed}.") for fixed in RESTART)}
    return Difference(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(
            Changed(name, tuple(_changed_keys(before[name], after[name])))
            for name in stay
            if before[name] != after[name]
        ),
        reordered=stay != [name for name in after if name in before],
        proxy=tuple(sorted(keys - restart)),
        access=tuple(_changed_keys(old.access, new.access)),
        endpoints=_changed_names(old.endpoints, new.endpoints),
        features=_changed_names(old.features, new.features),
        restart=(
            *(f"proxy.{key}" for key in sorted(restart)),
            *_changed_keys(old.admin, new.admin, "admin."),
            *_changed_keys(old.cluster, new.cluster, "cluster."),
        ),
    )


def _changed_names(old: Mapping[str, Section], new: Mapping[str, Section]) -> tuple[str, ...]:
    return tuple(name for name in sorted({*old, *new}) if old.get(name) != new.get(name))


def changed_sections(old: Settings, new: Settings) -> frozenset[str]:
    """The names of the top-level sections that differ; upstreams do where more than `OF_LINKS` does."""
    changed = frozenset(name for name in Settings.model_fields if getattr(old, name) != getattr(new, name))
    return changed - {"upstreams"} if same_but_for_links(old.upstreams, new.upstreams) else changed


def same_but_for_links(old: Sequence[UpstreamSettings], new: Sequence[UpstreamSettings]) -> bool:
    """Whether the upstreams are the same, in the same order, and differ in `OF_LINKS` at most."""
    return _same_but_for(OF_LINKS, old, new)


def _same_but_for(unheeded: frozenset[str], old: Sequence[UpstreamSettings], new: Sequence[UpstreamSettings]) -> bool:
    keys = UpstreamSettings.model_fields.keys() - unheeded
    pairs = zip(old, new, strict=False)
    return len(old) == len(new) and all(getattr(a, key) == getattr(b, key) for a, b in pairs for key in keys)


def shows_same(old: Settings, new: Settings) -> bool:
    """Whether names, lists and policy are the same under both."""
    return (
        old.access == new.access
        and old.endpoints == new.endpoints
        and old.proxy.naming == new.proxy.naming
        and old.proxy.instructions == new.proxy.instructions
        and _same_but_for(OF_LINKS | {"cache", "list_poll"}, old.upstreams, new.upstreams)
    )


def in_force(old: Settings, new: Settings) -> Settings:
    """The new settings, with the old values of keys that need a restart."""
    return new.model_copy(
        update={"proxy": _keeping(old.proxy, new.proxy, RESTART), "admin": old.admin, "cluster": old.cluster}
    )


def enabled(settings: Settings) -> dict[str, UpstreamSettings]:
    """The upstreams that are enabled, by name."""
    return {spec.name: spec for spec in settings.upstreams if spec.enabled}


def _changed_keys(old: Section, new: Section, within: str = "") -> Iterator[str]:
    """Dotted keys that differ; sections are compared key by key, anything else as a whole."""
    for key in type(new).model_fields:
        before, after = getattr(old, key), getattr(new, key)
        if isinstance(before, Section) and type(before) is type(after):
            yield from _changed_keys(before, after, f"{within}{key}.")
        elif before != after:
            yield within + key


def _keeping(old: S, new: S, keys: Iterable[str]) -> S:
    """`new`, with the values that `keys` have in `old`."""
    for key in keys:
        head, _, rest = key.partition(".")
        value = _keeping(getattr(old, head), getattr(new, head), [rest]) if rest else getattr(old, head)
        new = new.model_copy(update={head: value})
    return new
