"""HTTP requests of one link: headers built from scratch, cookies, redirects, errors as sentences.

Follows redirects within one origin only, so that no credential leaves it (requirements R40, R43). Reads no body, and
speaks no MCP.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
from contextlib import asynccontextmanager, closing
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from yarl import URL

from mcproxy import __version__
from mcproxy.egress.failures import alert, connect_failure
from mcproxy.http.client import (
    ClientResponse,
    ConnectFailed,
    ConnectionBroken,
    Pool,
    check_names,
    origin,
    write_fields,
    write_head,
)
from mcproxy.http.client.decoding import DecodedBody, codings
from mcproxy.pending_requests import PeerGone
from mcproxy.telemetry.trace_context import departing
from mcproxy.upstream.context import CredentialSource, HttpConnections, LinkContext, LinkCredential
from mcproxy.upstream.http.responses import AUTHENTICATION, UpstreamResponse, quotable
from mcproxy.upstream.leniency import Looks, look
from mcproxy.upstream.link import NotAccepted, Rejected

if TYPE_CHECKING:
    from aiohttp import CookieJar

log = structlog.get_logger()

QUOTED_CHARS: Final = 300
"""Characters of the body of an error that our own error quotes."""
ELSEWHERE: Final = frozenset({404, 405, 501})
"""Statuses of a web server that has something else at a URL, or nothing."""
_TAG: Final = re.compile(r"<(?:style|script)\b[^<>]*>[^<]*|<[^<>]*>", re.IGNORECASE)
"""A tag of HTML, with what no person reads behind it."""
MAX_REDIRECTS: Final = 5
"""How many redirects one request follows."""
AUTHORIZATIONS: Final = 3
"""How often a request is sent at most: without a credential, with one, and with its successor."""
MAX_KEPT_HEADS: Final = 256
"""Heads kept for requests that differ only in the fields that vary."""
MAX_KEPT_HEAD_BYTES: Final = 4096
"""Bytes of a head, with the names of its varying fields, above which it is not kept: servers choose some names."""
_REDIRECTS: Final = range(300, 400)
_FOLLOWED_REDIRECTS: Final = frozenset({301, 302, 307, 308})
"""The method and the body are kept: frameworks of the field redirect `/mcp` to `/mcp/` by any of these."""
_OWN_FIELDS: Final = {
    "User-Agent": f"mcproxy/{__version__}",
    "Accept": "*/*",
    # Bodies are passed on without being read: a small compressed one may unpack to a very large one.
    "Accept-Encoding": "identity",
}

_name_of: Final = itemgetter(0)

NamedHeaders = dict[str, tuple[str, str]]
"""One header each, as spelt, by its name in lower case."""

ExtraHeaders = tuple[tuple[str, str], ...]
"""The headers of one request, beside those of all requests of its link."""

NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})


@asynccontextmanager
async def connection_pool(context: LinkContext) -> AsyncIterator[HttpConnections]:
    """The connections of one link, not shared with any other link (R39)."""
    if context.connections is not None:
        yield context.connections
        return
    spec = context.spec
    if not spec.tls.verify:
        log.warning("the certificate of an upstream is not verified (tls.verify): set `tls.ca`", upstream=spec.name)
    # Calls are bounded by `max_in_flight`: nothing queues for a connection (R47).
    with closing(
        Pool(spec.timeouts.connect, spec.max_in_flight, ways=lambda url: context.spec.leaving.way(url))
    ) as pool:
        yield pool


class _Head(msgspec.Struct, frozen=True):
    """The bytes of a request's head, without the varying fields with these `names`."""

    method: str
    url: URL
    headers: ExtraHeaders
    names: tuple[str, ...]
    written: bytes


_NO_HEAD: Final = _Head("", URL(), (), (), b"")


