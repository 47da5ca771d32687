"""Visitors of the login pages: the session that a cookie carries, and logins that are under way at an issuer.

Sans-I/O. A session is sealed in the cookie, and nothing is stored for it; a login under way is kept under its `state`,
which is random, given out after consent alone, taken out once, and good with the cookie of the same session alone
(security best practices, "OAuth State Parameter Validation").
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

import msgspec

from mcproxy.login.links import ConnectLink
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.upstream.oauth.under_way import crowded_out

SESSION_LIFE: Final = 900.0
"""Seconds for which a visitor stays identified."""
LOGIN_LIFE: Final = 600.0
"""Seconds that a person has at an authorization server."""
MAX_LOGINS_OF_SESSION: Final = 8
_SESSION: Final = "login session"
_FORM: Final = "login form"


class VisitorSession(msgspec.Struct, frozen=True, array_like=True):
    """A visitor, as its cookie says."""

    id: str
    principal: str | None
    """The visitor's principal; None until it is proved."""
    expires: float
    is_operator: bool = False
    """Whether the identified visitor may log in for all callers."""


class Visitor(Enum):
    """The relation of a visitor to a link."""

    UNKNOWN = "has not shown who it is"
    EXPECTED = "is whom the link is for"
    STRANGER = "is somebody else"


class Visits:
    """`is_secure` says whether the pages are reached by https, so that the cookie is bound to the host (`__Host-`)."""

    def __init__(self, sealer: Sealer, clock: Callable[[], float] = time.time) -> None:
        self._sealer = sealer
        self._clock = clock

    def session(self, cookies: str, *, is_secure: bool) -> VisitorSession | None:
        """The session in a request's Cookie header; None if there is no valid one."""
        try:
            opened = self._sealer.open(_SESSION, _cookie(cookies, _cookie_name(is_secure=is_secure)))
            session = msgspec.json.decode(opened, type=VisitorSession)
        except (Unsealable, msgspec.DecodeError):
            return None
        return session if session.expires > self._clock() else None

    def begin(self, principal: str | None = None, *, is_operator: bool = False) -> VisitorSession:
        """A new session; also once a visitor is identified, so that another site cannot plant one."""
        return VisitorSession(secrets.token_urlsafe(16), principal, self._clock() + SESSION_LIFE, is_operator)

    def cookie(self, session: VisitorSession, *, is_secure: bool) -> str:
        """The Set-Cookie header. `Lax`, so that it is sent when the authorization server redirects back."""
        sealed = self._sealer.seal(_SESSION, msgspec.json.encode(session))
        secure = "; Secure" if is_secure else ""
        name = _cookie_name(is_secure=is_secure)
        return f"{name}={sealed}; Path=/; HttpOnly; SameSite=Lax; Max-Age={SESSION_LIFE:.0f}{secure}"

    def form_token(self, session: VisitorSession, page: str) -> str:
        """The token in a form of `page`, which a page of another site cannot know."""
        return self._sealer.digest(_FORM, f"{session.id} {page}".encode())

    def is_own_form(self, session: VisitorSession, page: str, token: str) -> bool:
        """Whether a form came from `page` as shown in this session. Compares in constant time."""
        return hmac.compare_digest(self.form_token(session, page).encode(), token.encode())


def visitor(link: ConnectLink, principal: str | None, *, is_operator: bool) -> Visitor:
    """The relation of an identified visitor to a link; the gateway's own login is for operators."""
    if principal is None:
        return Visitor.UNKNOWN
    expected = is_operator if not link.principal else principal == link.principal
    return Visitor.EXPECTED if expected else Visitor.STRANGER


class LoginsUnderWay(Protocol):
    """Logins that were begun, by their `state`. What belongs to each is the caller's; `session` is the visitor's id.

    `principal` is that of the link by which the visitor came, which need not be who the visitor is. Each method may
    raise `StoreFailed`, where the logins are kept elsewhere.
    """

    async def add(self, state: str, session: str, principal: str, step: bytes, life: float) -> None:
        """Keeps a login for `life` seconds."""

    async def take(self, state: str, session: str) -> bytes | None:
        """What is kept with a login, once; None if it is unknown, or of another session."""


class _UnderWay(msgspec.Struct, frozen=True):
    session: str
    principal: str
    expires: float
    step: bytes


class MemoryLogins:
    """Implements `LoginsUnderWay`, for a single process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._logins: dict[str, _UnderWay] = {}

    def __len__(self) -> int:
        return len(self._logins)

    async def add(self, state: str, session: str, principal: str, step: bytes, life: float) -> None:
        now = self._clock()
        for old in [state for state, login in self._logins.items() if login.expires <= now]:
            del self._logins[old]
        of_session = [old for old, login in self._logins.items() if login.session == session]
        if len(of_session) >= MAX_LOGINS_OF_SESSION:
            del self._logins[of_session[0]]
        crowded = crowded_out({state: login.principal for state, login in self._logins.items()})
        if crowded is not None:
            del self._logins[crowded]
        self._logins[state] = _UnderWay(session, principal, now + life, step)

    async def take(self, state: str, session: str) -> bytes | None:
        login = self._logins.get(state)
        if login is None or login.session != session:
            return None
        del self._logins[state]
        return login.step if login.expires > self._clock() else None


def _cookie_name(*, is_secure: bool) -> str:
    """`__Host-` binds a cookie to the very host, and needs https (RFC 6265bis, section 4.1.3.2)."""
    return "__Host-mcproxy-login" if is_secure else "mcproxy-login"


def _cookie(header: str, name: str) -> str:
    """The value of a cookie of ours, which is never quoted (RFC 6265, section 4.2.1); empty where there is none.

    Not by `http.cookies`: before Python 3.11.10 and 3.12.6 its time grows with the square of a quoted value.
    """
    pairs = (pair.partition("=") for pair in header.split(";"))
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")
