"""Settings of how requests leave: `proxy.egress`, and `egress`, `tls` and `inherit` of an upstream."""

import os
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, PrivateAttr, WithJsonSchema

from mcproxy.egress.egress import DIRECT, Egress, ProxyChoice, from_environment, parse_proxy
from mcproxy.settings.section import Section


def _check_proxy(text: str) -> str:
    if text != DIRECT:
        try:
            parse_proxy(text, "this")
        except ValueError as error:
            raise ValueError(f"{str(error).removeprefix('this ')}, or `{DIRECT}`") from None
    return text


ProxyUrl = Annotated[str, AfterValidator(_check_proxy)]
"""The URL of an HTTP proxy, or `direct`."""


def _joined(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


NoProxyText = Annotated[
    str,
    BeforeValidator(_joined),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class EgressSettings(Section):
    """How everything that the gateway requests leaves it (`proxy.egress`)."""

    https: ProxyUrl | None = None
    """Proxy for https URLs, as `http://user:password@proxy.example:3128`; `direct` for none. Default: HTTPS_PROXY, else
    ALL_PROXY, from the environment.
    """
    http: ProxyUrl | None = None
    """Proxy for http URLs; `direct` for none. Default: HTTP_PROXY, else ALL_PROXY."""
    no_proxy: NoProxyText | None = None
    """Hosts that are connected to directly: names, which cover all names below them, with a port where wanted,
    addresses, networks such as 10.0.0.0/8, or `*`. Default: NO_PROXY. Loopback is never proxied.
    """
    ca: str | None = None
    """File (PEM) with authorities to trust beside the system's. Read again when it changes."""


class ServerTlsSettings(Section):
    """TLS toward one server. Files are PEM, relative to the configuration file, and read again when they change."""

    ca: str | None = None
    """File with authorities to trust beside the system's, or with the server's own certificate."""
    certificate: str | None = None
    """File with the client certificate to show to the server."""
    key: str | None = None
    """File with its private key, where the certificate's file does not hold it."""
    server_name: str | None = None
    """Name that the server's certificate is to have, if it is not the host in `url`."""
    verify: bool = True
    """`false` accepts any certificate: anybody on the way can then read and change everything. For tests alone."""


class Leaving(Section):
    """The base of sections whose requests leave the gateway."""

    _egress: Egress | None = PrivateAttr(default=None)

    @property
    def leaving(self) -> Egress:
        """How its requests leave: what `leaving_by` was given, else what the environment says."""
        return self._egress or from_environment(os.environ)

    def leaving_by(self, egress: Egress) -> Self:
        """The same section, its requests leaving so."""
        copy = self.model_copy()
        copy._egress = None if egress == from_environment(os.environ) else egress
        return copy


def general(settings: EgressSettings, environ: Mapping[str, str]) -> Egress:
    """How requests leave by `proxy.egress`; what it does not say, the environment does."""
    found = from_environment(environ)

    def chosen(text: str | None, key: str, other: ProxyChoice | None) -> ProxyChoice | None:
        return other if text is None else ProxyChoice(text, f"proxy.egress.{key}")

    return Egress(
        chosen(settings.https, "https", found.https),
        chosen(settings.http, "http", found.http),
        no_proxy=found.no_proxy if settings.no_proxy is None else settings.no_proxy,
        ca=settings.ca,
    )
