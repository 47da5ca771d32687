"""The whole gateway against a model: clients that watch and read, a server that changes, a link that comes and goes.

The server takes requests up and lets its answers go when the test says so, in any interleaving. Whatever happened: who
began to read after the news arrived gets nothing older, and once all is quiet every subscriber that read when it was
told to has the last value, and the server's subscriptions are those of the clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import Change, ListChanged, ResourceUpdated
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import Caller, Principal
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    LinkState,
    PushChannel,
    ServerIdentity,
    UpstreamChanged,
    UpstreamStatus,
)
from mcproxy.gateway.gateway import Gateway
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, raw
from mcproxy.protocol.methods import SUBSCRIBE, UNSUBSCRIBE, Kind, row_of
from mcproxy.sealing import Sealer
from mcproxy.telemetry.metrics import Metrics
from tests.depth import examples
from tests.fakes.reading import Clock
from tests.fakes.upstream import FakeClient, FakeListener, Sleeper, complete, quiet, settings_of

T = TypeVar("T")

PEOPLE = st.integers(0, 4)
NAME = "a"
URIS = ["public:x", "private:x"]
PART = "/part"
MANY = 5
READ = "resources/read"
DOWN = Failed(ErrorObject(INTERNAL_ERROR, "the link is down"), Party.UPSTREAM, Reason.UNAVAILABLE)
REFUSED = Failed(ErrorObject(INTERNAL_ERROR, "not now"), Party.UPSTREAM)
LATE = Failed(ErrorObject(INTERNAL_ERROR, "no answer in time"), Party.UPSTREAM, Reason.TIMEOUT)
IDENTITY = ServerIdentity(Era.HANDSHAKE, LATEST_HANDSHAKE, {"resources": raw({"subscribe": True})})
SHORT, LONG = 1, 1000
"""Seconds, less and more than a result is good for."""


@dataclass(eq=False)
class Asked:
    """A request that reached the server: taken up when the test says so, and answered after that."""

    call: Call
    uri: str
    outcome: Outcome | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True)
class News:
    """What the server tells, and the versions that are known from then on."""

    change: Change
    versions: dict[str, int]


@dataclass(eq=False)
class Archive:
    """An `Upstream`: resources with versions, and subscriptions that last as long as the link."""

    name: str = NAME
    up: bool = False
    versions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(URIS, 0))
    subscribed: set[str] = field(default_factory=set)
    news: list[News] = field(default_factory=list)
    """On their way over the link."""
    unheard: bool = False
    """Whether news are lost, though the link stands."""
    asked: list[Asked] = field(default_factory=list)

    @property
    def status(self) -> UpstreamStatus:
        return UpstreamStatus(self.name, LinkState.READY if self.up else LinkState.BACKING_OFF, 0, "fake")

    def release(self, owner: str) -> None:
        raise AssertionError("nobody has a link of its own")

    async def __call__(self, call: Call) -> Outcome:
        if not self.up:
            return DOWN
        if "uri" not in call.params:
            return complete(resources=[], resourceTemplates=[])
        asked = Asked(call, msgspec.json.decode(call.params["uri"]))
        self.asked.append(asked)
        try:
            await asked.answered.wait()
        finally:
            self.asked.remove(asked)
        assert asked.outcome is not None
        return asked.outcome

    def take_up(self, asked: Asked) -> None:
        if asked.outcome is None:
            asked.outcome = self._carried_out(asked)

    def answer(self, asked: Asked) -> None:
        self.take_up(asked)
        asked.answered.set()

    def write(self, uri: str, part: str = "") -> None:
        """`part` of it is what changes, and what is reported."""
        self.versions[uri] += 1
        if uri in self.subscribed:
            version = self.versions[uri]
            self.tell(News(ResourceUpdated(uri + part, {"version": raw(version)}), {uri: version}))

    def rewrite(self) -> None:
        """Everything is another."""
        for uri in URIS:
            self.write(uri)
        self.tell(News(ListChanged(Kind.RESOURCES), dict(self.versions)))

    def tell(self, news: News) -> None:
        if self.up and not self.unheard:
            self.news.append(news)

    def cut(self) -> None:
        """The link ends, and with it what was on its way, but for the answers that had arrived."""
        self.up = self.unheard = False
        self.subscribed.clear()
        self.news.clear()
        for asked in self.asked:
            if not asked.answered.is_set():
                asked.outcome = DOWN
                asked.answered.set()

    def _carried_out(self, asked: Asked) -> Outcome:
        if asked.call.method == SUBSCRIBE:
            self.subscribed.add(asked.uri)
            return complete()
        if asked.call.method == UNSUBSCRIBE:
            self.subscribed.discard(asked.uri)
            return complete()
        value = f"{self.versions[asked.uri]} for {asked.call.caller.principal.name}"
        scope = asked.uri.partition(":")[0]
        return complete(contents=[{"uri": asked.uri, "text": value}], ttlMs=100_000, cacheScope=scope)


@dataclass(eq=False)
class Person(FakeListener):
    """A client that reads again what it is told has changed."""

    archive: Archive = field(default_factory=Archive)
    warned: dict[str, int] = field(default_factory=dict)
    """The version that it was told of last; where it was told for safety's sake, the one that there was."""
    watches: set[str] = field(default_factory=set)
    asks: set[str] = field(default_factory=set)
    """What it asks to watch, or to watch no more."""
    unwanted: list[str] = field(default_factory=list)
    """What it was told of out of turn."""
    due: set[str] = field(default_factory=set)
    """What it has to read once more."""
    has: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The latest of its reads by URI, and what that brought."""

    def signal(self, change: Change) -> None:
        super().signal(change)
        assert isinstance(change, ResourceUpdated)
        uri = change.uri.removeprefix(f"{NAME}+").removesuffix(PART)
        self.due.add(uri)
        version = change.params.get("version")
        self.warned[uri] = self.archive.versions[uri] if version is None else int(bytes(version))
        if uri not in self.watches | self.asks:
            self.unwanted.append(uri)


@dataclass(eq=False)
class Pending:
    """A request of a client. `floor` is the oldest version that a read may bring."""

    person: Person
    method: str
    uri: str
    floor: int
    number: int
    outcome: Outcome | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def run(self, gateway: Gateway) -> None:
        params = {"uri": raw(f"{NAME}+{self.uri}")}
        with self.scope:
            self.outcome = await gateway.handler(
                Call(row_of(self.method), params, self.person.caller, FakeClient(), self.person)
            )


class GatewayMachine(RuleBasedStateMachine):
    """Drives one event loop by hand: each rule lets all tasks go as far as they can."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.archive = Archive()
        self.clock, self.sleeper, self.metrics = Clock(), Sleeper(), Metrics()
        self.known = dict.fromkeys(URIS, 0)
        """The newest version of which the gateway was told, or that it must suspect."""
        self.people: list[Person] = []
        self.pending: list[Pending] = []
        self.count = 0

    @initialize(coherent=st.booleans())
    def begin(self, coherent: bool) -> None:
        self.coherent = coherent
        options = {NAME: {"cache": {"coherent": coherent, "max_watched": 2}}}
        self.gateway = Gateway(
            settings_of(options),
            {NAME: self.archive},
            self.metrics,
            Sealer(b"secret"),
            sleep=self.sleeper,
            now=self.clock,
        )
        self.drive(self.open())
        self.people = [self.newcomer(number) for number in range(MANY)]
        self.drive(self.connect())
        self.idle = self.drive(self.tasks())

    async def open(self) -> None:
        self.host = asyncio.get_running_loop().create_task(self.gateway.run())

    async def tasks(self) -> int:
        return len(asyncio.all_tasks())

    async def connect(self) -> None:
        self.archive.up = True
        self.gateway.on_event(Connected(NAME, None, IDENTITY))

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        async def driven() -> T:
            result = await work
            await quiet()
            return result

        return self.runner.run(driven())

    # What clients do.

    def newcomer(self, number: int) -> Person:
        person = Person(Caller(Principal(["alice", "bob"][number % 2]), LATEST), archive=self.archive)
        self.gateway.join(person)
        return person

    def ask(self, person: Person, method: str, uri: str) -> None:
        self.count += 1

        async def begin() -> None:
            pending = Pending(person, method, uri, max(self.known[uri], person.warned.get(uri, 0)), self.count)
            self.pending.append(pending)
            if method != READ:
                person.asks.add(uri)
            asyncio.get_running_loop().create_task(pending.run(self.gateway))

        self.drive(begin())
        self.conclude()

    @rule(who=PEOPLE, uri=st.sampled_from(URIS))
    def someone_subscribes(self, who: int, uri: str) -> None:
        if uri not in self.people[who].asks:
            self.ask(self.people[who], SUBSCRIBE, uri)

    @rule(uri=st.sampled_from(URIS), answered=st.booleans())
    def everybody_subscribes(self, uri: str, answered: bool) -> None:
        for who in range(MANY):
            self.someone_subscribes(who, uri)
        if answered:
            self.the_server_answers_all()

    @rule(who=PEOPLE, uri=st.sampled_from(URIS))
    def someone_unsubscribes(self, who: int, uri: str) -> None:
        if uri not in self.people[who].asks:
            self.people[who].watches.discard(uri)
            self.ask(self.people[who], UNSUBSCRIBE, uri)

    @rule(who=PEOPLE, uri=st.sampled_from(URIS))
    def someone_reads(self, who: int, uri: str) -> None:
        self.people[who].due.discard(uri)
        self.ask(self.people[who], READ, uri)

    @rule(who=PEOPLE, uri=st.sampled_from(URIS))
    def someone_reads_and_is_answered(self, who: int, uri: str) -> None:
        self.someone_reads(who, uri)
        self.the_server_answers_all()

    @rule(who=PEOPLE, uri=st.sampled_from(URIS))
    def someone_reads_and_it_is_taken_up(self, who: int, uri: str) -> None:
        self.someone_reads(who, uri)
        for asked in self.archive.asked:
            self.archive.take_up(asked)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def someone_gives_up(self, data: st.DataObject) -> None:
        self.give_up([data.draw(st.sampled_from(self.pending))])

    @rule(who=PEOPLE)
    def someone_leaves_and_another_comes(self, who: int) -> None:
        gone, self.people[who] = self.people[who], self.newcomer(who)

        async def leave() -> None:
            self.gateway.leave(gone)

        self.drive(leave())
        self.give_up([pending for pending in self.pending if pending.person is gone])

    def give_up(self, those: list[Pending]) -> None:
        async def cancel() -> None:
            for pending in those:
                pending.scope.cancel()

        self.drive(cancel())
        self.conclude()
        for pending in [pending for pending in those if pending in self.pending]:
            self.forget(pending)
            pending.person.due.add(pending.uri)

    def forget(self, pending: Pending) -> None:
        self.pending.remove(pending)
        if pending.method != READ:
            pending.person.asks.discard(pending.uri)

    # What the server does.

    @precondition(lambda self: self.archive.asked)
    @rule(data=st.data())
    def the_server_takes_a_request_up(self, data: st.DataObject) -> None:
        self.archive.take_up(data.draw(st.sampled_from(self.archive.asked)))

    @precondition(lambda self: self.archive.asked)
    @rule(data=st.data())
    def the_server_answers(self, data: st.DataObject) -> None:
        self.answer([data.draw(st.sampled_from(self.archive.asked))])

    @rule()
    def the_server_answers_all(self) -> None:
        self.answer(list(self.archive.asked))

    @precondition(lambda self: any(asked.call.method == SUBSCRIBE for asked in self.archive.asked))
    @rule()
    def the_server_refuses_subscriptions(self) -> None:
        refused = [asked for asked in self.archive.asked if asked.call.method == SUBSCRIBE and asked.outcome is None]
        for asked in refused:
            asked.outcome = REFUSED
        self.answer(refused)

    @precondition(lambda self: self.archive.asked)
    @rule(carried_out=st.booleans())
    def the_server_is_too_late(self, carried_out: bool) -> None:
        """The gateway waits no longer for requests that the server carries out, or does not.

        But for the end of a subscription, which is not asked for again: what the server tells then is for nobody.
        """
        late = [asked for asked in self.archive.asked if asked.outcome is None and asked.call.method != UNSUBSCRIBE]
        for asked in late:
            if carried_out:
                self.archive.take_up(asked)
            asked.outcome = LATE
        self.answer(late)

    def answer(self, those: list[Asked]) -> None:
        async def let_go() -> None:
            for asked in those:
                self.archive.answer(asked)

        self.drive(let_go())
        self.conclude()

    @rule(uri=st.sampled_from(URIS), part=st.sampled_from(["", PART]))
    def a_resource_changes(self, uri: str, part: str) -> None:
        self.archive.write(uri, part)

    @rule()
    def every_resource_changes(self) -> None:
        self.archive.rewrite()

    @rule(uri=st.sampled_from(URIS), times=st.integers(1, 20))
    def a_resource_changes_and_the_news_are_quick(self, uri: str, times: int) -> None:
        for _ in range(times):
            self.archive.write(uri)
        self.all_news_arrive()

    @rule(uri=st.sampled_from(URIS), who=PEOPLE, part=st.sampled_from(["", PART, None]), watched=st.booleans())
    def what_was_read_changes(self, uri: str, who: int, part: str | None, watched: bool) -> None:
        """Where it was not watched before, it is afterwards. Where `part` is None, everything changes."""
        if watched:
            self.someone_subscribes(who, uri)
        self.someone_reads_and_is_answered(who, uri)
        if part is None:
            self.archive.rewrite()
        else:
            self.archive.write(uri, part)
        self.all_news_arrive()
        self.someone_subscribes(who, uri)
        self.the_server_answers_all()
        self.someone_reads_and_is_answered(who, uri)

    @rule(uri=st.sampled_from(URIS), who=PEOPLE)
    def the_news_overtake_a_read(self, uri: str, who: int) -> None:
        self.someone_reads_and_it_is_taken_up(0, uri)
        self.a_resource_changes_and_the_news_are_quick(uri, 1)
        self.someone_reads(who, uri)

    @precondition(lambda self: self.archive.news)
    @rule()
    def news_arrive(self) -> None:
        news = self.archive.news.pop(0)
        for uri, version in news.versions.items():
            self.known[uri] = max(version, self.known[uri])
        self.drive(self.report(news.change))

    async def report(self, change: Change | PushChannel) -> None:
        self.gateway.on_event(UpstreamChanged(NAME, None, change))

    def all_news_arrive(self) -> None:
        while self.archive.news:
            self.news_arrive()

    # What happens to the link.

    @precondition(lambda self: self.archive.up)
    @rule(last=st.integers(0, 3), silently=st.booleans())
    def the_link_is_lost(self, last: int, silently: bool) -> None:
        """Some answers may just have arrived. Silently: it is back at once, and only that is heard."""

        async def lose() -> None:
            for asked in self.archive.asked[:last]:
                self.archive.answer(asked)
            self.archive.cut()
            if silently:
                await self.connect()
            else:
                self.gateway.on_event(Disconnected(NAME, None, "gone"))

        self.known = dict(self.archive.versions)
        self.drive(lose())
        self.conclude()

    @precondition(lambda self: self.archive.up)
    @rule(uri=st.sampled_from(URIS), silently=st.booleans())
    def a_change_goes_unheard_as_the_link_is_lost(self, uri: str, silently: bool) -> None:
        self.archive.write(uri)
        self.the_link_is_lost(0, silently)

    @precondition(lambda self: not self.archive.up)
    @rule()
    def the_link_is_made_again(self) -> None:
        self.drive(self.connect())

    @precondition(lambda self: self.archive.up)
    @rule(uri=st.sampled_from(URIS), who=PEOPLE)
    def a_change_goes_unheard_as_subscriptions_are_refused(self, uri: str, who: int) -> None:
        """The link is back, and something is read before the server says that it will not report it."""
        self.the_link_is_lost(0, silently=True)
        self.someone_reads(who, uri)
        self.answer([asked for asked in self.archive.asked if asked.call.method == READ])
        self.archive.write(uri)
        self.the_server_refuses_subscriptions()

    @precondition(lambda self: self.archive.up and not self.archive.unheard)
    @rule()
    def the_server_goes_unheard(self) -> None:
        """Its link stands; news that are on their way are lost."""
        self.archive.unheard = True
        self.archive.news.clear()
        self.drive(self.report(PushChannel.LOST))

    @precondition(lambda self: self.archive.unheard)
    @rule()
    def the_server_is_heard_again(self) -> None:
        self.archive.unheard = False
        self.drive(self.report(PushChannel.RESTORED))

    @precondition(lambda self: self.archive.up and not self.archive.unheard)
    @rule(uri=st.sampled_from(URIS), who=PEOPLE)
    def what_changes_unheard_is_not_kept_for_long(self, uri: str, who: int) -> None:
        self.the_server_goes_unheard()
        self.someone_reads_and_is_answered(who, uri)
        self.archive.write(uri)
        self.time_passes(LONG)
        self.someone_reads_and_is_answered(who, uri)

    @rule(seconds=st.sampled_from([SHORT, LONG]))
    def time_passes(self, seconds: float) -> None:
        """Where nothing is heard, everything is good for its time alone; an answer may still be on its way."""
        self.clock.now += seconds
        if self.archive.unheard and seconds == LONG and not any(asked.outcome for asked in self.archive.asked):
            self.known = dict(self.archive.versions)

    # What must hold.

    def conclude(self) -> None:
        """Looks at what clients got."""
        for pending in [pending for pending in self.pending if pending.outcome is not None]:
            self.forget(pending)
            self.check(pending, pending.outcome)

    def check(self, pending: Pending, outcome: Outcome | None) -> None:
        person, uri = pending.person, pending.uri
        if not isinstance(outcome, Complete):
            assert outcome in (DOWN, REFUSED, LATE)
            person.due.add(uri)
        elif pending.method == SUBSCRIBE:
            person.watches.add(uri)
            person.due.add(uri)
        elif pending.method == READ:
            self.check_read(pending, outcome)

    def check_read(self, pending: Pending, outcome: Complete) -> None:
        value, _, owner = msgspec.json.decode(raw(outcome.result))["contents"][0]["text"].partition(" for ")
        assert int(value) >= pending.floor, f"{pending.uri}: got {value}, and {pending.floor} was known before"
        assert owner == pending.person.caller.principal.name or pending.uri.startswith("public")
        latest, _ = pending.person.has.get(pending.uri, (0, 0))
        if pending.number > latest:
            pending.person.has[pending.uri] = pending.number, int(value)

    @rule()
    def all_becomes_quiet(self) -> None:
        if not self.archive.up:
            self.the_link_is_made_again()
        if self.archive.unheard:
            self.the_server_is_heard_again()
        for _ in range(20):
            self.settle()
            if not any(self.readings()):
                break
            for person, uri in list(self.readings()):
                person.due.discard(uri)
                self.ask(person, READ, uri)
        self.check_quiet()

    def settle(self) -> None:
        """The server answers all and tells all, and every wait is over."""
        while self.archive.asked or self.archive.news:
            self.all_news_arrive()
            self.the_server_answers_all()

        async def wake() -> None:
            self.sleeper.wake()

        self.drive(wake())
        if self.archive.asked:
            self.settle()

    def readings(self) -> Iterator[tuple[Person, str]]:
        return ((person, uri) for person in self.people for uri in URIS if uri in person.watches & person.due)

    def check_quiet(self) -> None:
        assert self.pending == []
        for person in self.people:
            had = {uri: person.has[uri][1] for uri in person.watches}
            assert had == {uri: self.archive.versions[uri] for uri in person.watches}, "somebody missed the last change"
        wanted = {uri for person in self.people for uri in person.watches}
        if not self.coherent:
            assert self.archive.subscribed == wanted
        assert self.archive.subscribed >= wanted
        assert self.subscriptions("upstream") == len(self.archive.subscribed)
        assert self.subscriptions("clients") == sum(len(person.watches) for person in self.people)

    def subscriptions(self, side: str) -> float | None:
        return self.metrics.registry.get_sample_value("mcproxy_subscriptions", {"upstream": NAME, "side": side})

    @invariant()
    def nobody_is_told_of_what_it_does_not_watch(self) -> None:
        assert not any(person.unwanted for person in self.people)

    def teardown(self) -> None:
        try:
            if hasattr(self, "host"):
                self.all_becomes_quiet()
                self.drive(self.leave())
        finally:
            self.runner.close()

    async def leave(self) -> None:
        """When all have gone and the link is lost, nothing is held any more."""
        for person in self.people:
            self.gateway.leave(person)
        for pending in self.pending:
            pending.scope.cancel()
        self.archive.cut()
        self.gateway.on_event(Disconnected(NAME, None, "gone"))
        await quiet()
        self.sleeper.wake()
        await quiet()
        assert self.archive.asked == []
        assert (self.subscriptions("clients"), self.subscriptions("upstream")) == (0, 0)
        assert len(asyncio.all_tasks()) <= self.idle
        self.host.cancel()
        await asyncio.gather(self.host, return_exceptions=True)


TestGateway = GatewayMachine.TestCase
TestGateway.settings = hypothesis_settings(max_examples=examples(300), stateful_step_count=40)
