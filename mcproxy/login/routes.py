"""Answers requests to the login pages: identification, consent, and the redirects to the authorization server and back.

A visitor who opens a link must prove to be its principal; else the answer is 403, and nothing is begun or stored. Each
form carries a token of its session; a login's `state` is issued only after consent (security best practices).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlsplit

import msgspec
import structlog

from mcproxy.access.identity import Identity, NotIdentified
from mcproxy.access.oauth.fetching import FetchFailed
from mcproxy.call.identity import Principal
from mcproxy.downstream.front.authentication import Authenticator
from mcproxy.downstream.front.operators import missing_role
from mcproxy.http import server as http
from mcproxy.login.links import CONNECT_PATH, ConnectLink, ConnectLinks, InvalidLink
from mcproxy.login.pages import LoginTemplates
from mcproxy.login.sign_in import SignIn, StartedSignIn
from mcproxy.login.visits import LOGIN_LIFE, LoginsUnderWay, Visitor, VisitorSession, Visits, visitor
from mcproxy.settings import Settings
from mcproxy.settings.issuers import is_same_issuer
from mcproxy.upstream.oauth.endpoints import EndpointFailed
from mcproxy.upstream.oauth.flow import Discovered
from mcproxy.upstream.oauth.login import LoginFailed
from mcproxy.upstream.oauth.logins import StartedLogin, UpstreamLogins
from mcproxy.upstream.oauth.metadata import InvalidMetadata
from mcproxy.upstream.oauth.registration import CALLBACK_PATH, CannotRegister, document_url
from mcproxy.upstream.oauth.storage.store import StoreFailed
from mcproxy.upstream.oauth.tokens import TokenRefused, TokenUnavailable

log = structlog.get_logger()

FORM_TIMEOUT: Final = 10.0
"""Seconds for receiving the body of a form."""
MAX_FORM: Final = 16 * 1024
"""Bytes of a form."""

FAILURES: Final = (
    CannotRegister,
    EndpointFailed,
    FetchFailed,
    InvalidMetadata,
    LoginFailed,
    StoreFailed,
    TokenRefused,
    TokenUnavailable,
)
"""Exceptions that end a login, with a text for the person who tried."""


class LoginSite(Protocol):
    """The gateway as the pages see it, now."""

    @property
    def settings(self) -> Settings:
        """Those in force."""

    @property
    def base_url(self) -> str | None:
        """The URL of the pages, without a final slash; None while unknown."""

    @property
    def is_personal(self) -> bool:
        """Whether the gateway serves only the person who started it, over stdio."""

    def logins(self, upstream: str) -> UpstreamLogins | None:
        """The logins of an upstream; None where there is none of that name with `oauth`."""


class _AtIssuer(msgspec.Struct, frozen=True, tag=True):
    """A visitor who signs in at an issuer of the gateway's callers, and continues at `page`."""

    started: StartedSignIn
    page: str


class _AtUpstream(msgspec.Struct, frozen=True, tag=True):
    """A visitor who logs in at an upstream's authorization server."""

    started: StartedLogin
    link: ConnectLink


_steps: Final = msgspec.json.Decoder(_AtIssuer | _AtUpstream)


