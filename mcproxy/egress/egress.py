"""Decides for a URL whether to connect directly or through a proxy, with which TLS context, and to which addresses.

Follows the settings first, then HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY. Looks no name up.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from yarl import URL

from mcproxy.egress.addresses import IPAddress, address_of, is_local, is_public
from mcproxy.egress.certificates import Certificates
from mcproxy.http.client.pool import origin
from mcproxy.http.client.way import Proxy, Way

DIRECT: Final = "direct"
"""Instead of a proxy's URL: none, whatever the environment says."""
MIN_SECRET: Final = 8
"""Characters of a password that is removed from logs: a shorter one may be an ordinary word."""
UNIX: Final = "http+unix://"
_PORTS: Final = {"http": 80, "https": 443}
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class ProxyChoice(NamedTuple):
    """A proxy as it was written, and the setting or variable that names it. `text` may be `direct`."""

    text: str
    source: str


class ServerTls(msgspec.Struct, frozen=True):
    """TLS toward one server (`mcpServers.X.tls`). Files are absolute paths."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    verify: bool = True


class Egress(msgspec.Struct, frozen=True):
    """How requests for one part of the gateway leave. An `only` proxy is used whatever `no_proxy` says."""

    https: ProxyChoice | None = None
    http: ProxyChoice | None = None
    only: ProxyChoice | None = None
    no_proxy: str = ""
    ca: str | None = None
    tls: ServerTls = ServerTls()
    origin: str | None = None
    """The origin that `tls` is for. Its `ca` holds for the others too: they may be of the same company."""
    socket: str | None = None
    """The Unix socket of that origin."""

    def proxy(self, url: URL) -> Proxy | None:
        """The proxy for `url`; None to connect directly. Raises ValueError if the proxy's URL cannot be used."""
        host = url.raw_host or ""
        if is_local(host):
            return None
        choice = self.only or (self.https if url.scheme == "https" else self.http)
        if choice is None or choice.text == DIRECT:
            return None
        if self.only is None and no_proxy(self.no_proxy).covers(host, url.port):
            return None
        return parse_proxy(*choice)

    def way(self, url: URL, *, public: bool = False) -> Way:
        """The way to `url`; `public` allows only addresses that anybody can reach.

        Raises ValueError for a proxy that cannot be used, and OSError for a certificate file that cannot.
        """
        host = url.raw_host or ""
        if self.socket is not None and self._is_own(url):
            return Way(socket=self.socket)
        if public and not _may_be_public(host):
            raise ValueError(f"{host} is not a public address")
        proxy = self.proxy(url)
        permits = is_public if public and proxy is None else None
        proxy_tls = Certificates(self._authorities()).context() if proxy is not None and proxy.is_tls else None
        if url.scheme != "https":
            return Way(proxy, permits=permits, proxy_tls=proxy_tls)
        return Way(proxy, self.certificates(url).context(), self._server_name(url), permits, proxy_tls)

    def described(self, url: URL) -> str:
        """The way to `url` in words, for operators: "directly", or through which proxy; and what is trusted there."""
        try:
            proxy = self.proxy(url)
        except ValueError as error:
            return f"by no way: {error}"
        if self.socket is not None and self._is_own(url):
            return f"by the socket {self.socket}"
        way = "directly" if proxy is None else f"through the proxy {proxy} ({proxy.source})"
        if url.scheme != "https":
            return way
        trusted = self.certificates(url)
        if not trusted.verify:
            return f"{way}, and its certificate is not verified (tls.verify)"
        return f"{way}, trusting {' and '.join(trusted.ca)} too" if trusted.ca else way

    def secrets(self) -> set[str]:
        """The passwords of its proxies, as they are written, decoded and sent; short ones are ordinary words."""
        found: set[str] = set()
        for choice in (self.https, self.http, self.only):
            userinfo = "" if choice is None else choice.text.rpartition("@")[0]
            password = userinfo.rpartition("/")[2].partition(":")[2]
            pair = unquote(userinfo.rpartition("/")[2])
            found |= {password, unquote(password), base64.b64encode(pair.encode()).decode()}
        return {secret for secret in found if len(secret) >= MIN_SECRET}

    def certificates(self, url: URL) -> Certificates:
        """What is trusted at `url`, and shown there."""
        authorities = self._authorities()
        if self._is_own(url):
            return Certificates(authorities, self.tls.certificate, self.tls.key, self.tls.verify)
        return Certificates(authorities)

    @property
    def authorities(self) -> Certificates:
        """What is trusted at servers that `tls` is not for."""
        return Certificates(self._authorities())

    def proxy_headers(self, proxy: str) -> dict[str, str]:
        """The credentials for a proxy, by its `str`."""
        choices = (choice for choice in (self.only, self.https, self.http) if choice is not None)
        proxies = (parse_proxy(*choice) for choice in choices if choice.text != DIRECT)
        found = next((each.authorization for each in proxies if str(each) == proxy), None)
        return {} if found is None else {"Proxy-Authorization": found}

    def _authorities(self) -> tuple[str, ...]:
        return tuple(file for file in (self.ca, self.tls.ca) if file is not None)

    def _server_name(self, url: URL) -> str | None:
        return self.tls.server_name if self._is_own(url) else None

    def _is_own(self, url: URL) -> bool:
        return self.origin is not None and origin(URL(self.origin)) == origin(url)


