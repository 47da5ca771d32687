"""The twin of `mcproxy.gateway.listings.routes`, as `mcproxy.gateway.listings.state` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from mcproxy.access.policy import Policy
from mcproxy.call.calls import Call, Decision
from mcproxy.call.identity import AGGREGATE, Caller, Principal
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.naming import layouts
from mcproxy.catalog.uri_matching import matcher, readings
from mcproxy.catalog.views.snapshots import Entry, Listing
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.routes import ExposedRoute
from mcproxy.gateway.listings.state import Catalogue, CatalogueRules
from mcproxy.gateway.resolving.call_subjects import SubjectResolver
from mcproxy.gateway.resolving.task_ids import TaskIds
from mcproxy.protocol.eras import LATEST, V2025_06_18, V2025_11_25, Era
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind, row_of
from mcproxy.sealing import Sealer
from mcproxy.settings import PolicySettings as Rules
from tests.fakes.upstream import FakeClient, settings_of, tool

OPEN: Final[dict[str, Any]] = {}
ROLES: Final[dict[str, Any]] = {
    "default": "allow",
    "roles": {"ops": {"allow": [{"tools": ["push"]}]}, "guest": {"deny": [{"upstreams": ["first"]}]}},
}
ANN = Principal("ann", frozenset({"ops"}))
EVE = Principal("eve", frozenset({"guest"}))


def catalogue(
    policy: Mapping[str, Any], upstreams: Mapping[str, Mapping[str, object]], max_views: int = 10
) -> Catalogue:
    """In which every upstream has a tool `push`."""
    rules = Rules.model_validate(policy)
    judge = Policy(rules, readings=readings, matcher=matcher)
    made = Catalogue(CatalogueRules(layouts(settings_of(upstreams).upstreams, 64), judge, max_views))
    for name in upstreams:
        connect(made, name, {})
        listed(made, name)
    return made


def connect(made: Catalogue, name: str, capabilities: Mapping[str, object], owner: str | None = None) -> None:
    offered = {key: raw(value) for key, value in {"tools": {}, **capabilities}.items()}
    made.known.connect(LinkKey(name, owner), ServerIdentity(Era.HANDSHAKE, V2025_11_25, offered))


def listed(made: Catalogue, name: str, **members: object) -> None:
    made.known.replace(LinkKey(name, None), Kind.TOOLS, Listing((Entry("push", raw(tool("push", **members))),)))


def caller(principal: Principal = ANN, version: str = V2025_11_25, session: str | None = None) -> Caller:
    return Caller(principal, version, endpoint=AGGREGATE, session=session)


def route(made: Catalogue, who: Caller, name: str = "up__push") -> ExposedRoute:
    found = made.routes(who).find(Kind.TOOLS, name)
    assert found is not None
    return found


def test_callers_of_one_standing_share_an_outlook_and_what_is_found_out_in_it() -> None:
    made = catalogue(OPEN, {"up": {}})
    assert made.routes(caller(ANN)) is made.routes(caller(EVE))
    assert route(made, caller(ANN)) is route(made, caller(EVE))


def test_a_name_that_is_not_shown_leads_nowhere() -> None:
    routes = catalogue(OPEN, {"up": {}}).routes(caller())
    assert routes.find(Kind.TOOLS, "push") is None
    assert routes.find(Kind.PROMPTS, "up__push") is None


def test_what_a_tool_says_of_itself_anew_holds_at_once() -> None:
    made = catalogue(OPEN, {"up": {}})
    assert not route(made, caller()).repeatable
    listed(made, "up", annotations={"readOnlyHint": True})
    assert route(made, caller()).repeatable


def test_tasks_that_an_upstream_has_since_it_is_back_hold_at_once() -> None:
    made = catalogue(OPEN, {"up": {}})
    assert not route(made, caller()).has_tasks
    connect(made, "up", {"tasks": {}})
    assert route(made, caller()).has_tasks
    assert not route(made, caller(version=V2025_06_18)).has_tasks


REQUIRED: Final[dict[str, object]] = {"execution": {"taskSupport": "required"}}
EXTENSION: Final[dict[str, object]] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


@pytest.mark.parametrize(
    ("version", "capabilities", "members", "deferred"),
    [
        (V2025_11_25, {}, {}, False),
        (V2025_11_25, {}, REQUIRED, True),
        (V2025_11_25, {"tasks": {}}, REQUIRED, False),
        (V2025_06_18, {"tasks": {}}, REQUIRED, True),
        (LATEST, EXTENSION, {}, True),
        (LATEST, {}, {}, False),
    ],
)
def test_a_task_answers_unasked_only_where_a_tool_must_be_one_or_its_upstream_decides(
    version: str, capabilities: Mapping[str, object], members: Mapping[str, object], deferred: bool
) -> None:
    made = catalogue(OPEN, {"up": {}})
    offered = {key: raw(value) for key, value in {"tools": {}, **capabilities}.items()}
    era, spoken = (Era.STATELESS, LATEST) if version == LATEST else (Era.HANDSHAKE, V2025_11_25)
    made.known.connect(LinkKey("up", None), ServerIdentity(era, spoken, offered))
    listed(made, "up", **members)
    assert route(made, caller(version=version)).deferred is deferred


def test_whether_all_may_use_the_same_is_as_other_settings_say_at_once() -> None:
    made, same = catalogue(OPEN, {"up": {}}), caller()
    assert made.routes(same).for_all
    rules = Rules.model_validate(ROLES)
    closed = Policy(rules, readings=readings, matcher=matcher)
    made.reconfigure(CatalogueRules(layouts(settings_of({"up": {}}).upstreams, 64), closed, 10))
    assert not made.routes(same).for_all


def test_the_link_of_a_session_says_what_tasks_there_are_for_that_session() -> None:
    made = catalogue(OPEN, {"up": {"connection": "session"}})
    assert not route(made, caller(session="one")).has_tasks
    connect(made, "up", {"tasks": {}}, owner="one")
    assert route(made, caller(session="one")).has_tasks
    assert not route(made, caller(session="other")).has_tasks
    made.known.retire(LinkKey("up", "one"))
    assert not route(made, caller(session="one")).has_tasks


def test_what_decides_is_told_by_standing_though_all_may_use_the_same() -> None:
    policy = {"default": "allow", "roles": {"ops": {"allow": [{"tools": ["push"]}]}}}
    made = catalogue(policy, {"up": {}})
    by_rule, by_default = route(made, caller(ANN)).subject.decision, route(made, caller(EVE)).subject.decision
    assert "roles.ops.allow" in str(by_rule.rule if by_rule else None)
    assert by_default == Decision(True)


def test_what_arguments_decide_is_not_decided_before_they_are_there() -> None:
    made = catalogue({"roles": {"ops": {"allow": [{"arguments": {"x": {"equals": 1}}}]}}}, {"up": {}})
    assert route(made, caller()).subject.decision is None


def test_outlooks_that_were_not_asked_for_lately_give_way() -> None:
    made = catalogue({"default": "allow", "roles": {"ops": {}, "guest": {}}}, {"up": {}}, max_views=1)
    first = made.routes(caller(ANN))
    assert made.routes(caller(ANN)) is first
    made.routes(caller(EVE))
    assert made.routes(caller(ANN)) is not first


def test_what_changes_while_a_call_is_on_its_way_holds_at_once_for_its_caller() -> None:
    made, same = catalogue({"default": "allow", "roles": {"ops": {}}}, {"up": {}}), caller()
    before = made.routes(same)
    assert made.routes(same) is before
    listed(made, "up", annotations={"readOnlyHint": True})
    assert route(made, same).repeatable
    connect(made, "up", {"tasks": {}})
    assert route(made, same).has_tasks
    policy = Policy(Rules(), readings=readings, matcher=matcher)
    made.reconfigure(CatalogueRules({}, policy, 10))
    assert made.routes(same).find(Kind.TOOLS, "up__push") is None
    made.reconfigure(CatalogueRules(layouts(settings_of({"up": {}}).upstreams, 64), policy, 10))
    assert route(made, same).has_tasks
    made.known.retire(LinkKey("up", None))
    assert made.routes(same).find(Kind.TOOLS, "up__push") is None


def test_a_name_is_aimed_where_its_call_goes_before_what_is_hidden_from_the_caller() -> None:
    """Two upstreams without a prefix have a tool of one name: the first shows it, to those who may use it."""
    made = catalogue(ROLES, {"first": {"prefix": ""}, "second": {"prefix": ""}})
    aiming = SubjectResolver(made, TaskIds(made, Sealer(b"secret")), beyond=True)

    def aimed(principal: Principal) -> str:
        return aiming(Call(row_of("tools/call"), {"name": raw("push")}, caller(principal), FakeClient())).upstream

    assert aimed(ANN) == route(made, caller(ANN), "push").shown.upstream == "first"
    assert aimed(EVE) == route(made, caller(EVE), "push").shown.upstream == "second"
