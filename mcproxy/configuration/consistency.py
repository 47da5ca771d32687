"""Checks of a configuration's keys against each other: combinations that each key alone allows, and that are wrong."""

from __future__ import annotations

import difflib
import json
import re
import shlex
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from mcproxy.configuration.documents.tree import Node
from mcproxy.configuration.problems import Path
from mcproxy.egress.egress import UNIX, endpoint
from mcproxy.settings import Access, Admin, Proxy, Tls, UpstreamSettings
from mcproxy.settings.access.authentication import Authentication
from mcproxy.settings.loopback import is_loopback
from mcproxy.settings.secret_values import masked_arguments
from mcproxy.settings.section import Section

KeyPath = tuple[str, ...]

_ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  # nothing is bound here
_LOOPBACK_NAMES: Final = {"localhost": "127.0.0.1"}

_HOME: Final = re.compile(r"(?:--?[\w-]+=)?~(?:[/\\]|$)")
"""An argument, or an option with a value, that a shell would begin with the home folder."""
_COMMAND_LINE: Final = re.compile(r"\s*(?:[^\s/\\]+\s+\S.*|\S+\s+-.*)", re.DOTALL)
"""A name without a folder followed by something, or anything followed by an option."""

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_HEADER_VALUE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that RFC 9110, sections 5.1 and 5.5, forbid in a header."""


def open_doors(proxy: Proxy, authentication: Authentication, admin: Admin) -> Iterator[tuple[KeyPath, str]]:
    """Settings that could let callers or operators in by mistake: each key, and a sentence that continues its name."""
    outside = not is_loopback(proxy.host)
    # R42: no caller from another machine is let in by mistake.
    if outside and not authentication.required and not proxy.insecure:
        yield (
            ("proxy", "host"),
            "is not loopback, and callers are not authenticated: set access.authentication, "
            "or set proxy.insecure to true to allow it",
        )
    if admin.port is not None and not is_loopback(admin.host) and not authentication.required:
        yield ("admin", "host"), "is not loopback, and operators are not authenticated: set access.authentication"
    if admin.port and admin.port == proxy.port and _same_address(admin.host, proxy.host):
        yield ("admin", "port"), "is the port of callers too (proxy.port): choose another"
    # The Host header is the caller's own: it must not decide which audience a token needs.
    if authentication.oauth.issuers and proxy.public_url is None and (outside or proxy.allowed_hosts):
        yield ("access", "authentication", "oauth"), "needs proxy.public_url, the audience of tokens"
    if authentication.certificates.enabled and proxy.tls.client_ca is None:
        yield ("access", "authentication", "certificates"), "needs proxy.tls.client_ca, the authorities that sign them"


def unanswerable(access: Access, admin: Admin) -> Iterator[tuple[Path, str]]:
    """Rules by which calls wait for an operator although none could learn of them."""
    if admin.port is not None or access.approvals.webhook is not None:
        return
    for name, role in access.policy.roles.items():
        for index, rule in enumerate(role.allow):
            if rule.approve == "operator":
                yield (
                    ("access", "policy", "roles", name, "allow", index, "approve"),
                    "is for operators, and no operator can decide: set admin.port or access.approvals.webhook",
                )


_OFFICIAL_RETRIES: Final = 10
"""Times that the official SDKs retry a stateless call that is told to."""


def cut_short(access: Access, proxy: Proxy) -> Iterator[tuple[Path, str]]:
    """Approvals that are given more time than the calls that wait for them have."""
    timeout, bridge = access.approvals.timeout, proxy.bridge
    approvers = {rule.approve for role in access.policy.roles.values() for rule in role.allow}
    path = ("access", "approvals", "timeout")
    if "caller" in approvers and timeout > bridge.park_ttl:
        yield path, f"is longer than proxy.bridge.park_ttl ({bridge.park_ttl:g} s), when a caller can answer no more"
    elif "caller" in approvers and timeout > proxy.ask_timeout:
        yield path, f"is longer than proxy.ask_timeout ({proxy.ask_timeout:g} s), when a caller can answer no more"
    elif "operator" in approvers and timeout > _OFFICIAL_RETRIES * bridge.hold:
        yield path, f"is longer than ten times proxy.bridge.hold ({bridge.hold:g} s), when official SDKs give up"


def unequal_shares(proxy: Proxy, access: Access) -> Iterator[tuple[Path, str]]:
    """Limits for each caller above what there is for everybody."""
    sections: list[tuple[KeyPath, Section, str, str]] = [
        (("proxy", "limits"), proxy.limits, "max_sessions", "max_sessions_per_principal"),
        (("proxy", "limits"), proxy.limits, "replay_bytes_total", "replay_bytes_per_principal"),
        (("proxy", "bridge"), proxy.bridge, "max_parked", "max_parked_per_principal"),
        (("proxy", "results"), proxy.results, "max_bytes", "max_bytes_per_principal"),
        (("access", "approvals"), access.approvals, "max_waiting", "max_waiting_per_principal"),
    ]
    for path, section, total, share in sections:
        most, of_one = getattr(section, total), getattr(section, share)
        if of_one > most:
            yield (*path, total), f"{share} ({of_one}) is more than {total} ({most}), so that one caller can take all"


def idle_tracing(proxy: Proxy) -> Iterator[tuple[Path, str]]:
    """Settings of traces that have no effect."""
    given = sorted(proxy.tracing.model_fields_set - {"enabled"})
    if given and "enabled" not in proxy.tracing.model_fields_set:
        yield ("proxy", "tracing", given[0]), "has no effect: nothing is traced without proxy.tracing.enabled"


def without_login_pages(proxy: Proxy, upstreams: Iterable[UpstreamSettings]) -> Iterator[tuple[Path, str]]:
    """A public URL at which nobody can log in to servers, though there are some that people log in to."""
    public = urlsplit(proxy.public_url or "")
    wanted = [spec.name for spec in upstreams if spec.oauth is not None and spec.oauth.grant == "authorization_code"]
    if wanted and public.scheme == "http" and not is_loopback(public.hostname or ""):
        yield (
            ("proxy", "public_url"),
            f"is not https, so that callers are given no link to log in to {wanted[0]!r}: only `mcproxy login` can",
        )


def _same_address(one: str, other: str) -> bool:
    """Whether two listeners on one port would conflict."""
    hosts = {_LOOPBACK_NAMES.get(host.strip("[]"), host.strip("[]")) for host in (one, other)}
    return len(hosts) == 1 or bool(hosts & _ANY_ADDRESS)


def contradictions(server: Node) -> Iterator[tuple[Node, str]]:
    """Keys of one server that cannot be combined, each with the reason."""
    keys = server.members
    kind = node_text(keys.get("type"))
    match "command" in keys, "url" in keys:
        case True, True:
            yield server, "has both a command and a url: keep one"
        case False, False:
            # A misspelt key has a problem of its own, which names the key that was probably meant.
            if not any(difflib.get_close_matches(key.lower(), ("command", "url")) for key in keys):
                yield server, "needs a command or a url"
        case True, False:
            if kind in {"http", "sse"}:
                yield (
                    keys["type"],
                    f"{kind} needs a url, and this server has a command: leave `type` out",
                )
            if "headers" in keys and keys["headers"].value:
                yield keys["headers"], "is for a server with a url"
            for node in _of_urls(keys):
                yield node, "is for a server with a url"
            if _forwards(keys):
                yield keys["credentials"], "is for a server with a url"
            if _has_oauth(keys):
                yield keys["oauth"], "is for a server with a url"
            if _is_given(keys, "headers_command"):
                yield keys["headers_command"], "is for a server with a url"
            if node_text(keys.get("connection")) == "session":
                for node in _idling(keys):
                    yield node, "has no effect with connection: session, which starts a child with each session"
        case False, True:
            if node_text(keys.get("placement")) == "one":
                yield keys["placement"], "is for a server with a command"
            if kind == "stdio":
                yield (
                    keys["type"],
                    "stdio needs a command, and this server has a url: leave `type` out",
                )
            for node in _idling(keys):
                yield node, "is for a server with a command"
            childs = ("args",) if _is_given(keys, "headers_command") else ("args", "env", "cwd", "inherit")
            for node in (keys[key] for key in childs if _is_given(keys, key)):
                yield node, "is for a server with a command"
            if _forwards(keys) and node_text(keys.get("connection")) == "session":
                yield keys["connection"], "has no effect with credentials, which have connections of their own"
            if _has_oauth(keys) and _sends_authorization(keys):
                yield keys["oauth"], "and an Authorization header under headers exclude each other: keep one"
            if _has_oauth(keys) and _forwards(keys):
                yield keys["oauth"], "and credentials.forward exclude each other: keep one"
            if _is_given(keys, "headers_command") and _has_oauth(keys):
                yield keys["headers_command"], "and oauth exclude each other: keep one"
            if _is_given(keys, "headers_command") and _forwards(keys):
                yield keys["headers_command"], "and credentials.forward exclude each other: keep one"
            if (fault := url_fault(keys["url"].text)) is not None:
                yield keys["url"], fault
            for name, node in keys.get("headers", Node({})).members.items():
                if not _HEADER_NAME.fullmatch(name) or _NO_HEADER_VALUE.search(node.text):
                    yield node, "can be no header: a line break in its value, or a space or colon in its name"


def _is_given(keys: Mapping[str, Node], key: str) -> bool:
    return key in keys and bool(keys[key].value)


def _of_urls(keys: Mapping[str, Node]) -> Iterator[Node]:
    """The keys, as set, that say how a URL is reached."""
    if _is_given(keys, "egress"):
        yield keys["egress"]
    yield from (node for key, node in keys.get("tls", Node({})).members.items() if node.value and key != "verify")


def _idling(keys: Mapping[str, Node]) -> Iterator[Node]:
    """The keys, as set, by which an unused child is stopped."""
    if node_text(keys.get("start")) == "on_demand":
        yield keys["start"]
    if _is_given(keys, "idle_stop"):
        yield keys["idle_stop"]


def _has_oauth(keys: Mapping[str, Node]) -> bool:
    return "oauth" in keys and keys["oauth"].value is not None


def _sends_authorization(keys: Mapping[str, Node]) -> bool:
    return "headers" in keys and any(name.lower() == "authorization" for name in keys["headers"].members)


def doubts(server: Node) -> Iterator[tuple[Node, str]]:
    """Keys of one server that are valid and probably a mistake."""
    command = server.members.get("command")
    if command is not None and _COMMAND_LINE.fullmatch(command.text):
        program, *arguments = _split(command.text)
        shown = masked_arguments(arguments, "...")
        written = ", ".join(json.dumps(argument, ensure_ascii=False) for argument in shown)
        sentence = "is a whole command line, and no shell reads it: write command: {} and args: [{}]"
        yield command, sentence.format(program, written)
    listed = server.members.get("args", Node([])).value
    for argument in listed if command is not None and isinstance(listed, list) else ():
        if _HOME.match(argument.text):
            yield argument, "begins with ~, which no shell expands here: write ${userHome}/..."


def unverified(server: Node) -> Iterator[tuple[Node, str]]:
    """TLS without verification: not a mistake where it is meant, and never safe."""
    verify = server.members.get("tls", Node({})).members.get("verify")
    if verify is not None and verify.value in (False, "false", "no", "off"):
        sentence = "accepts any certificate, so that anybody on the way can read and change everything: set `tls.ca`"
        yield verify, sentence


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _forwards(keys: Mapping[str, Node]) -> bool:
    return "credentials" in keys and bool(keys["credentials"].members.get("forward", Node({})).value)


def url_fault(text: str) -> str | None:
    """Why a URL cannot be used; None if it can."""
    if text.startswith(UNIX):
        return None if endpoint(text).socket else "should name a socket: http+unix:///path/to.sock:/mcp"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        # Messages about hosts quote them.
        about_port = str(error).startswith("Port")
        return "should have a port from 1 to 65535" if about_port else "should be a URL: its host is malformed"
    if url.scheme not in {"http", "https"}:
        return "should be an http or https URL"
    if not url.hostname:
        return "should name a host"
    if re.search(r"[^\w.:%~-]", url.hostname):
        return "should be a URL: its host is malformed"
    return "should have a port from 1 to 65535" if port == 0 else None


def node_text(node: Node | None) -> str | None:
    """The text of a scalar node; None for another node, and without one."""
    return node.value if node is not None and isinstance(node.value, str) else None


def certificate_faults(tls: Tls) -> Iterator[tuple[str, str]]:
    """The faults of the files, each with its key in `proxy.tls`."""
    if tls.certificate is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With a password: OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except (ssl.SSLError, OSError) as error:
        yield _fault(tls, str(getattr(error, "reason", None) or error))
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except (ssl.SSLError, OSError):
            yield "client_ca", "holds no certificate in PEM format"


def _fault(tls: Tls, reason: str) -> tuple[str, str]:
    key = "certificate" if tls.key is None else "key"
    if reason == "KEY_VALUES_MISMATCH":
        return key, f"is not the private key of the certificate in {tls.certificate}"
    if not _has_certificate(tls):
        return "certificate", "holds no certificate in PEM format"
    if tls.key is None:
        return "certificate", "holds no private key that can be used: set proxy.tls.key"
    return "key", "holds no private key in PEM format without a password"


def _has_certificate(tls: Tls) -> bool:
    assert tls.certificate is not None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(tls.certificate)
    except (ssl.SSLError, OSError):
        return False
    return True
