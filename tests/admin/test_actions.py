"""What operators do to upstreams, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from mcproxy.access.audit.operator_records import OperatorRecord
from mcproxy.admin.actions import Actions, NoSuchUpstream
from mcproxy.telemetry import logs


@dataclass
class FakeUpstream:
    done: list[str] = field(default_factory=list)

    def restart(self) -> None:
        self.done.append("restart")

    def retry(self) -> None:
        self.done.append("retry")

    async def forget_login(self) -> None:
        self.done.append("forget login")


def test_an_upstream_is_restarted_and_retried_by_name() -> None:
    one, other = FakeUpstream(), FakeUpstream()
    recorded: list[OperatorRecord] = []
    actions = Actions(lambda: {"one": one, "other": other}, recorded.append, lambda: 5.0)
    actions.restart("one", "me")
    actions.retry("one", "me")
    assert recorded == [OperatorRecord(5.0, "me", "restart", "one"), OperatorRecord(5.0, "me", "retry", "one")]
    assert (one.done, other.done) == (["restart", "retry"], [])


def test_an_upstream_that_does_not_run_is_refused_with_the_names_of_those_that_do() -> None:
    actions = Actions(lambda: {"one": FakeUpstream(), "other": FakeUpstream()}, lambda _: None)
    with pytest.raises(NoSuchUpstream, match="'on' runs here; did you mean 'one'"):
        actions.restart("on", "me")


def test_an_upstream_that_is_disabled_is_refused_with_the_command_that_enables_it() -> None:
    actions = Actions(lambda: {"one": FakeUpstream()}, lambda _: None, disabled=lambda: ["ones", "a b"])
    for name, command in (("ones", "mcproxy enable ones"), ("a b", "mcproxy enable 'a b'")):
        with pytest.raises(NoSuchUpstream, match=f"is disabled: `{command}` starts it"):
            actions.retry(name, "me")


def test_the_log_level_is_changed_or_refused() -> None:
    actions = Actions(dict, lambda _: None)
    before = logs.is_verbose()
    try:
        actions.set_log_level("debug", "me")
        assert logs.is_verbose()
        with pytest.raises(ValueError, match="'loud' is no level: it should be one of debug"):
            actions.set_log_level("loud", "me")
    finally:
        actions.set_log_level("debug" if before else "warning", "me")
