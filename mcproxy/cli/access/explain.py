"""`mcproxy explain`: the steps by which a caller's request is allowed or denied. Connects to upstreams, calls none."""

from __future__ import annotations

import msgspec
from anyio import to_thread

from mcproxy.admin import control
from mcproxy.app import running
from mcproxy.call.identity import AGGREGATE, Caller, Principal
from mcproxy.cli.output import print_err, print_json, print_out, print_table
from mcproxy.cli.running.client import NotRunning, RefusedByGateway, RunningGateway
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import Configuration
from mcproxy.configuration.references import caller_names, suggestion
from mcproxy.gateway.explaining import Explanation, kind_of
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import Params
from mcproxy.settings import Settings
from mcproxy.settings.endpoints import key_of


async def print_explanation(
    configuration: Configuration,
    caller: Principal,
    endpoint: str,
    method: str,
    subject: str,
    arguments: Params,
    *,
    as_json: bool,
) -> int:
    """Prints each step of the decision; exits with FAILED where the caller is denied.

    Asks the gateway that runs with the configuration, else one of its own, which connects to every server.
    """
    settings = configuration.settings
    try:
        key = endpoint_key(endpoint)
        asked = control.ExplainRequest(method, subject, caller.name, sorted(caller.roles), key, dict(arguments))
        explanation = await to_thread.run_sync(_explained_by_running, configuration, asked)
        if explanation is None:
            explanation = await explained(settings, caller, key, method, subject, arguments)
    except (ValueError, RefusedByGateway) as error:
        print_err(str(error))
        return ExitCode.INPUT
    present(explanation, as_json=as_json)
    known = caller_names(settings)
    if known is not None and caller.name not in known:
        print_err(f"no caller is called {caller.name!r}{suggestion(caller.name, known)}")
    return ExitCode.OK if explanation.allowed else ExitCode.FAILED


async def print_pipeline(settings: Settings, *, as_json: bool) -> int:
    """Prints everything that wraps a call, from the client to the server. Connects to nothing."""
    async with running(settings, connects=False) as app:
        rows = app.gateway.pipeline()
    if as_json:
        print_json(msgspec.to_builtins(rows))
    else:
        print_table(("SIDE", "PLACE", "FEATURE", "WHAT IT DOES"), [msgspec.structs.astuple(row) for row in rows])
    return ExitCode.OK


def _explained_by_running(configuration: Configuration, asked: control.ExplainRequest) -> Explanation | None:
    """The running gateway's explanation; None if none runs. Raises RefusedByGateway."""
    try:
        told = RunningGateway(configuration.path).post("/explain", msgspec.json.encode(asked).decode())
    except NotRunning:
        return None
    print_err("as the gateway that runs has it")
    return msgspec.convert(told, Explanation)


def endpoint_key(path: str) -> str:
    """The key of the endpoint at `/mcp`, `/mcp/NAME` or `/servers/NAME`. Raises ValueError for another path."""
    match path.strip("/").split("/"):
        case ["mcp"]:
            return AGGREGATE
        case ["mcp", name]:
            return key_of(name)
        case ["servers", name]:
            return name
        case _:
            raise ValueError("should be /mcp, /mcp/NAME or /servers/NAME")


async def explained(
    settings: Settings, principal: Principal, endpoint: str, method: str, subject: str, arguments: Params
) -> Explanation:
    """Raises ValueError for a method without a subject."""
    kind = kind_of(method, subject)
    caller = Caller(principal, LATEST, endpoint=endpoint)
    async with running(settings) as app:
        await app.settled()
        return app.gateway.explain(caller, kind, subject, arguments)


def known_roles(settings: Settings, principal: str) -> frozenset[str]:
    """The roles that a caller's keys give it."""
    keys = settings.access.authentication.keys.get(principal, ())
    return frozenset(role for key in keys for role in key.roles)


def present(explanation: Explanation, *, as_json: bool) -> None:
    """Prints the steps with their results, and the decision last; or all of it as JSON."""
    if as_json:
        print_json(msgspec.to_builtins(explanation))
        return
    for step in explanation.steps:
        print_out(f"{'yes' if step.passes else 'NO ':<4} {step.what:<9} {step.why}")
    print_out("allowed" if explanation.allowed else "denied, as if it did not exist")
