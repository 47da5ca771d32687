"""The twin of `mcproxy.gateway.resolving`, where calls do not show it: what is known of their upstream before."""

from __future__ import annotations

import pytest

from mcproxy.access.policy import Policy
from mcproxy.call.calls import Call
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.naming import Space, layouts
from mcproxy.catalog.uri_matching import matcher, readings
from mcproxy.catalog.views.snapshots import Entry, Listing
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.state import Catalogue, CatalogueRules
from mcproxy.gateway.resolving.targets import Resolver
from mcproxy.gateway.resolving.task_ids import TaskIds
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, Era
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind, row_of
from mcproxy.sealing import Sealer
from mcproxy.settings import PolicySettings as Rules
from tests.fakes.upstream import FakeClient, settings_of, tool

LINK = LinkKey("up", None)
CAPABILITIES = {"tools": raw({}), "resources": raw({})}


class World:
    """One upstream with a tool `push`, and a resolver before it."""

    def __init__(self, **rules: object) -> None:
        policy = Policy(Rules.model_validate(rules), readings=readings, matcher=matcher)
        self.catalogue = Catalogue(CatalogueRules(layouts(settings_of({"up": {}}).upstreams, 64), policy, 10))
        self.resolver = Resolver(self.catalogue, _reach, TaskIds(self.catalogue, Sealer(b"secret")))

    def connect(self, era: Era, version: str) -> None:
        self.catalogue.known.connect(LINK, ServerIdentity(era, version, CAPABILITIES))
        self.catalogue.known.replace(LINK, Kind.TOOLS, Listing((Entry("push", raw(tool("push"))),)))

    def asks_by_results(self, method: str = "tools/call", **params: object) -> bool:
        return self.resolver.asks_by_results(self.call(method, **params))

    def may_be_referred(self, method: str = "tools/call", **params: object) -> bool:
        return self.resolver.may_be_referred(self.call(method, **params))

    def call(self, method: str, **params: object) -> Call:
        raw_params = {key: raw(value) for key, value in (params or {"name": "up__push"}).items()}
        return Call(row_of(method), raw_params, Caller(ANONYMOUS, LATEST), FakeClient())


async def _reach(space: Space, kind: Kind, call: Call) -> None:
    raise AssertionError("nobody is asked")


def test_an_upstream_asks_by_results_alone_while_a_stateless_link_to_it_is_up() -> None:
    world = World()
    assert not world.asks_by_results()
    world.connect(Era.STATELESS, LATEST)
    assert world.asks_by_results()
    world.catalogue.known.disconnect(LINK)
    assert not world.asks_by_results()
    world.connect(Era.HANDSHAKE, LATEST_HANDSHAKE)
    assert not world.asks_by_results()


@pytest.mark.parametrize(
    ("method", "params", "known"),
    [
        ("resources/read", {"uri": "up+file:///x"}, True),
        ("resources/read", {"uri": "file:///x"}, False),
        ("tools/call", {"name": "up__other"}, False),
        ("tools/call", {"name": 7}, False),
        ("prompts/get", {"name": "up__push"}, False),
        ("tasks/result", {"taskId": "made up"}, False),
    ],
)
def test_of_a_call_that_may_go_nowhere_it_is_not_known(method: str, params: dict[str, object], known: bool) -> None:
    world = World()
    world.connect(Era.STATELESS, LATEST)
    assert world.asks_by_results(method, **params) is known


@pytest.mark.parametrize(
    ("approve", "method", "name", "may"),
    [
        ("operator", "tools/call", "up__push", True),
        ("operator", "tools/call", "up__pull", False),
        ("operator", "tools/call", "up__not_listed_yet", True),
        ("operator", "prompts/get", "up__push", False),
        ("caller", "tools/call", "up__not_listed_yet", False),
    ],
)
def test_an_operator_may_have_to_decide_where_a_rule_says_so_or_the_tool_is_not_known_yet(
    approve: str, method: str, name: str, may: bool
) -> None:
    world = World(roles={"everyone": {"allow": [{"tools": ["push"], "approve": approve}, {}]}})
    world.connect(Era.STATELESS, LATEST)
    pushes = (Entry("push", raw(tool("push"))), Entry("pull", raw(tool("pull"))))
    world.catalogue.known.replace(LINK, Kind.TOOLS, Listing(pushes))
    assert world.may_be_referred(method, name=name) is may
