"""The disturbances of a chaos run: an endless sequence that the seed alone determines."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Action(Enum):
    """A disturbance, and its weight among the others."""

    KILL = "kills"
    """SIGKILL for a process of the upstream; one over HTTP is started again."""
    TERMINATE = "terminations"
    """SIGTERM, likewise."""
    FREEZE = "freezes"
    """SIGSTOP, and SIGCONT later."""
    CUT = "cuts of connections"
    """All HTTP connections of the upstream are reset."""
    DISABLE = "reloads without an upstream"
    """A reload without the upstream, and one with it later."""
    RELOAD = "reloads of something else"
    """A reload that changes another setting."""
    REVOKE = "revocations"
    """A reload without the key of a principal, and one with it later."""


WEIGHTS: Final = {
    Action.KILL: 6,
    Action.TERMINATE: 2,
    Action.FREEZE: 4,
    Action.CUT: 4,
    Action.DISABLE: 2,
    Action.RELOAD: 2,
    Action.REVOKE: 2,
}


@dataclass(frozen=True, slots=True)
class Decision:
    after: float
    """Seconds since the decision before it."""
    action: Action
    target: str
    """An upstream or a principal; empty where the action has none."""
    lasts: float
    """Seconds until it is undone."""


def decisions(seed: int, children: Sequence[str], web: Sequence[str], principals: Sequence[str]) -> Iterator[Decision]:
    """`children` are upstreams over stdio, `web` those over HTTP."""
    chance = random.Random(seed)
    actions, weights = list(WEIGHTS), list(WEIGHTS.values())
    targets: dict[Action, Sequence[str]] = {
        Action.CUT: web,
        Action.RELOAD: [""],
        Action.REVOKE: principals,
    }
    while True:
        [action] = chance.choices(actions, weights)
        target = chance.choice(targets.get(action, [*children, *web]))
        yield Decision(chance.uniform(0.2, 3), action, target, chance.uniform(0.2, 8))
