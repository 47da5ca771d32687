"""Where a grant gets its next token: at its home, the one replica that rendezvous hashing chooses for it.

    authorizer -> renew -> home is elsewhere: one hop, sealed; the answer is the grant as the home stored it
                        -> home is here: claim, ask the others, look whether it is renewed already, redeem, store,
                           release

Replicas may disagree about a home. Two things keep them from redeeming one refresh token twice. First, a claim: one key
that only one replica can set. It protects replicas that have not heard of each other yet; it is void once its holder is
gone, or while the store is down. Second, each replica asks those it knows whether they redeem the token or have
redeemed it: the store may have lost the claim, or not have the new pair yet. Of two that ask each other, the lower
label goes first.

A result that cannot be stored is told to the other replicas, so that the login outlives this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeVar

import anyio
import msgspec
from msgspec.structs import replace

from mcproxy.cluster.envelope import Envelopes, HopEnvelope
from mcproxy.cluster.hop import EnvelopeRefused, Hops, Lost, Moved, ReplicaSlow, ReplicaUnreachable
from mcproxy.cluster.members import Member
from mcproxy.cluster.oauth.grants import SharedGrants, opaque_name
from mcproxy.cluster.store.protocol import Store, StoreUnavailable
from mcproxy.concurrency.clock import Clock
from mcproxy.http.client import ConnectionBroken, ResponseTooLarge
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.oauth.authorizer import token_request_counted
from mcproxy.upstream.oauth.flow import DECISIVE, PASSING, OAuthFlow
from mcproxy.upstream.oauth.grants import Grant, GrantKey, Renewal
from mcproxy.upstream.oauth.tokens import TokenRefused, TokenUnavailable

QUESTION: Final = "RENEW"
"""The envelope's method for renewals: no client's request can have it here."""
INQUIRY: Final = "RENEWED"
"""The envelope's method for asking what a replica knows of a grant; also answered while that shuts down."""
CLAIM_LIFE: Final = 90.0
"""Seconds after which a claim expires: longer than a token request takes, with the metadata before it."""
PAUSE: Final = 0.05
"""Seconds between two checks of another replica's claim, and between two fruitless questions."""
MAX_ANSWER: Final = 256 * 1024
"""Bytes of a sealed grant."""

_PURPOSE: Final = "grant renewal"
_ANSWER_PURPOSE: Final = "renewed grant"


class RenewalAnswer(msgspec.Struct, frozen=True):
    """The home's answer."""

    kind: Literal["granted", "refused", "unavailable", "unknown"]
    """`unknown`: it has no such upstream, as during a rollout."""
    grant: Grant | None = None
    why: str = ""


class Inquiry(msgspec.Struct, frozen=True):
    """Asks another replica for its latest version of a grant, before the refresh token is redeemed."""

    key: GrantKey
    label: str
    """The label of the replica that asks."""
    unstored: Grant | None = None
    """The grant, if that replica has redeemed the refresh token by now and could not store the result."""


@dataclass(slots=True)
class InquiryTimeouts:
    """How long another replica may take to say what it knows of a grant, in seconds."""

    first: float = 5.0
    """A frozen replica redeems nothing meanwhile."""
    silent: float = 0.5
    """For one that did not answer the last time: a frozen replica delays one renewal, not each."""


class InquiryAnswer(msgspec.Struct, frozen=True):
    """A replica's answer about a grant that another is about to renew."""

    grant: Grant | None = None
    """The latest version known there."""
    goes_first: bool = False
    """Whether it redeems the refresh token now: it will be asked again."""


T = TypeVar("T")

_renewals: Final = msgspec.json.Decoder(Renewal)
_renewal_answers: Final = msgspec.json.Decoder(RenewalAnswer)
_inquiries: Final = msgspec.json.Decoder(Inquiry)
_inquiry_answers: Final = msgspec.json.Decoder(InquiryAnswer)


@dataclass(slots=True)
class _Running:
    """A renewal of a grant that runs here."""

    over: anyio.Event = field(default_factory=anyio.Event)
    asks: bool = False
    """Whether it asks the others; before that, it may wait for another replica's claim."""
    redeems: bool = False
    let_first: bool = False
    """Whether it let another replica go first since it asked."""


