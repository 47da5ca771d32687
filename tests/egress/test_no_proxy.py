"""The table of NO_PROXY: which hosts are connected to directly. Where curl is installed, it is asked the same."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
from yarl import URL

from mcproxy.egress.egress import from_environment

MIXED = (
    "internal.test, .corp.test ,10.0.0.0/8,,UPPER.test,192.0.2.7,exact.test:8080,[fd00::9],fd01::/16,"
    "  spaced.test  ,lead.dot.test."
)
LOCAL = "::1,localhost,127.0.0.0/8,172.16.0.0/12"

CASES: list[tuple[str, str, bool]] = [
    (MIXED, "http://internal.test:80", True),
    (MIXED, "http://sub.internal.test:80", True),
    (MIXED, "http://INTERNAL.test:80", True),
    (MIXED, "http://internal.test.:80", True),
    (MIXED, "http://notinternal.test:80", False),
    (MIXED, "http://internal.test.evil.test:80", False),
    (MIXED, "http://a.corp.test:80", True),
    (MIXED, "http://corp.test:80", True),
    (MIXED, "http://xcorp.test:80", False),
    (MIXED, "http://upper.test:80", True),
    (MIXED, "http://10.1.2.3:80", True),
    (MIXED, "http://11.1.2.3:80", False),
    (MIXED, "http://192.0.2.7:80", True),
    (MIXED, "http://192.0.2.70:80", False),
    (MIXED, "http://exact.test:8080", True),
    (MIXED, "http://sub.exact.test:8080", True),
    (MIXED, "http://exact.test:9090", False),
    (MIXED, "http://[fd00::9]:80", True),
    (MIXED, "http://[fd00:0::0:9]:80", True),
    (MIXED, "http://[fd00::8]:80", False),
    (MIXED, "http://[fd01:2::8]:80", True),
    (MIXED, "http://spaced.test:80", True),
    (MIXED, "http://lead.dot.test:80", True),
    (LOCAL, "http://172.31.0.1:80", True),
    (LOCAL, "http://172.32.0.1:80", False),
    ("*", "http://anything.test:80", True),
    ("*.wild.test", "http://a.wild.test:80", True),
    ("*.wild.test", "http://wild.test:80", False),
    ("", "http://anything.test:80", False),
    ("a.test b.test", "http://b.test:80", True),
    ("10.0.0.0/99,a/b/c,[::1,:,:80,..", "http://anything.test:80", False),
    ("192.0.2.0/24", "http://[::ffff:192.0.2.9]:80", True),
    ("[fd00::9]:8080", "http://[fd00::9]:8080", True),
    ("[fd00::9]:8080", "http://[fd00::9]:80", False),
    ("192.0.2.7:8080", "http://192.0.2.7:80", False),
    ("bücher.test", "http://bücher.test:80", True),
]
UNLIKE_CURL = frozenset(
    {
        (MIXED, "http://exact.test:8080"),  # curl knows no ports; Go does
        (MIXED, "http://sub.exact.test:8080"),
        ("[fd00::9]:8080", "http://[fd00::9]:8080"),
        (MIXED, "http://[fd00::9]:80"),  # curl knows no brackets here, and some releases no networks of IPv6; Go does
        (MIXED, "http://[fd00:0::0:9]:80"),
        (MIXED, "http://[fd01:2::8]:80"),
        ("*.wild.test", "http://a.wild.test:80"),  # curl knows no wildcards; Go does
        ("192.0.2.0/24", "http://[::ffff:192.0.2.9]:80"),  # as Go
        ("bücher.test", "http://bücher.test:80"),  # differs with the build
    }
)
"""Documented in docs/how-to/behind-a-proxy.md."""


@pytest.mark.parametrize(("text", "url", "is_direct"), CASES)
def test_no_proxy_is_read_as_curl_and_go_read_it(text: str, url: str, is_direct: bool) -> None:
    egress = from_environment({"HTTP_PROXY": "http://proxy.test:3128", "NO_PROXY": text})
    assert (egress.proxy(URL(url)) is None) == is_direct


LOOPBACK = [
    "127.0.0.1",
    "127.0.0.9",
    "[::1]",
    "localhost",
    "a.localhost",
    "localhost.",
    "127.1",
    "0.0.0.0",
    "2130706433",
]


@pytest.mark.parametrize("host", [*LOOPBACK, "[::ffff:127.0.0.1]"])
def test_loopback_is_never_proxied(host: str) -> None:
    egress = from_environment({"HTTP_PROXY": "http://proxy.test:3128"})
    assert egress.proxy(URL(f"http://{host}:81")) is None


@contextmanager
def proxy_that_counts() -> Iterator[tuple[int, list[bytes]]]:
    """A proxy that answers everything with 204, and keeps the first bytes of each request."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(4096))
                    connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], asked
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("text", "url", "is_direct"), [case for case in CASES if case[:2] not in UNLIKE_CURL])
def test_curl_agrees(text: str, url: str, is_direct: bool) -> None:
    parts = URL(url)
    with proxy_that_counts() as (port, asked):
        environ = {"PATH": os.environ["PATH"], "http_proxy": f"http://127.0.0.1:{port}", "no_proxy": text}
        # What goes directly ends at once, at a closed port of loopback, and looks nothing up.
        nowhere = f"{parts.host if ':' not in str(parts.host) else f'[{parts.host}]'}:{parts.port}:127.0.0.1:1"
        command = ["curl", "-s", "-m", "5", "--connect-to", nowhere, "-o", os.devnull, url]
        subprocess.run(command, env=environ, check=False)
        assert (asked == []) == is_direct
