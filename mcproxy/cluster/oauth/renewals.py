"""Where a grant gets its next token: at its home, the one replica that rendezvous hashing chooses for it.

    authorizer -> renew -> home is elsewhere: one hop, sealed; the answer is the grant as the home stored it
                        -> home is here: claim, look whether it was renewed meanwhile, redeem, store, release

Replicas that have not heard of each other yet may disagree about a home. The claim, one key that is set if no other
replica has, keeps them from redeeming one refresh token twice; it counts for nothing once its holder is gone. While the
store is away, the home alone decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, Protocol

import anyio
import msgspec
import structlog
from msgspec.structs import replace

from mcproxy.cluster.envelope import Envelopes, HopEnvelope
from mcproxy.cluster.hop import EnvelopeRefused, Hops, Lost, Moved, ReplicaSlow, ReplicaUnreachable
from mcproxy.cluster.members import Member
from mcproxy.cluster.oauth.grants import SharedGrants, digest
from mcproxy.cluster.store.protocol import Store, StoreUnavailable
from mcproxy.concurrency.clock import Clock
from mcproxy.http.client import ConnectionBroken, ResponseTooLarge
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.oauth.authorizer import counted
from mcproxy.upstream.oauth.flow import DECISIVE, PASSING, OAuthFlow
from mcproxy.upstream.oauth.grants import Grant, GrantKey, Renewal
from mcproxy.upstream.oauth.tokens import TokenRefused, TokenUnavailable

QUESTION: Final = "RENEW"
"""The method of the envelope: none that a client's request can have here."""
CLAIM_LIFE: Final = 90.0
"""Seconds after which a claim ends by itself: longer than a token request takes, with the metadata before it."""
PAUSE: Final = 0.05
"""Seconds between two looks at a claim of another replica, and between two questions that nothing came of."""
MAX_ANSWER: Final = 256 * 1024
"""Bytes of a sealed grant."""

_PURPOSE: Final = "grant renewal"
_ANSWER_PURPOSE: Final = "renewed grant"

log = structlog.get_logger()


class RenewalAnswer(msgspec.Struct, frozen=True):
    """What the home says."""

    kind: Literal["granted", "refused", "unavailable", "unknown"]
    """`unknown`: it has no such upstream, as in the middle of a rollout."""
    grant: Grant | None = None
    why: str = ""


class RenewingMembers(Protocol):
    """What is needed of the replicas (`members.Members`)."""

    @property
    def are_known(self) -> bool: ...

    def owner(self, key: str) -> Member | None: ...

    def all(self) -> list[Member]: ...

    def lose(self, label: str) -> None: ...

    def note_leaving(self, label: str) -> None: ...