class RenewingMembers(Protocol):
    """The functions of `members.Members` that renewals need."""

    @property
    def are_known(self) -> bool:
        """As `Members.are_known`."""

    def owner(self, key: str) -> Member | None:
        """As `Members.owner`."""

    def all(self) -> list[Member]:
        """As `Members.all`."""

    def lose(self, label: str) -> None:
        """As `Members.lose`."""

    def note_leaving(self, label: str) -> None:
        """As `Members.note_leaving`."""


class Renewals:
    """Has grants renewed at their homes, and renews those whose home is here; one renewal of each at a time."""

    def __init__(
        self,
        store: Store,
        sealer: Sealer,
        grants: SharedGrants,
        metrics: Metrics,
        clock: Clock = time.monotonic,
        timeouts: InquiryTimeouts | None = None,
    ) -> None:
        self._store = store
        self._sealer = sealer
        self._grants = grants
        self._metrics = metrics
        self._clock = clock
        self._timeouts = timeouts or InquiryTimeouts()
        self._own = sealer.label.encode()
        self._members: RenewingMembers | None = None
        self._absence = CLAIM_LIFE
        self._is_closing = False
        self._running: dict[GrantKey, _Running] = {}
        self._silent: set[str] = set()
        """Labels of replicas that did not answer an inquiry, and have not been heard of since."""

    def serve_with(
        self,
        members: RenewingMembers,
        envelopes: Envelopes,
        hops: Hops,
        flow: Callable[[str], OAuthFlow | None],
        absence: float,
    ) -> None:
        """Until it is called, each grant's home is here. `flow` finds that of an upstream.

        `absence`: seconds after which a replica that is not among the members is gone, and no newcomer.
        """
        self._members, self._envelopes, self._hops, self._flow, self._absence = members, envelopes, hops, flow, absence

    async def renew(self, flow: OAuthFlow, renewal: Renewal) -> Grant:
        """Raises as `OAuthFlow.renew` does."""
        with anyio.move_on_after(CLAIM_LIFE) as waiting:
            while (home := self._home(renewal.key)) is not None:
                self._check_open()
                try:
                    answer = await self._ask(home, renewal)
                except ReplicaUnreachable:
                    self._lose(home)
                except Moved:
                    self._note_leaving(home)
                except (Lost, EnvelopeRefused, ReplicaSlow):
                    # It ended, restarted, or is busy: the next answer tells whether it redeemed the token.
                    await anyio.sleep(PAUSE)
                else:
                    if answer.kind == "unknown":
                        break
                    return self._granted(answer)
        if waiting.cancelled_caught:
            raise TokenUnavailable("the replica that renews this grant does not answer")
        return await self._renewed_here(flow, renewal)

    async def answer(self, question: bytes) -> bytes:
        """Answers another replica's request for a renewal."""
        try:
            renewal = self._opened(_PURPOSE, question, _renewals)
        except _NotUnderstood:
            answer = RenewalAnswer("unknown")
        else:
            answer = await self._answered(renewal)
        return self._sealed(_ANSWER_PURPOSE, answer)

    async def answer_inquiry(self, question: bytes) -> bytes:
        """Tells another replica at once what is known here."""
        try:
            inquiry = self._opened(_PURPOSE, question, _inquiries)
        except _NotUnderstood:
            return self._sealed(_ANSWER_PURPOSE, InquiryAnswer())
        self._silent.discard(inquiry.label)
        if inquiry.unstored is not None:
            self._grants.keep(inquiry.unstored)
            return self._sealed(_ANSWER_PURPOSE, InquiryAnswer())
        running = self._running.get(inquiry.key)
        goes_first = False
        if running is not None and running.asks:
            goes_first = running.redeems or self._sealer.label < inquiry.label
            running.let_first |= not goes_first
        return self._sealed(_ANSWER_PURPOSE, InquiryAnswer(self._grants.latest(inquiry.key), goes_first))

    async def _answered(self, renewal: Renewal) -> RenewalAnswer:
        flow = self._flow(renewal.key.upstream)
        if flow is None or (renewal.grant is not None and not flow.is_for_this(renewal.grant)):
            return RenewalAnswer("unknown")
        try:
            return RenewalAnswer("granted", await self._renewed_here(flow, renewal))
        except PASSING as error:
            return RenewalAnswer("unavailable", why=str(error))
        except DECISIVE as error:
            return RenewalAnswer("refused", why=str(error))

    def close(self) -> None:
        """Begins no more renewals; waits for other replicas end at their next check, so that this process can end."""
        self._is_closing = True

    def _check_open(self) -> None:
        if self._is_closing:
            raise TokenUnavailable("the gateway is stopping")

    def _granted(self, answer: RenewalAnswer) -> Grant:
        if answer.kind == "refused":
            raise TokenRefused("invalid_grant", answer.why)
        if answer.grant is None:
            raise TokenUnavailable(answer.why)
        self._grants.learn(answer.grant)
        return answer.grant

    # Elsewhere

    def _home(self, key: GrantKey) -> Member | None:
        """The replica that renews a grant; None for this one."""
        return None if self._members is None else self._members.owner(f"grant {opaque_name(*key)}")

    def _lose(self, home: Member) -> None:
        assert self._members is not None
        self._members.lose(home.label)

    def _note_leaving(self, home: Member) -> None:
        assert self._members is not None
        self._members.note_leaving(home.label)

    async def _ask(self, home: Member, renewal: Renewal) -> RenewalAnswer:
        """Raises ReplicaUnreachable, ReplicaSlow, Moved, EnvelopeRefused and Lost."""
        try:
            return await self._asked(home, QUESTION, self._sealed(_PURPOSE, renewal), _renewal_answers)
        except _NotUnderstood:
            return RenewalAnswer("unknown")  # of another version

    async def _asked(self, member: Member, method: str, question: bytes, answers: msgspec.json.Decoder[T]) -> T:
        """The answer of another replica. Raises as `_ask`, and _NotUnderstood."""
        envelope = HopEnvelope(method, "", [])
        response = await self._hops.send(
            member.address, self._envelopes.seal(envelope, member.label, question), question
        )
        try:
            answer = await response.read(MAX_ANSWER)
        except ConnectionBroken as error:
            raise Lost(member.address) from error
        except ResponseTooLarge as error:
            raise _NotUnderstood from error
        finally:
            response.close()
        return self._opened(_ANSWER_PURPOSE, answer, answers)

    def _sealed(self, purpose: str, message: msgspec.Struct) -> bytes:
        return self._sealer.seal(purpose, msgspec.json.encode(message)).encode()

    def _opened(self, purpose: str, sealed: bytes, decoder: msgspec.json.Decoder[T]) -> T:
        """Raises _NotUnderstood."""
        try:
            return decoder.decode(self._sealer.open(purpose, sealed.decode()))
        except (Unsealable, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _NotUnderstood from error

    # Here

    async def _renewed_here(self, flow: OAuthFlow, renewal: Renewal) -> Grant:
        """One renewal for all that ask; goes on if the first of them is cancelled (requirement R65)."""
        while (running := self._running.get(renewal.key)) is not None:
            await running.over.wait()
        running = self._running[renewal.key] = _Running()
        try:
            with anyio.CancelScope(shield=True):
                renewed = await self._claimed_and_renewed(flow, renewal, running)
        finally:
            del self._running[renewal.key]
            running.over.set()
        return renewed

    async def _claimed_and_renewed(self, flow: OAuthFlow, renewal: Renewal, running: _Running) -> Grant:
        if renewal.grant is not None:
            self._grants.learn(renewal.grant)
        claim = f"renewal:{opaque_name(*renewal.key)}"
        renewed = await self._claim(claim, renewal)
        if renewed is not None:
            return renewed
        try:
            if renewal.grant is not None and renewal.grant.token.refresh is not None:
                await self._agree(renewal.key, running)
            # Only now: the claim's former holder has stored its result.
            stored = await self._grants.load(renewal.key)
            if stored is None and renewal.grant is not None and renewal.grant.id:
                raise TokenRefused("invalid_grant", "the grant was revoked: log in again")
            if stored is not None and _is_news(stored, renewal):
                return stored
            with token_request_counted(self._metrics, flow.upstream):
                renewed = await flow.renew(replace(renewal, grant=stored or renewal.grant))
            if renewed.id and self._grants.is_held(renewal.key):
                # Else the login ends with this process: nobody else has its refresh token.
                await self._inquire(renewal.key, renewed)
            return renewed
        finally:
            with suppress(StoreUnavailable):
                await self._store.remove(claim, self._own)

    async def _agree(self, key: GrantKey, running: _Running) -> None:
        """Returns once no other replica redeems the refresh token, with what they know. Raises TokenUnavailable."""
        running.asks = True
        with anyio.move_on_after(CLAIM_LIFE):
            while True:
                running.let_first = False
                answers = await self._inquire(key)
                for answer in answers:
                    if answer.grant is not None:
                        self._grants.learn(answer.grant)
                if not running.let_first and not any(answer.goes_first for answer in answers):
                    running.redeems = True
                    return
                self._check_open()
                await anyio.sleep(PAUSE)
        raise TokenUnavailable("another replica is renewing this grant, and does not finish")

    async def _inquire(self, key: GrantKey, unstored: Grant | None = None) -> list[InquiryAnswer]:
        """What the others know of a grant, as far as they answer; or tells them of one that could not be stored."""
        if self._members is None:
            return []
        own = self._sealer.label
        question = self._sealed(_PURPOSE, Inquiry(key, own, unstored))
        answers: list[InquiryAnswer] = []

        async def ask(member: Member) -> None:
            # One that wakes asks this one before it redeems, or answers: then it has all the time again.
            seconds = self._timeouts.silent if member.label in self._silent else self._timeouts.first
            with anyio.move_on_after(seconds) as waiting:
                while True:
                    try:
                        answers.append(await self._asked(member, INQUIRY, question, _inquiry_answers))
                    except (ReplicaSlow, Lost):
                        await anyio.sleep(PAUSE)
                    except (ReplicaUnreachable, Moved, EnvelopeRefused, _NotUnderstood):
                        return  # gone, or of a version that does not know the question
                    else:
                        self._silent.discard(member.label)
                        return
            if waiting.cancelled_caught:
                self._silent.add(member.label)

        others = [member for member in self._members.all() if member.label != own]
        self._silent.intersection_update(member.label for member in others)
        async with anyio.create_task_group() as tasks:
            for member in others:
                tasks.start_soon(ask, member)
        return answers

    async def _claim(self, claim: str, renewal: Renewal) -> Grant | None:
        """Waits until this replica may renew a grant; returns it where another has. Raises TokenUnavailable."""
        holder, since = b"", self._clock()
        with anyio.move_on_after(CLAIM_LIFE):
            while True:
                self._check_open()
                try:
                    if await self._store.add(claim, self._own, CLAIM_LIFE):
                        return None
                    present = await self._store.get(claim)
                    if present == self._own:
                        return None
                    if present is not None and (present != holder or self._is_member(present)):
                        holder, since = present, self._clock()
                    elif present is not None and self._clock() - since > self._absence:
                        await self._store.remove(claim, present)
                except StoreUnavailable:
                    # The home alone decides, by the members that were known last.
                    return None
                stored = await self._grants.load(renewal.key)
                if stored is not None and _is_news(stored, renewal):
                    return stored
                await anyio.sleep(PAUSE)
        raise TokenUnavailable("another replica is renewing this grant, and does not finish")

    def _is_member(self, label: bytes) -> bool:
        """Whether a replica lives, as far as is known here. A newcomer is not known at once."""
        if self._members is None or not self._members.are_known:
            return True
        return any(member.label.encode() == label for member in self._members.all())


class _NotUnderstood(Exception):
    """Not sealed with our secret, or of another version."""


def _is_news(stored: Grant, renewal: Renewal) -> bool:
    """Whether a grant was renewed, or replaced by another login, since it was used."""
    return renewal.grant is None or stored.replaces(renewal.grant)
