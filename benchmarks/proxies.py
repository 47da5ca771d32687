"""The proxies under test: how each is configured and started, and under which names it shows the upstream.

Peers come from the registries, pinned in `peers/`; one that is not installed is skipped, with a notice. Not among them:
mcpproxy-go and Docker's mcp-gateway, which Go's module proxy refuses, and agentgateway, which crates.io does not have.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.running import ROOT
from benchmarks.variants import PLAIN, VARIANTS, merged
from mcproxy.protocol.eras import Era

CACHE: Final = ROOT / ".cache" / "bench"
MCPROXY: Final = "mcproxy"
NOTHING: Final = "do-nothing"
NGINX: Final = "nginx"
DIRECT: Final = "direct"
_MANY: Final = 100_000
_LIMITS: Final = ("max_calls_per_session", "max_sessions", "max_sessions_per_principal", "max_streams_per_principal")
"""Bounds that a load of one client would meet are out of its way."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a proxy is put in front of."""

    folder: Path
    """For configuration and state."""
    port: int
    """Where the proxy is to listen."""
    upstream: int
    """The upstream's port."""
    load_core: int
    """Where a child that the proxy starts is to go."""
    era: Era = Era.HANDSHAKE
    upstreams: int = 1
    """How many the proxy is to have; all are the same server."""
    tools: int = 1
    stdio: bool = False
    variant: str = PLAIN

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.upstream}/mcp"

    @property
    def child(self) -> list[str]:
        """The command of an upstream over stdio."""
        return [sys.executable, "-m", "benchmarks.child", str(self.load_core), str(self.tools)]


@dataclass(frozen=True, slots=True)
class Program:
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proxy:
    name: str
    start: Callable[[Scene], Program]
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot be started here."""
    names: Callable[[int], str] = lambda number: ""
    """What comes before a tool's name, by the upstream's number."""
    uris: Callable[[int], str] = lambda number: ""
    """What comes before a URI."""


def upstream_name(number: int) -> str:
    return f"u{number}"


def configuration(scene: Scene) -> dict[str, Any]:
    """The gateway's."""
    era = "legacy" if scene.era is Era.HANDSHAKE else "modern"
    if scene.stdio:
        where: dict[str, Any] = {"command": scene.child[0], "args": scene.child[1:], "cwd": str(ROOT)}
    else:
        where = {"type": "http", "url": scene.url}
    upstream = {**where, "era": era, "max_in_flight": _MANY, "cache": {"ttl": {"bench://kept/*": 3600}}}
    plain = {
        "mcpServers": {upstream_name(number): upstream for number in range(scene.upstreams)},
        "proxy": {"port": scene.port, "log_format": "json", "limits": dict.fromkeys(_LIMITS, _MANY)},
    }
    return merged(plain, VARIANTS[scene.variant])


def interpreter() -> str:
    """The Python that mcproxy and do-nothing run in: with what users have, and nothing beside it.

    Libraries look for others that would be of use to them, and import what a developer happens to have: structlog does
    so with greenlet, which is a mebibyte. Without `make bench`, the Python that runs this.
    """
    return str(_USERS) if _USERS.exists() else sys.executable


def gateway(file: Path) -> Program:
    """mcproxy with a configuration."""
    command = [interpreter(), "-m", "mcproxy", "serve", "--config", str(file)]
    return Program(command, {"XDG_STATE_HOME": str(file.parent)})


def gateway_file(scene: Scene) -> Path:
    """The file with the gateway's configuration, which it writes."""
    return _written(scene, "mcproxy.json", json.dumps(configuration(scene)))


def _mcproxy(scene: Scene) -> Program:
    return gateway(gateway_file(scene))


def _do_nothing(scene: Scene) -> Program:
    return Program([interpreter(), "-m", "benchmarks.noop", str(scene.port), scene.url])


def _nginx(scene: Scene) -> Program:
    template = Path(__file__).with_name("nginx.conf").read_text()
    places = {"FOLDER": scene.folder, "PORT": scene.port, "UPSTREAM": scene.upstream}
    for place, value in places.items():
        template = template.replace(f"@{place}@", str(value))
    return Program(["/usr/sbin/nginx", "-c", str(_written(scene, "nginx.conf", template))])


