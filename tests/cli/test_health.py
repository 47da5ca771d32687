"""`mcproxy health` against listeners that are there, absent, encrypted, or on another port."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli.test_commands import code
from tests.fakes.certificates import Authority, Files


class Answers(BaseHTTPRequestHandler):
    """Healthy, and not ready."""

    def do_GET(self) -> None:
        self.send_response({"/healthz": 200, "/readyz": 503}.get(self.path, 404))
        self.end_headers()
        self.wfile.write(b"waiting for git\n" if self.path == "/readyz" else b"ok\n")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def listening(files: Files | None = None, client_ca: str | None = None) -> Iterator[int]:
    """The port of a listener that answers."""
    server = HTTPServer(("127.0.0.1", 0), Answers)
    if files is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def configured(folder: Path, text: str) -> Path:
    path = folder / "mcproxy.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("section", ["proxy", "admin"])
def test_the_port_is_that_of_the_configuration(
    tmp_path: Path, section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening() as port:
        path = configured(tmp_path, f"{section}: {{port: {port}}}\n")
        assert code("health", "-c", path) == 0
        assert capsys.readouterr().out == "ok\n"
        assert code("health", "--ready", "-c", path) == 1
        assert capsys.readouterr().out == "waiting for git\n"


def test_a_listener_with_tls_is_asked_over_tls(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server", "gateway.example")
    with listening(files) as port:
        tls = f"{{certificate: {files.certificate}, key: {files.key}}}"
        assert code("health", "-c", configured(tmp_path, f"proxy: {{port: {port}, tls: {tls}}}\n")) == 0


def test_a_listener_that_asks_for_a_certificate_lives(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server", "gateway.example")
    with listening(files, authority.file) as port:
        tls = f"{{certificate: {files.certificate}, key: {files.key}, client_ca: {authority.file}}}"
        assert code("health", "-c", configured(tmp_path, f"proxy: {{port: {port}, tls: {tls}}}\n")) == 0


def test_a_gateway_that_does_not_run_is_a_failure_and_an_unknown_port_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening() as port:
        path = configured(tmp_path, f"proxy: {{port: {port}}}\n")
    assert code("health", "-c", path) == 1
    assert f"127.0.0.1:{port} does not answer" in capsys.readouterr().err
    assert code("health", "-c", configured(tmp_path, "proxy: {port: 0}\n")) == 2
    assert "proxy.port: is any free port" in capsys.readouterr().err
