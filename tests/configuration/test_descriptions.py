"""Descriptions of settings, as they stand in the source."""

from __future__ import annotations

from mcproxy.configuration.descriptions import key_descriptions
from mcproxy.settings import Section


class Pump(Section):
    """A section."""

    pressure: int = 1
    """How hard it pumps.

    In bar.
    """
    valves: tuple[str, ...] = ()
    spare: int = 0


class SpeedPump(Pump):
    speed: int = 1
    """Turns per second."""
    pressure: int = 2
    """How hard it pumps at speed."""


def test_the_text_below_a_key_describes_it() -> None:
    assert key_descriptions(Pump)["pressure"] == "How hard it pumps.\n\nIn bar."


def test_a_key_without_text_has_no_description() -> None:
    assert "valves" not in key_descriptions(Pump)


def test_a_section_describes_the_keys_of_the_one_that_it_extends() -> None:
    assert key_descriptions(SpeedPump) == {"speed": "Turns per second.", "pressure": "How hard it pumps at speed."}