def _fastmcp(scene: Scene) -> Program:
    server = {"command": scene.child[0], "args": scene.child[1:]} if scene.stdio else {"url": scene.url}
    file = _written(scene, "mcp.json", json.dumps({"mcpServers": {upstream_name(0): server}}))
    fixed = ["--transport", "http", "--host", "127.0.0.1", "--no-banner", "--log-level", "ERROR"]
    return Program([str(_FASTMCP), "run", str(file), "--port", str(scene.port), *fixed])


def _mcp_proxy_pypi(scene: Scene) -> Program:
    fixed = ["--host", "127.0.0.1", "--port", str(scene.port), "--log-level", "ERROR", "--pass-environment"]
    return Program([str(_MCP_PROXY_PYPI), *fixed, "--", *scene.child])


def _mcp_proxy_npm(scene: Scene) -> Program:
    fixed = ["--host", "127.0.0.1", "--port", str(scene.port), "--server", "stream"]
    return Program(["node", str(_MCP_PROXY_NPM), *fixed, "--", *scene.child])


def _supergateway(scene: Scene) -> Program:
    fixed = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"]
    return Program(["node", str(_SUPERGATEWAY), "--stdio", " ".join(scene.child), "--port", str(scene.port), *fixed])


def _vmcp(scene: Scene) -> Program:
    backends = [
        {"name": upstream_name(number), "url": scene.url, "transport": "streamable-http"}
        for number in range(scene.upstreams)
    ]
    settings = {
        "name": "bench",
        "groupRef": "bench",
        "incomingAuth": {"type": "anonymous"},
        "outgoingAuth": {"source": "inline", "default": {"type": "unauthenticated"}},
        "aggregation": {"conflictResolution": "prefix", "conflictResolutionConfig": {"prefixFormat": "{workload}__"}},
        "backends": backends,
    }
    # It reads YAML, of which JSON is a part.
    file = _written(scene, "vmcp.yaml", json.dumps(settings))
    # Its one core is all that it has: more threads than that would wait for each other.
    return Program([str(_VMCP), "serve", "--config", str(file), "--port", str(scene.port)], {"GOMAXPROCS": "1"})


def _written(scene: Scene, name: str, text: str) -> Path:
    file = scene.folder / name
    file.write_text(text)
    return file


def _file(path: Path) -> Callable[[], str | None]:
    return lambda: None if path.exists() else f"{path.relative_to(ROOT)} is not installed: run `make bench`"


def _program(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name, path="/usr/sbin:/usr/bin") else f"{name} is not installed"


_USERS: Final = CACHE / "mcproxy" / "bin" / "python"
_FASTMCP: Final = CACHE / "fastmcp" / "bin" / "fastmcp"
_MCP_PROXY_PYPI: Final = CACHE / "mcp-proxy" / "bin" / "mcp-proxy"
_VMCP: Final = CACHE / "vmcp" / "vmcp"
_NODE: Final = Path(__file__).with_name("peers") / "node_modules"
_MCP_PROXY_NPM: Final = _NODE / "mcp-proxy" / "dist" / "bin" / "mcp-proxy.mjs"
_SUPERGATEWAY: Final = _NODE / "supergateway" / "dist" / "index.js"

PROXIES: Final[Mapping[str, Proxy]] = {
    proxy.name: proxy
    for proxy in (
        Proxy(
            MCPROXY,
            _mcproxy,
            names=lambda number: f"{upstream_name(number)}__",
            uris=lambda number: f"{upstream_name(number)}+",
        ),
        Proxy(NOTHING, _do_nothing),
        Proxy(NGINX, _nginx, _program("nginx")),
        Proxy("fastmcp", _fastmcp, _file(_FASTMCP)),
        Proxy(
            "vmcp (ToolHive)",
            _vmcp,
            _file(_VMCP),
            names=lambda number: f"{upstream_name(number)}__",
        ),
        Proxy("mcp-proxy (PyPI)", _mcp_proxy_pypi, _file(_MCP_PROXY_PYPI)),
        Proxy("mcp-proxy (npm)", _mcp_proxy_npm, _file(_MCP_PROXY_NPM)),
        Proxy("supergateway", _supergateway, _file(_SUPERGATEWAY)),
    )
}
