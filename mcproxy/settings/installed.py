"""Features that other packages bring, found by their entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from mcproxy.settings.section import Section

GROUP: Final = "mcproxy.features"
"""The group of the entry points."""


def installed_feature(name: str) -> EntryPoint:
    """The entry point of a feature. Raises ValueError if no installed package has one of that name."""
    found = entry_points(group=GROUP)
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "none"
        raise ValueError(f"no installed package has a feature of this name (installed: {known})")
    return found[name]


def section_of(name: str) -> type[Section]:
    """The shape of a feature's settings. Raises ValueError if the feature is not installed, or cannot be loaded."""
    try:
        section: type[Section] | None = installed_feature(name).load().section
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the feature cannot be loaded: {error}") from error
    return section or Section
