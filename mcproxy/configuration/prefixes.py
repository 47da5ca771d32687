"""The prefix of each upstream: the chosen one, else a slug of its name that no other upstream has."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping


def slug(name: str) -> str:
    """The prefix that a name makes by itself: `GitHub (work)` -> `github-work`."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (text if re.match(r"[a-z]", text) else f"s-{text or _digest(name)}")[:32].rstrip("-")


def prefixes(chosen: Mapping[str, str | None]) -> dict[str, str]:
    """The prefix of each upstream, by name: the chosen one, else its slug.

    Slugs that clash, with each other or with a chosen prefix, each get a digest of their name: the outcome does
    not depend on the order of the file (requirement R29).
    """
    slugs = {name: slug(name) for name, prefix in chosen.items() if prefix is None}
    uses = Counter([*slugs.values(), *(prefix for prefix in chosen.values() if prefix is not None)])
    unique = {name: text if uses[text] == 1 else f"{text[:23]}-{_digest(name)}" for name, text in slugs.items()}
    return {name: unique[name] if prefix is None else prefix for name, prefix in chosen.items()}


def _digest(name: str) -> str:
    return hashlib.blake2s(name.encode(), digest_size=4).hexdigest()
