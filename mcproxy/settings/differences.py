"""Compare two settings: what a reload must reconnect, what it adopts, what needs a restart, and what callers see anew.

Names keys and never values, which may be secret (R44). Applies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from mcproxy.settings import Proxy, Settings, UpstreamSettings
from mcproxy.settings.section import Reload, Section


def _keys(section: type[Section], default: Reload, *classes: Reload) -> frozenset[str]:
    """The keys of a section that are of one of these classes; `default` is that of a key which states none."""
    fields = section.model_fields.items()
    return frozenset(name for name, field in fields if Reload.of(field, default) in classes)


_RECONNECTS: Final = _keys(UpstreamSettings, Reload.RECONNECT, Reload.RECONNECT)
_OF_LINKS: Final = _keys(UpstreamSettings, Reload.RECONNECT, Reload.LINK)
_UNSEEN: Final = _keys(UpstreamSettings, Reload.RECONNECT, Reload.LINK, Reload.CACHE)
"""Keys of an upstream that do not affect names, lists and policy."""
_RESTART: Final = _keys(Proxy, Reload.LINK, Reload.RESTART)


class Changed(msgspec.Struct, frozen=True):
    """An upstream in both settings, and the keys that differ."""

    name: str
    keys: tuple[str, ...]

    @property
    def reconnects(self) -> bool:
        """Whether its link is made anew."""
        return not _RECONNECTS.isdisjoint(key.partition(".")[0] for key in self.keys)


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
    restart = {key for key in keys if key.partition(".")[0] in _RESTART}
    return Difference(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(
            Changed(name, _changed_keys_of(before[name], after[name])) for name in stay if before[name] != after[name]
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


def _changed_keys_of(old: UpstreamSettings, new: UpstreamSettings) -> tuple[str, ...]:
    """The keys of an upstream that differ; `egress` too if `proxy.egress` or the environment changed its way."""
    keys = tuple(_changed_keys(old, new))
    if old.fault != new.fault and "command" not in keys:
        keys = (*keys, "command")
    return keys if old.leaving == new.leaving or "egress" in keys else (*keys, "egress")


def _changed_names(old: Mapping[str, Section], new: Mapping[str, Section]) -> tuple[str, ...]:
    return tuple(name for name in sorted({*old, *new}) if old.get(name) != new.get(name))


def changed_sections(old: Settings, new: Settings) -> frozenset[str]:
    """The names of the top-level sections that differ; upstreams do if more than their links depends on it."""
    changed = frozenset(name for name in Settings.model_fields if getattr(old, name) != getattr(new, name))
    return changed - {"upstreams"} if same_but_for_links(old.upstreams, new.upstreams) else changed


def same_but_for_links(old: Sequence[UpstreamSettings], new: Sequence[UpstreamSettings]) -> bool:
    """Whether the upstreams are the same, in the same order, and differ at most in what only links depend on."""
    return _same_but_for(_OF_LINKS, old, new)


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
        and _same_but_for(_UNSEEN, old.upstreams, new.upstreams)
    )


def in_force(old: Settings, new: Settings) -> Settings:
    """The new settings, with the old values of keys that need a restart."""
    proxy = new.proxy.model_copy(update={key: getattr(old.proxy, key) for key in _RESTART})
    return new.model_copy(update={"proxy": proxy, "admin": old.admin, "cluster": old.cluster})


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
