"""Sends spans through the same proxies as all other requests of the gateway: a `requests` session for the exporter."""

from __future__ import annotations

from typing import Any

import requests
from requests.adapters import HTTPAdapter
from yarl import URL

from mcproxy.egress.egress import Egress


def session(egress: Egress) -> requests.Session:
    """A session whose requests are routed by `egress` and ignore the environment."""
    made = requests.Session()
    made.trust_env = False
    for scheme in ("https://", "http://"):
        made.mount(scheme, _Adapter(egress))
    return made


class _Adapter(HTTPAdapter):
    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        super().__init__()

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        """Like the base class. Also raises `requests.RequestException` for a proxy that cannot be used."""
        try:
            proxy = self._egress.proxy(URL(request.url or ""))
        except ValueError as error:
            raise requests.exceptions.InvalidProxyURL(str(error)) from error
        options["proxies"] = {} if proxy is None else {"http": str(proxy), "https": str(proxy)}
        return super().send(request, *args, **options)

    def proxy_headers(self, proxy: str) -> dict[str, str]:
        """The credentials for a proxy, which the proxy's URL does not contain here."""
        return self._egress.proxy_headers(proxy)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Makes connections trust the gateway's certificate authorities, too."""
        super().init_poolmanager(*args, **options, ssl_context=self._egress.authorities.context())

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        """Does the same for connections through a proxy."""
        return super().proxy_manager_for(proxy, **options, ssl_context=self._egress.authorities.context())