class Requester:
    """Requests of one link to one server, with the link's headers and the cookies that the server set (R39)."""

    def __init__(self, http: HttpConnections, context: LinkContext) -> None:
        self._http = http
        self._context = context
        self._own = {**_by_name(_OWN_FIELDS.items()), **_by_name(context.headers.items())}
        self._heads: dict[tuple[str, URL, ExtraHeaders, tuple[str, ...]], _Head] = {}
        self._last = _NO_HEAD
        self._cookies: CookieJar | None = None
        self._generation = 0
        """The generation of the credential that requests carry (`LinkContext.authorization`)."""
        self._changing: NamedHeaders = {}
        """The headers of that credential; they override the link's own."""

    def request(
        self,
        method: str,
        url: URL,
        headers: ExtraHeaders,
        data: bytes | None = None,
        varying: Mapping[str, str] = NO_FIELDS,
    ) -> Awaitable[UpstreamResponse]:
        """The response, its body not read. The caller releases it, or closes it.

        `headers` are those that many requests share, `varying` those whose values differ each time. Raises NotAccepted
        if no connection could be made, PeerGone if it broke, and Rejected for a redirect that is not followed or if no
        token is available: then the call fails and the link stays.
        """
        source = self._context.authorization
        if source is None:
            return self._sent(method, url, headers, varying, data, MAX_REDIRECTS)
        return self._authorized(source, method, url, headers, varying, data)

    async def _authorized(
        self,
        source: CredentialSource,
        method: str,
        url: URL,
        headers: ExtraHeaders,
        varying: Mapping[str, str],
        data: bytes | None,
    ) -> UpstreamResponse:
        """Sends a request with a credential; if the server refuses that, which executes nothing (R4), with another."""
        again = AUTHORIZATIONS
        while True:
            credential = source.present() or await source.credential()
            generation = self._carry(source, credential)
            response = await self._sent(method, url, headers, varying, data, MAX_REDIRECTS)
            if response.status not in AUTHENTICATION:
                if source.on_trial:
                    source.accepted()
                return response
            again -= 1
            try:
                if not (again and await source.challenged(response.status, _challenge(response), generation)):
                    return response
            except BaseException:
                response.close()
                raise
            response.close()

    def _carry(self, source: CredentialSource, credential: LinkCredential | None) -> int:
        """Has requests carry `credential` from now on; returns its generation."""
        if credential is None:
            return 0
        if source.generation != self._generation:
            self._generation = source.generation
            self._changing = _by_name(credential.headers.items())
            self._context.conceal(credential.secrets)
            self._forget_heads()
        return self._generation

    async def _sent(
        self,
        method: str,
        url: URL,
        headers: ExtraHeaders,
        varying: Mapping[str, str],
        data: bytes | None,
        redirects: int,
    ) -> UpstreamResponse:
        try:
            answer = await self._http.request(method, url, self._head(method, url, headers, varying), data)
        except ConnectFailed as error:
            raise NotAccepted(
                self._context.redact(f"no connection to {url.origin()}: {connect_failure(error)}")
            ) from error
        except ValueError as error:
            raise NotAccepted(self._context.redact(f"nothing can be sent to {url.origin()}: {error}")) from error
        except ConnectionBroken as error:
            why = alert(str(error)) or str(error)
            raise PeerGone(self._context.redact(f"the connection to {url.origin()} broke: {why}")) from error
        head, response = answer.head, UpstreamResponse(url, answer)
        if head.cookies:
            self._remember(url, answer)
        target = _redirect(response) if head.status in _REDIRECTS else None
        if target is None and not head.content_encoding:
            return response
        if target is None:
            return self._decoded(url, answer)
        response.close()
        self._check_redirect(response, target, redirects)
        return await self._sent(method, target, headers, varying, data, redirects - 1)

    def _decoded(self, url: URL, answer: ClientResponse) -> UpstreamResponse:
        """A response whose body is compressed, though the server was asked not to."""
        coding = answer.head.content_encoding[:20]
        listed = codings(answer.head.content_encoding)
        if listed is None:
            answer.close()
            sentence = f"it compresses its responses ({coding!r}), though it was asked not to, and not by gzip"
            raise Rejected(f"{sentence}: turn that off at the server or the proxy before it", answer.head.status)
        if not listed:
            return UpstreamResponse(url, answer)
        self._context.oddities.note("content_encoding", f"compresses its responses ({coding}) unasked; accepted")
        return UpstreamResponse(url, DecodedBody(answer, listed))

    def _check_redirect(self, response: UpstreamResponse, target: URL, redirects: int) -> None:
        """Raises Rejected for a redirect that may not be followed."""
        shown = str(target.with_query(None).with_fragment(None).with_user(None))[:QUOTED_CHARS]
        if response.status not in _FOLLOWED_REDIRECTS or origin(target) != origin(response.url):
            sentence = f"HTTP {response.status} redirects to {shown}, which is not followed"
            raise Rejected(self._context.redact(f"{sentence}; set `url` to the final address"), response.status)
        if not redirects:
            sentence = f"HTTP {response.status} redirects to {shown}, after {MAX_REDIRECTS} other redirects"
            raise Rejected(self._context.redact(sentence), response.status)

    def _head(self, method: str, url: URL, headers: ExtraHeaders, varying: Mapping[str, str]) -> bytes:
        """The head as bytes: the part that a link's requests share, followed by the varying fields."""
        if traced := departing.get():
            varying = {**varying, **traced}
        names, head = tuple(varying) if varying else (), self._last
        if not (head.headers is headers and head.names == names and head.url is url and head.method == method):
            head = self._kept(method, url, headers, names)
        return head.written + write_fields(varying) if names else head.written

    def _kept(self, method: str, url: URL, headers: ExtraHeaders, names: tuple[str, ...]) -> _Head:
        key = (method, url, headers, names)
        head = self._heads.get(key)
        if head is None:
            head = _Head(*key, self._written(*key))
            if len(head.written) + sum(map(len, names)) > MAX_KEPT_HEAD_BYTES or self._cookies is not None:
                return head
            if len(self._heads) >= MAX_KEPT_HEADS:
                self._heads.clear()
            self._heads[key] = head
        self._last = head
        return head

    def _written(self, method: str, url: URL, headers: ExtraHeaders, names: tuple[str, ...]) -> bytes:
        fields = {**self._credentials(url), **self._own, **self._changing, **_by_name(headers)}
        check_names(names)
        for name in names:
            fields.pop(name.lower(), None)
        return write_head(method, url, dict(fields.values()))

    def _credentials(self, url: URL) -> NamedHeaders:
        """The credentials in the URL itself, and the server's cookies."""
        fields: NamedHeaders = {}
        if url.user is not None or url.password is not None:
            pair = f"{url.user or ''}:{url.password or ''}"
            fields["authorization"] = ("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
        if self._cookies is not None:
            held = self._cookies.filter_cookies(url).values()
            # As they came, quotes included: the filter takes those off, or puts others on.
            came = {(cookie.key, cookie.value): cookie.coded_value for cookie in self._cookies}
            pairs = [f"{cookie.key}={came.get((cookie.key, cookie.value), cookie.coded_value)}" for cookie in held]
            fields["cookie"] = ("Cookie", "; ".join(pairs))
        return fields

    def _remember(self, url: URL, answer: ClientResponse) -> None:
        from aiohttp import CookieJar

        # For servers at an IP address too; each link has its own jar, and cookies go back as they came.
        self._cookies = self._cookies or CookieJar(unsafe=True, quote_cookie=False)
        self._cookies.update_cookies_from_headers(answer.head.cookies, url)
        self._forget_heads()

    def _forget_heads(self) -> None:
        self._heads.clear()
        self._last = _NO_HEAD

    def rejection(self, response: UpstreamResponse, body: bytes) -> Rejected:
        """The error for a response that is not MCP: its status and a short redacted quotation."""
        is_page = response.content_type == "text/html" or look(body) is Looks.PAGE
        text = self._context.redact(quotable(body))
        text = " ".join((_TAG.sub(" ", text) if is_page else text).split())[:QUOTED_CHARS]
        sentence = f"HTTP {response.status} {response.reason or ''}".rstrip()
        if response.url.scheme == "http" and (proxy := self._context.spec.leaving.proxy(response.url)) is not None:
            sentence += f" (by the proxy {proxy}, or the server behind it)"
        if response.status in AUTHENTICATION:
            sentence += f": {self._remedy(response)}"
        elif response.ok and is_page:
            sentence = f"it answered with a web page ({response.content_type!r}), neither JSON nor an event stream"
        elif response.ok:
            sentence = f"it answered with {response.content_type!r}, neither JSON nor an event stream"
        elif is_page and response.status in ELSEWHERE:
            sentence += ": a web page, and no MCP endpoint; correct the path of `url`"
        return Rejected(f"{sentence}: {text}" if text else sentence, response.status, quotable(body))

    def _remedy(self, response: UpstreamResponse) -> str:
        """What to do about a 401 or 403."""
        name, challenge = self._context.spec.name, _challenge(response) or ""
        if self._context.credentials is not None:
            return "the server refuses the credentials that the caller brought"
        if self._context.spec.credentials.forward:
            return "the server gives nothing without credentials, which each caller has to bring (`credentials`)"
        if self._context.authorization is None and response.status == 401 and "resource_metadata=" in challenge:
            return f"this server wants OAuth: add `oauth: {{}}` to it, then run `mcproxy login {shlex.quote(name)}`"
        return "the server wants other credentials; set `headers` of this upstream, or `oauth`"


def _challenge(response: UpstreamResponse) -> str | None:
    return response.fields.get("www-authenticate")


def _redirect(response: UpstreamResponse) -> URL | None:
    try:
        return response.url.join(URL(response.fields["location"]))
    except (KeyError, ValueError):
        return None


def _by_name(fields: Collection[tuple[str, str]]) -> NamedHeaders:
    return dict(zip(map(str.lower, map(_name_of, fields)), fields, strict=True))
