"""Find names in a configuration that name nothing: upstreams, roles and callers in rules, limits and endpoints (R86).

A deny rule that can deny nothing is an error, since it protects nothing, and so is an enforcing hook that is asked
about nothing. Everything else is a warning, such as approvals that no operator can give.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from mcproxy.configuration.problems import Path
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Settings
from mcproxy.settings.access.hooks import KINDS
from mcproxy.settings.access.policy import EFFECTS, EVERYONE, Rule

FEW: Final = 8
"""Names up to which all are listed if none resembles the unknown one."""
_POLICY: Final = ("access", "policy")
_LIMITS: Final = ("access", "limits", "rules")
_KEYS: Final = ("access", "authentication", "keys")


class Finding(msgspec.Struct, frozen=True):
    """A name that names nothing, with the path of its key."""

    path: Path
    sentence: str
    is_error: bool = False


def findings(settings: Settings) -> Iterator[Finding]:
    """Every name that names nothing, in the order of the sections."""
    yield from _of_rules(settings)
    yield from _of_approvals(settings)
    yield from _of_hooks(settings)
    yield from _of_limits(settings)
    yield from _of_endpoints(settings)
    yield from _of_keys(settings)
    yield from _of_principals(settings)
    yield from _of_roles(settings)


def _of_rules(settings: Settings) -> Iterator[Finding]:
    names = _names(settings)
    for role, rules in settings.access.policy.roles.items():
        for effect in EFFECTS:
            for index, rule in enumerate(rules.rules(effect)):
                path = (*_POLICY, "roles", role, effect, index)
                unknown = list(_unknown_globs(names, rule.upstreams, path))
                if effect == "deny" and _is_empty(rule):
                    yield Finding(path, "can deny nothing: it selects no tools, resources or prompts", is_error=True)
                elif effect == "deny" and len(unknown) == len(rule.upstreams):
                    reason = unknown[0].sentence if unknown else "it selects no upstream"
                    yield Finding((*path, "upstreams"), f"can deny nothing: {reason}", is_error=True)
                else:
                    yield from unknown


def _of_approvals(settings: Settings) -> Iterator[Finding]:
    """Rules by which calls wait for an operator although no caller can be one."""
    roles, admin = _attainable_roles(settings), settings.admin
    if settings.access.approvals.webhook is not None or admin.port is None or roles is None or admin.role in roles:
        return
    if not settings.access.authentication.required:
        return  # All visitors are operators then.
    for role, rules in settings.access.policy.roles.items():
        for index, rule in enumerate(rules.allow):
            if rule.approve == "operator":
                path = (*_POLICY, "roles", role, "allow", index, "approve")
                yield Finding(path, f"no caller can have the role {admin.role!r} (admin.role), and decide")


def _of_hooks(settings: Settings) -> Iterator[Finding]:
    names = _names(settings)
    for index, hook in enumerate(settings.access.hooks):
        path, enforces = ("access", "hooks", index), hook.mode == "enforce"
        unknown = list(_unknown_globs(names, hook.upstreams, path))
        if not any(hook.globs(KINDS[method]) for method in hook.on):
            kinds = " or ".join(KINDS[method].value for method in hook.on)
            reason = f"it selects no {kinds} (`on`)" if kinds else "`on` names no method"
            yield Finding(path, f"is never asked: {reason}", enforces)
        elif len(unknown) == len(hook.upstreams):
            reason = unknown[0].sentence if unknown else "it selects no upstream"
            yield Finding((*path, "upstreams"), f"is never asked: {reason}", enforces)
        else:
            yield from unknown


def _is_empty(rule: Rule) -> bool:
    return not any(rule.globs(kind) for kind in Kind)


def _of_limits(settings: Settings) -> Iterator[Finding]:
    names, roles = _names(settings), _attainable_roles(settings)
    for name, limit in settings.access.limits.rules.items():
        yield from _unknown_globs(names, limit.upstreams, (*_LIMITS, name))
        for role in limit.roles:
            yield from _unattainable(roles, role, (*_LIMITS, name, "roles", role))


def _of_endpoints(settings: Settings) -> Iterator[Finding]:
    names, roles = _names(settings), _attainable_roles(settings)
    for name, endpoint in settings.endpoints.items():
        yield from _unknown_globs(names, endpoint.upstreams, ("endpoints", name))
        for index, role in enumerate(endpoint.roles):
            yield from _unattainable(roles, role, ("endpoints", name, "roles", index))


def _of_keys(settings: Settings) -> Iterator[Finding]:
    """Roles given to keys that no rule, limit or endpoint mentions."""
    used = _used_roles(settings)
    for caller, keys in settings.access.authentication.keys.items():
        for number, key in enumerate(keys):
            for index, role in enumerate(key.roles):
                if role not in used:
                    path = (*_KEYS, caller, number, "roles", index)
                    yield Finding(path, f"the role {role!r} is defined nowhere{meant(role, used)}")


def _of_principals(settings: Settings) -> Iterator[Finding]:
    callers = caller_names(settings)
    for name in settings.access.policy.principals:
        if callers is not None and name not in callers:
            path = (*_POLICY, "principals", name)
            yield Finding(path, f"no caller is called {name!r}{meant(name, callers)}")


def _of_roles(settings: Settings) -> Iterator[Finding]:
    roles = _attainable_roles(settings)
    for role in settings.access.policy.roles:
        yield from _unattainable(roles, role, (*_POLICY, "roles", role))


def _unknown_globs(names: Collection[str], globs: Iterable[str], path: Path) -> Iterator[Finding]:
    for index, glob in enumerate(globs):
        if glob != "*" and not any(fnmatchcase(name, glob) for name in names):
            sentence = f"no server matches {glob!r}{meant(glob, names)}"
            yield Finding((*path, "upstreams", index), sentence)


def _unattainable(roles: Collection[str] | None, role: str, path: Path) -> Iterator[Finding]:
    if roles is not None and role not in roles:
        yield Finding(path, f"no caller can have the role {role!r}{meant(role, roles)}")


def _names(settings: Settings) -> Collection[str]:
    return [upstream.name for upstream in settings.upstreams]


def _used_roles(settings: Settings) -> set[str]:
    """Roles that some setting uses."""
    access = settings.access
    return {
        EVERYONE,
        settings.admin.role,
        *access.policy.roles,
        *(role for limit in access.limits.rules.values() for role in limit.roles),
        *(role for endpoint in settings.endpoints.values() for role in endpoint.roles),
    }


def _attainable_roles(settings: Settings) -> Collection[str] | None:
    """Roles that some caller can have; None if tokens, or a proxy in front, name further roles."""
    authentication = settings.access.authentication
    if authentication.oauth.issuers or (authentication.forwarded.trusted and authentication.forwarded.roles_header):
        return None
    granted = [
        *(key.roles for keys in authentication.keys.values() for key in keys),
        *settings.access.policy.principals.values(),
        authentication.stdio.roles,
        authentication.forwarded.roles if authentication.forwarded.trusted else (),
        authentication.certificates.roles if authentication.certificates.enabled else (),
    ]
    return {EVERYONE, *(role for roles in granted for role in roles)}


def caller_names(settings: Settings) -> Collection[str] | None:
    """The names that callers can have; None if another party names them."""
    authentication = settings.access.authentication
    named_elsewhere = authentication.oauth.issuers or authentication.forwarded.trusted
    if named_elsewhere or authentication.certificates.enabled:
        return None
    return {*authentication.keys, authentication.stdio.name, *(() if authentication.required else ("anonymous",))}


def meant(name: str, known: Collection[str]) -> str:
    """The end of a sentence that suggests the nearest known name, or lists all if they are few."""
    near = suggestion(name, known)
    return near if near or not 0 < len(known) <= FEW else f"; there are {', '.join(map(repr, sorted(known)))}"


def suggestion(name: str, known: Collection[str]) -> str:
    """The end of a sentence that suggests the nearest known name, if any is near."""
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