class Renewals:
    """Has grants renewed at their homes, and renews those whose home is here, each once at a time."""

    def __init__(
        self, store: Store, sealer: Sealer, grants: SharedGrants, metrics: Metrics, clock: Clock = time.monotonic
    ) -> None:
        self._store = store
        self._sealer = sealer
        self._grants = grants
        self._metrics = metrics
        self._clock = clock
        self._own = sealer.label.encode()
        self._members: RenewingMembers | None = None
        self._absence = CLAIM_LIFE
        self._is_closing = False
        self._running: dict[GrantKey, anyio.Event] = {}
        """Set when the renewal of a grant that runs here is over."""

    def serve_with(
        self,
        members: RenewingMembers,
        envelopes: Envelopes,
        hops: Hops,
        flow: Callable[[str], OAuthFlow | None],
        absence: float,
    ) -> None:
        """Before, each grant's home is here. `flow` finds that of an upstream.

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
                    # It ended, was started again, or is busy: whether it redeemed the token, the next answer tells.
                    await anyio.sleep(PAUSE)
                else:
                    if answer.kind == "unknown":
                        break
                    return self._granted(answer)
        if waiting.cancelled_caught:
            raise TokenUnavailable("the replica that renews this grant does not answer")
        return await self._renewed_here(flow, renewal)

    async def answer(self, question: bytes) -> bytes:
        """Answers another replica."""
        try:
            renewal = msgspec.json.decode(self._sealer.open(_PURPOSE, question.decode()), type=Renewal)
        except (Unsealable, msgspec.MsgspecError, UnicodeDecodeError):
            answer = RenewalAnswer("unknown")
        else:
            answer = await self._answered(renewal)
        return self._sealer.seal(_ANSWER_PURPOSE, msgspec.json.encode(answer)).encode()

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
        """Begins nothing more: who waits for another replica is told at the next look, so that this one can end."""
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
        """The replica that renews a grant; None if that is this one."""
        return None if self._members is None else self._members.owner(f"grant {digest(*key)}")

    def _lose(self, home: Member) -> None:
        assert self._members is not None
        self._members.lose(home.label)

    def _note_leaving(self, home: Member) -> None:
        assert self._members is not None
        self._members.note_leaving(home.label)

    async def _ask(self, home: Member, renewal: Renewal) -> RenewalAnswer:
        """Raises ReplicaUnreachable, ReplicaSlow, Moved, EnvelopeRefused and Lost."""
        body = self._sealer.seal(_PURPOSE, msgspec.json.encode(renewal)).encode()
        envelope = HopEnvelope(QUESTION, "", [], "", [], [], [])
        response = await self._hops.send(home.address, self._envelopes.seal(envelope, home.label, body), body)
        try:
            answer = await response.read(MAX_ANSWER)
        except ConnectionBroken as error:
            raise Lost(home.address) from error
        except ResponseTooLarge:
            return RenewalAnswer("unknown")
        finally:
            response.close()
        try:
            return msgspec.json.decode(self._sealer.open(_ANSWER_PURPOSE, answer.decode()), type=RenewalAnswer)
        except (Unsealable, msgspec.MsgspecError, UnicodeDecodeError):
            return RenewalAnswer("unknown")  # of another version

    # Here

    async def _renewed_here(self, flow: OAuthFlow, renewal: Renewal) -> Grant:
        """One renewal however many ask for it; not given up with the first of them (requirement R65)."""
        while (running := self._running.get(renewal.key)) is not None:
            await running.wait()
        over = self._running[renewal.key] = anyio.Event()
        try:
            with anyio.CancelScope(shield=True):
                renewed = await self._claimed_and_renewed(flow, renewal)
        finally:
            del self._running[renewal.key]
            over.set()
        return renewed

    async def _claimed_and_renewed(self, flow: OAuthFlow, renewal: Renewal) -> Grant:
        if renewal.grant is not None:
            self._grants.learn(renewal.grant)
        claim = f"renewal:{digest(*renewal.key)}"
        renewed = await self._claim(claim, renewal)
        if renewed is not None:
            return renewed
        try:
            # Only now: who had the claim before has stored what it got.
            stored = await self._grants.load(renewal.key)
            if stored is None and renewal.grant is not None and renewal.grant.id:
                raise TokenRefused("invalid_grant", "the grant was taken back: a login is wanted")
            if stored is not None and _is_news(stored, renewal):
                return stored
            with counted(self._metrics, flow.upstream):
                return await flow.renew(replace(renewal, grant=stored or renewal.grant))
        finally:
            with suppress(StoreUnavailable):
                await self._store.remove(claim, self._own)

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
        raise TokenUnavailable("another replica is renewing this grant, and does not come to an end")

    def _is_member(self, label: bytes) -> bool:
        """Whether a replica lives, as far as is known here. A newcomer is not known at once."""
        if self._members is None or not self._members.are_known:
            return True
        return any(member.label.encode() == label for member in self._members.all())


def _is_news(stored: Grant, renewal: Renewal) -> bool:
    """Whether a grant was renewed, or replaced by another login, since it was used."""
    used = renewal.grant
    return used is None or stored.id != used.id or stored.generation > used.generation
