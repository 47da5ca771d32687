"""The prefix of each upstream's exposed names: the configured one, else a unique slug of the upstream's name."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping


def slug(name: str) -> str:
    """The prefix made of a name alone: `GitHub (work)` -> `github-work`."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (text if re.match(r"[a-z]", text) else f"s-{text or _digest(name)}")[:32].rstrip("-")


def prefixes(configured: Mapping[str, str | None]) -> dict[str, str]:
    """The prefix of each upstream, by name: the configured one, else its slug.

    Slugs that are equal to another or to a configured prefix each get a digest of their name, so that the result
    does not depend on the order of the file (R29).
    """
    slugs = {name: slug(name) for name, prefix in configured.items() if prefix is None}
    uses = Counter([*slugs.values(), *(prefix for prefix in configured.values() if prefix is not None)])
    unique = {name: text if uses[text] == 1 else f"{text[:23]}-{_digest(name)}" for name, text in slugs.items()}
    return {name: unique[name] if prefix is None else prefix for name, prefix in configured.items()}


def _digest(name: str) -> str:
    return hashlib.blake2s(name.encode(), digest_size=4).hexdigest()
