"""Keys for callers: how they are made, and found again by their hashes alone."""

from __future__ import annotations

import hashlib
import re

from mcproxy.access.keys import KeyRing, key_digest, make
from mcproxy.settings.access.authentication import ApiKeySettings


def key_of(text: str, *roles: str) -> ApiKeySettings:
    return ApiKeySettings(sha256=hashlib.sha256(text.encode()).hexdigest(), roles=roles)


def test_a_key_is_256_random_bits_behind_a_mark_that_scanners_know() -> None:
    made = {make() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"mcproxy_[A-Za-z0-9_-]{43}", key) for key in made)


def test_a_caller_may_have_several_keys_each_with_its_roles() -> None:
    ring = KeyRing({"bot": (key_of("old", "reader"), key_of("new", "writer")), "ann": (key_of("hers"),)})
    old, new, hers = (ring.find(key_digest(key)) for key in ("old", "new", "hers"))
    assert old is not None
    assert new is not None
    assert hers is not None
    assert (old.principal.name, old.principal.roles) == ("bot", frozenset({"reader"}))
    assert (new.principal.name, new.principal.roles) == ("bot", frozenset({"writer"}))
    assert hers.principal.name == "ann"


def test_the_audit_log_can_tell_a_callers_keys_apart_and_no_key_can_be_made_of_it() -> None:
    holder = KeyRing({"bot": (key_of("old"),)}).find(key_digest("old"))
    assert holder is not None
    assert holder.principal.attributes == (("key", hashlib.sha256(b"old").hexdigest()[:12]),)


def test_what_is_no_key_is_not_found() -> None:
    ring = KeyRing({"bot": (key_of("key"),)})
    assert [ring.find(key_digest(key)) for key in ("", "Key", "key ", key_digest("key").hex(), "\udcff")] == [None] * 5