def from_environment(environ: Mapping[str, str]) -> Egress:
    """As curl reads the variables; a variable in lower case wins."""

    def chosen(*names: str) -> ProxyChoice | None:
        found = ((name, environ.get(name, "").strip()) for name in names)
        return next((ProxyChoice(text, name) for name, text in found if text), None)

    # In a CGI program, HTTP_PROXY is a header of the request, which a stranger wrote.
    http = ("http_proxy",) if "REQUEST_METHOD" in environ else ("http_proxy", "HTTP_PROXY")
    everything = ("all_proxy", "ALL_PROXY")
    return Egress(
        chosen("https_proxy", "HTTPS_PROXY", *everything),
        chosen(*http, *everything),
        no_proxy=environ.get("no_proxy") or environ.get("NO_PROXY", ""),
    )


@lru_cache(64)
def parse_proxy(text: str, source: str) -> Proxy:
    """A proxy's URL. Without a scheme it is http. Raises ValueError, which quotes no password."""
    text = text.strip()
    whole = text if _SCHEME.match(text) else f"http://{text}"
    try:
        parts = urlsplit(whole)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{source} is not the URL of a proxy: write http://HOST:PORT") from None
    if parts.scheme not in _PORTS:
        raise ValueError(f"{source} names a proxy of the kind {parts.scheme}, and only http and https are supported")
    if not host or port == 0 or re.search(r"[\s\x00-\x1f]", host):
        raise ValueError(f"{source} is not the URL of a proxy: write http://HOST:PORT")
    authorization = None
    if "@" in parts.netloc:
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Proxy(host, port or _PORTS[parts.scheme], parts.scheme == "https", authorization, source)


class NoProxy(msgspec.Struct, frozen=True):
    """The hosts of a NO_PROXY: names and addresses with their port, if any, and networks."""

    everything: bool
    names: frozenset[tuple[str, int | None]]
    below: frozenset[tuple[str, int | None]]
    """Names of which only those below are covered: `*.example.com`."""
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    addresses: frozenset[tuple[IPAddress, int | None]]

    def covers(self, host: str, port: int | None) -> bool:
        """Whether a host, as a URL holds it, is connected to directly."""
        if self.everything:
            return True
        address = address_of(host)
        if address is not None:
            exact = (address, None) in self.addresses or (address, port) in self.addresses
            return exact or any(address in network for network in self.networks)
        name = host.rstrip(".").lower()
        if (name, None) in self.names or (name, port) in self.names:
            return True
        labels = name.split(".")
        above = [".".join(labels[index:]) for index in range(1, len(labels))]
        covered = self.names | self.below
        return any((each, None) in covered or (each, port) in covered for each in above)


@lru_cache(64)
def no_proxy(text: str) -> NoProxy:
    """Reads a NO_PROXY as curl and Go do. Entries stand between commas or spaces; what is not understood is skipped.

    A name covers itself and all names below it, with and without a dot in front; `*.name` only those below. Unlike
    curl it knows ports, and unlike Go a dot in front changes nothing.
    """
    names: set[tuple[str, int | None]] = set()
    below: set[tuple[str, int | None]] = set()
    networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    addresses: set[tuple[IPAddress, int | None]] = set()
    everything = False
    for entry in re.split(r"[,\s]+", text.lower()):
        if entry == "*":
            everything = True
        elif "/" in entry:
            network = _network(entry)
            networks += [] if network is None else [network]
        elif (address := address_of(entry)) is not None:
            addresses.add((address, None))
        elif entry:
            host, port = _with_port(entry)
            if (address := address_of(host)) is not None:
                addresses.add((address, port))
            elif host.startswith("*."):
                below.add((_ascii(host[2:].strip(".")), port))
            elif name := host.strip("."):
                names.add((_ascii(name), port))
    return NoProxy(everything, frozenset(names), frozenset(below), tuple(networks), frozenset(addresses))


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    base, _, bits = entry.partition("/")
    try:
        return ipaddress.ip_network(f"{base.strip('[]')}/{bits.rstrip(']')}", strict=False)
    except ValueError:
        return None


def _with_port(entry: str) -> tuple[str, int | None]:
    host, colon, port = entry.rpartition(":")
    return (host, int(port)) if colon and port.isascii() and port.isdigit() and len(port) <= 5 else (entry, None)


def _ascii(name: str) -> str:
    try:
        return name.encode("idna").decode()
    except UnicodeError:
        return name


def _may_be_public(host: str) -> bool:
    """Whether a host may have a public address, as far as its name tells."""
    address = address_of(host)
    return not is_local(host) if address is None else is_public(str(address))


class Endpoint(NamedTuple):
    """Where an upstream's URL leads: the URL to request, and the Unix socket to connect to, if any."""

    url: str
    socket: str | None


def endpoint(url: str) -> Endpoint:
    """Reads the URL of an upstream. `http+unix:///path/to.sock:/mcp` names a socket and, behind the colon, a path."""
    if not url.startswith(UNIX):
        return Endpoint(url, None)
    rest = url.removeprefix(UNIX)
    socket, _, path = rest.partition(":") if rest.startswith("/") else rest.partition("/")
    return Endpoint(f"http://localhost/{path.lstrip('/')}", os.path.normpath(unquote(socket)) if socket else "")
