"""The OAuth device authorization grant (RFC 8628): a person logs in with a code on any device; the token is polled for.

Sans-I/O: reads the answers and returns the next step. Sends nothing, and does not wait.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from mcproxy.upstream.oauth.login import MAX_REASON, LoginFailed, may_be_opened
from mcproxy.upstream.oauth.metadata import ServerMetadata
from mcproxy.upstream.oauth.registration import ClientIdentity
from mcproxy.upstream.oauth.tokens import TokenForm, TokenRefused, TokenUnavailable, refusal_of

DEVICE_CODE: Final = "urn:ietf:params:oauth:grant-type:device_code"
INTERVAL: Final = 5.0
"""Seconds between two requests if the server names none, and the increment of `slow_down` (section 3.5)."""
MAX_INTERVAL: Final = 60.0
"""Seconds between two questions at most, whatever the authorization server asks for."""
MAX_LIFE: Final = 1800.0
"""The most seconds that the gateway waits for a code, even if the server grants more."""

_SHOWABLE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,62}[\x21-\x7e])?")
"""A user code that can be shown on a terminal."""


class DeviceLogin(msgspec.Struct, frozen=True):
    """A login under way: what the person is shown, and what the gateway polls with meanwhile."""

    device_code: str
    """Secret."""
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    """The same URI with the code in it."""
    expires_at: float
    """Unix seconds."""
    interval: float
    """Seconds between two token requests."""
    issuer: str
    client: ClientIdentity
    resource: str
    scopes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"DeviceLogin(user_code={self.user_code!r})"


def device_request(resource: str, scopes: tuple[str, ...]) -> TokenForm:
    """The form for the device authorization endpoint, without the client's proof (section 3.1)."""
    form = {"resource": resource, "scope": " ".join(scopes)}
    return {name: value for name, value in form.items() if value}


def polling(login: DeviceLogin) -> TokenForm:
    """The form that is posted to the token endpoint repeatedly (section 3.4)."""
    form = {"grant_type": DEVICE_CODE, "device_code": login.device_code, "resource": login.resource}
    return {name: value for name, value in form.items() if value}


class _DeviceAuthorization(msgspec.Struct):
    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    verification_uri_complete: str | None = None
    interval: float = INTERVAL


def read_device_login(
    status: int,
    body: bytes,
    now: float,
    *,
    server: ServerMetadata,
    client: ClientIdentity,
    resource: str,
    scopes: tuple[str, ...],
) -> DeviceLogin:
    """Reads the device authorization response (section 3.2). Raises LoginFailed, TokenUnavailable."""
    if not 200 <= status < 300:
        refusal = refusal_of(status, body)
        if refusal is None:
            raise TokenUnavailable(f"the device authorization endpoint answered HTTP {status}")
        raise LoginFailed(f"{server.issuer} refused: {str(refusal)[:MAX_REASON]}")
    try:
        begun = msgspec.json.decode(body, type=_DeviceAuthorization, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LoginFailed(f"issuer {server.issuer} answered the request for a code with something invalid") from error
    complete = begun.verification_uri_complete
    if not _SHOWABLE.fullmatch(begun.user_code) or not may_be_opened(begun.verification_uri):
        raise LoginFailed(f"issuer {server.issuer} answered the request for a code with one that cannot be shown")
    return DeviceLogin(
        device_code=begun.device_code,
        user_code=begun.user_code,
        verification_uri=begun.verification_uri,
        verification_uri_complete=complete if complete is not None and may_be_opened(complete) else None,
        expires_at=now + min(max(begun.expires_in, 0), MAX_LIFE),
        interval=min(max(begun.interval, 1), MAX_INTERVAL),
        issuer=server.issuer,
        client=client,
        resource=resource,
        scopes=scopes,
    )


def next_interval(login: DeviceLogin, interval: float, problem: TokenRefused | TokenUnavailable, now: float) -> float:
    """Seconds until the next token request (section 3.5). Raises LoginFailed if `problem` ends the login."""
    match problem.code:
        case "authorization_pending":
            later = interval
        case "slow_down":
            later = interval + INTERVAL
        case "access_denied":
            raise LoginFailed(f"the login was denied at {login.issuer}")
        case "expired_token":
            raise LoginFailed("the code has expired before it was entered: begin again")
        case _ if isinstance(problem, TokenRefused):
            raise LoginFailed(str(problem)) from problem
        case _:
            later = interval * 2  # no answer: "exponential backoff"
    if now + later > login.expires_at:
        raise LoginFailed("the code has expired before it was entered: begin again")
    return min(later, MAX_INTERVAL)
