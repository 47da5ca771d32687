"""Every state machine of the package is a table that makes sense: closed, connected, and in words.

That the code runs on the table is for the test beside each module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

import pytest

from tests.docs.diagrams import Table, diagram, finals_of, meanings, state_machines, states_of, table_of


def faults(table: Table) -> Iterator[str]:
    """What is wrong with a table, in sentences."""
    edges = [(state, event, after) for state, row in table.items() for event, after in row.items()]
    states, events = states_of(table), type(edges[0][1])
    for kind, suffix in ((states, "State"), (events, "Event")):
        if not kind.__name__.endswith(suffix):
            yield f"{kind.__name__} is not called ...{suffix}"
        yield from _faults_of_words(kind)
    for name, meaning in meanings(states).items():
        if meaning.replace("_", " ").lower() == name.replace("_", " ").lower():
            yield f"{name} means no more than its name"
    strange = {each for state, _, after in edges for each in (state, after) if not isinstance(each, states)}
    strange |= {event for _, event, _ in edges if not isinstance(event, events)}
    if strange:
        yield f"of other enums: {_names(strange)}"
        return
    finals = finals_of(table)
    onward = {(state, after) for state, _, after in edges}
    if unreached := set(states) - _reached([next(iter(states))], onward):
        yield f"no event leads to {_names(unreached)}"
    if finals and (caught := set(states) - _reached(finals, {(after, state) for state, after in onward})):
        yield f"no event leads from {_names(caught)} to an end"
    if len(finals) * 2 > len(states):
        yield f"most states are final: {_names(finals)}"
    if unused := set(events) - {event for _, event, _ in edges}:
        yield f"no state takes {_names(unused)}"


def _faults_of_words(kind: type[Enum]) -> Iterator[str]:
    """Two names with one value are one member to an enum, so that the value must differ."""
    for name, member in kind.__members__.items():
        if not isinstance(member.value, str) or not re.fullmatch(r"\S.*[^\s.]", member.value):
            yield f"{name} is no phrase: {member.value!r}"
        if member.name != name:
            yield f"{name} says the same as {member.name}"


def _reached(roots: Iterable[Enum], onward: set[tuple[Enum, Enum]]) -> set[Enum]:
    found, fresh = set[Enum](), set(roots)
    while fresh:
        found |= fresh
        fresh = {after for before, after in onward if before in fresh} - found
    return found


def _names(members: Iterable[Enum]) -> str:
    return ", ".join(sorted(member.name for member in members))


@pytest.mark.parametrize("module", state_machines())
def test_the_table_of_a_state_machine_is_closed_connected_and_in_words(module: str) -> None:
    assert list(faults(table_of(module))) == []


class DoorState(Enum):
    SHUT = "shut: a key opens it"
    OPEN = "open"
    """Open to whoever comes by."""
    GONE = "taken off its hinges"


class DoorEvent(Enum):
    PUSHED = "somebody pushed"
    PULLED = "somebody pulled"


class WallState(Enum):
    UP = "up."
    ALSO_UP = "up."  # noqa: PIE796 - the fault to be found
    DOWN = ""
    FALLEN = "fallen"


TRANSITIONS: Table = {
    DoorState.SHUT: {DoorEvent.PUSHED: DoorState.OPEN},
    DoorState.OPEN: {DoorEvent.PULLED: DoorState.SHUT, DoorEvent.PUSHED: DoorState.GONE},
}


def test_a_good_table_has_no_fault() -> None:
    assert list(faults(TRANSITIONS)) == []


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({**TRANSITIONS, WallState.UP: {}, DoorState.SHUT: {DoorEvent.PUSHED: WallState.UP}}, "of other enums: UP"),
        ({**TRANSITIONS, DoorState.OPEN: {DoorEvent.PULLED: DoorState.SHUT}}, "no event leads to GONE"),
        (
            {**TRANSITIONS, DoorState.OPEN: {DoorEvent.PULLED: DoorState.OPEN}},
            "no event leads from OPEN, SHUT to an end",
        ),
        ({DoorState.SHUT: TRANSITIONS[DoorState.SHUT]}, "most states are final: GONE, OPEN"),
        ({**TRANSITIONS, DoorState.OPEN: {DoorEvent.PUSHED: DoorState.GONE}}, "no state takes PULLED"),
        ({WallState.UP: {DoorEvent.PUSHED: WallState.DOWN}}, "ALSO_UP says the same as UP"),
        ({WallState.UP: {DoorEvent.PUSHED: WallState.DOWN}}, "UP is no phrase: 'up.'"),
        ({WallState.UP: {DoorEvent.PUSHED: WallState.DOWN}}, "DOWN is no phrase: ''"),
        ({WallState.UP: {DoorEvent.PUSHED: WallState.FALLEN}}, "FALLEN means no more than its name"),
        ({DoorEvent.PUSHED: {DoorState.SHUT: DoorEvent.PULLED}}, "DoorEvent is not called ...State"),
    ],
)
def test_a_fault_of_a_table_is_found(table: Table, fault: str) -> None:
    assert fault in list(faults(table))


def test_every_module_with_a_table_is_found(tmp_path: Path) -> None:
    (tmp_path / "package" / "room").mkdir(parents=True)
    (tmp_path / "package" / "plain.py").write_text("TRANSITIONS = {}\n")
    (tmp_path / "package" / "room" / "typed.py").write_text("TRANSITIONS: Final[dict[str, str]] = {}\n")
    (tmp_path / "package" / "other.py").write_text("def f():\n    TRANSITIONS = {}\n")
    assert state_machines(tmp_path / "package") == ["package.plain", "package.room.typed"]


def test_a_table_is_drawn_with_each_state_and_each_edge() -> None:
    assert diagram(__name__).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> SHUT",
        "    SHUT : SHUT",
        "    SHUT : shut#58; a key opens it",
        "    OPEN : OPEN",
        "    OPEN : open to whoever comes by",
        "    GONE : GONE",
        "    GONE : taken off its hinges",
        "    SHUT --> OPEN : somebody pushed",
        "    OPEN --> SHUT : somebody pulled",
        "    OPEN --> GONE : somebody pushed",
        "    GONE --> [*]",
    ]