class _PageRefused(Exception):
    """A request that is answered by a page with the reason."""

    def __init__(self, why: str, status: int = 403, advice: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.status = status
        self.advice = advice or "Nothing was stored. Call the tool again in your client for a new link."


class LoginRoutes:
    """`authenticator` identifies requests that prove their sender themselves, by a certificate or through a proxy."""

    def __init__(
        self,
        site: LoginSite,
        links: ConnectLinks,
        visits: Visits,
        identity: Identity,
        sign_in: SignIn,
        under_way: LoginsUnderWay,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._site = site
        self._links = links
        self._visits = visits
        self._identity = identity
        self._sign_in = sign_in
        self._authenticator = authenticator
        self._under_way = under_way
        self._templates = LoginTemplates()

    def routes(self) -> list[http.Route]:
        """The page of a login, its form, and the redirection endpoint (RFC 6749, section 3.1.2)."""
        page = CONNECT_PATH + "{sealed}"
        return [
            http.Route("GET", page, self._answering(self._show)),
            http.Route("POST", page, self._answering(self._submit)),
            http.Route("GET", CALLBACK_PATH, self._answering(self._redirected)),
        ]

    def _answering(
        self, handler: Callable[[http.Request, Mapping[str, str]], Awaitable[http.Response]]
    ) -> http.RoutedHandler:
        """`handler`, with its refusals rendered as pages too."""

        async def answer(request: http.Request, path: Mapping[str, str]) -> http.Response:
            try:
                return await handler(request, path)
            except _PageRefused as refused:
                return self._page(
                    "refused", refused.status, heading="This did not work", why=refused.why, advice=refused.advice
                )
            except FAILURES as error:
                log.warning("a login failed", why=str(error))
                return self._page(
                    "refused",
                    502,
                    heading="The login failed",
                    why=str(error),
                    advice="Nothing was stored. Open the link again; if that does not help, tell your operator.",
                )

        return answer

    async def _show(self, request: http.Request, path: Mapping[str, str]) -> http.Response:
        """Shows the form for identification, or for consent."""
        link, logins = self._opened(path["sealed"])
        session = self._session(request) or self._visits.begin()
        match await self._visitor(request, link, session):
            case Visitor.UNKNOWN:
                return self._identify_page(path["sealed"], link, session)
            case Visitor.STRANGER:
                raise self._stranger()
            case Visitor.EXPECTED:
                return await self._consent_page(path["sealed"], link, logins, session)

    async def _submit(self, request: http.Request, path: Mapping[str, str]) -> http.Response:
        """Takes a form of one of our own pages."""
        sealed = path["sealed"]
        link, logins = self._opened(sealed)
        form, session = await _form(request), self._session(request)
        if session is None or not self._visits.is_own_form(session, sealed, form.get("token", "")):
            raise _PageRefused("this form is of another site, or too old", advice="Open the link again.")
        match form.get("step"):
            case "key":
                return await self._take_key(request, sealed, link, session, form.get("key", ""))
            case "sign-in":
                return await self._begin_sign_in(sealed, link, session, form.get("issuer", ""))
            case "consent":
                if await self._visitor(request, link, session) is not Visitor.EXPECTED:
                    raise self._stranger()
                return await self._begin_login(sealed, link, logins, session, form.get("issuer", ""))
            case _:
                raise _PageRefused("this form is not one of these pages", 400)

    async def _redirected(self, request: http.Request, _path: Mapping[str, str]) -> http.Response:
        """Takes the redirect of an authorization server."""
        redirected = dict(parse_qsl(request.target.partition("?")[2], keep_blank_values=True))
        session = self._session(request)
        match await self._step(redirected.get("state", ""), session):
            case _AtIssuer(started=signing_in, page=page):
                try:
                    principal = await self._sign_in.finish(signing_in, redirected)
                except NotIdentified as refusal:
                    self._identity.note_refusal(refusal, request.peer)
                    raise _PageRefused(refusal.sentence) from refusal
                return self._identified(page, principal)
            case _AtUpstream(started=started, link=link):
                logins = self._site.logins(link.upstream)
                if logins is None:
                    raise _PageRefused(f"there is no server {link.upstream!r} any more", 404)
                try:
                    grant = await logins.finish(started, redirected)
                except (LoginFailed, TokenRefused) as refusal:
                    again = await logins.again(started, refusal, document_url(self._base))
                    if again is None or session is None:
                        raise
                    await self._begin_step(again.login.state, session, link, _AtUpstream(again, link))
                    return self._page("leaving", url=again.url, issuer=again.found.server.issuer)
                log.info("logged in at an upstream", upstream=link.upstream, principal=link.principal, id=grant.id)
                return self._page("done", upstream=link.upstream)
            case None:
                raise _PageRefused("this answer belongs to no login that was begun here, in this browser")

    async def _take_key(
        self, request: http.Request, sealed: str, link: ConnectLink, session: VisitorSession, key: str
    ) -> http.Response:
        try:
            principal = await self._sign_in.principal(key.strip(), self._base)
        except NotIdentified as refusal:
            self._identity.note_refusal(refusal, request.peer)
            return self._identify_page(sealed, link, session, refusal.sentence, 403)
        if visitor(link, principal.name, is_operator=self._is_operator(principal)) is not Visitor.EXPECTED:
            raise self._stranger()
        return self._identified(sealed, principal)

    async def _begin_sign_in(
        self, sealed: str, link: ConnectLink, session: VisitorSession, identifier: str
    ) -> http.Response:
        issuers = self._identity.settings.oauth.issuers
        issuer = next((issuer for issuer in issuers if issuer.issuer == identifier), None)
        if issuer is None:
            raise _PageRefused("this issuer is not one of the gateway's", 400)
        base = self._base
        started = await self._sign_in.begin(issuer, base, base + CALLBACK_PATH, document_url(base))
        await self._begin_step(started.login.state, session, link, _AtIssuer(started, sealed))
        return self._page("leaving", url=started.url, issuer=issuer.issuer)

    async def _begin_login(
        self, sealed: str, link: ConnectLink, logins: UpstreamLogins, session: VisitorSession, shown: str
    ) -> http.Response:
        """After consent: redirects to the authorization server that the page named, and to no other."""
        found = await logins.discover(link.principal)
        if found.server.issuer != shown or not _is_of(link, found):
            return await self._consent_page(sealed, link, logins, session)
        base = self._base
        started = await logins.begin(link.principal, found, base + CALLBACK_PATH, document_url(base))
        await self._begin_step(started.login.state, session, link, _AtUpstream(started, link))
        return self._page("leaving", url=started.url, issuer=found.server.issuer)

    async def _step(self, state: str, session: VisitorSession | None) -> _AtIssuer | _AtUpstream | None:
        """The step that a redirect belongs to, once; None if it was not begun in this browser."""
        kept = None if session is None else await self._under_way.take(state, session.id)
        try:
            return None if kept is None else _steps.decode(kept)
        except msgspec.MsgspecError:
            return None  # a replica of another version began it

    async def _begin_step(
        self, state: str, session: VisitorSession, link: ConnectLink, step: _AtIssuer | _AtUpstream
    ) -> None:
        await self._under_way.add(state, session.id, link.principal, msgspec.json.encode(step), LOGIN_LIFE)

    async def _consent_page(
        self, sealed: str, link: ConnectLink, logins: UpstreamLogins, session: VisitorSession
    ) -> http.Response:
        found = await logins.discover(link.principal)
        if not _is_of(link, found):
            raise _PageRefused(f"the server names another authorization server than {link.issuer} now", 502)
        return self._page(
            "consent",
            fields=self._cookie(session),
            upstream=link.upstream,
            principal=link.principal,
            url=logins.flow.resource,
            issuer=found.server.issuer,
            scopes=found.scopes,
            token=self._visits.form_token(session, sealed),
        )

    def _identify_page(
        self, sealed: str, link: ConnectLink, session: VisitorSession, problem: str = "", status: int = 200
    ) -> http.Response:
        settings = self._identity.settings
        return self._page(
            "identify",
            status,
            fields=self._cookie(session),
            upstream=link.upstream,
            issuers=[issuer.issuer for issuer in settings.oauth.issuers],
            takes_keys=bool(settings.keys),
            problem=problem,
            token=self._visits.form_token(session, sealed),
        )

    def _identified(self, sealed: str, principal: Principal) -> http.Response:
        """Returns an identified visitor to a link's page, with a new session."""
        fields = {"Location": f"{self._base}{CONNECT_PATH}{sealed}", "Cache-Control": "no-store"}
        session = self._visits.begin(principal.name, is_operator=self._is_operator(principal))
        return http.Response(303, b"", {**fields, **self._cookie(session)})

    async def _visitor(self, request: http.Request, link: ConnectLink, session: VisitorSession) -> Visitor:
        if self._site.is_personal or not self._identity.required:
            return Visitor.EXPECTED
        principal = await self._proven(request)
        if principal is not None:
            return visitor(link, principal.name, is_operator=self._is_operator(principal))
        return visitor(link, session.principal, is_operator=session.is_operator)

    async def _proven(self, request: http.Request) -> Principal | None:
        """The principal that a request itself proves: by a certificate, or the word of a trusted proxy."""
        settings = self._identity.settings
        if self._authenticator is None or not (settings.forwarded.trusted or settings.certificates.enabled):
            return None
        try:
            return (await self._authenticator.identify(request)).principal
        except NotIdentified:
            return None

    def _is_operator(self, principal: Principal) -> bool:
        return missing_role(self._site.settings, principal) is None

    def _opened(self, sealed: str) -> tuple[ConnectLink, UpstreamLogins]:
        try:
            link = self._links.open(sealed)
        except InvalidLink as invalid:
            raise _PageRefused(str(invalid)) from invalid
        logins = self._site.logins(link.upstream)
        if logins is None or logins.is_per_principal is not bool(link.principal):
            raise _PageRefused(f"nobody can log in to the server {link.upstream!r} any more", 404)
        return link, logins

    @property
    def _base(self) -> str:
        base = self._site.base_url
        if base is None:
            raise _PageRefused(
                "the gateway does not know an address of its own that is https or loopback: set proxy.public_url", 500
            )
        return base

    @property
    def _is_secure(self) -> bool:
        return urlsplit(self._base).scheme == "https"

    def _session(self, request: http.Request) -> VisitorSession | None:
        return self._visits.session(request.fields.joined("cookie") or "", is_secure=self._is_secure)

    def _cookie(self, session: VisitorSession) -> dict[str, str]:
        return {"Set-Cookie": self._visits.cookie(session, is_secure=self._is_secure)}

    def _stranger(self) -> _PageRefused:
        return _PageRefused(
            "this link is for another user", advice="Nothing was stored. Use the link that your own client shows."
        )

    def _page(
        self, template: str, status: int = 200, fields: Mapping[str, str] | None = None, **values: object
    ) -> http.Response:
        return self._templates.page(template, status, fields, name=self._site.settings.proxy.name, **values)


def _is_of(link: ConnectLink, found: Discovered) -> bool:
    """Whether a link is for the authorization server that was found."""
    return link.issuer is None or is_same_issuer(link.issuer, found.server.issuer)


async def _form(request: http.Request) -> dict[str, str]:
    try:
        body = await request.body(FORM_TIMEOUT)
    except (http.BodyTimeout, http.BodyTooLarge, http.BodyIncomplete) as error:
        raise _PageRefused("the form did not arrive whole", 400) from error
    if len(body) > MAX_FORM:
        raise _PageRefused("the form is too large", 413)
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
