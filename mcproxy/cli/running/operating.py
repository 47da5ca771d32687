"""`mcproxy status`, `restart`, `retry` and `logs`: ask or order a gateway that runs, and print what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from mcproxy.cli.output import print_err, print_json, print_out, print_table
from mcproxy.cli.running.client import NotRunning, RefusedByGateway, RunningGateway, server_path
from mcproxy.cli.runtime import ExitCode

COLUMNS: Final = ("upstream", "state", "since", "transport", "version", "reconnects")
WELL: Final = frozenset({"ready", "idle"})
DONE: Final = {
    "restart": "{0} is being restarted: `mcproxy status` shows it",
    "retry": "{0} is being tried: `mcproxy status` shows it",
}
"""What is said of an order that was taken."""
AUDIT_FAILING: Final = "the audit log cannot be written"
POLL: Final = 0.5
"""Seconds between two looks at a stderr that is followed."""


def status(configuration: Path, *, as_json: bool, now: Callable[[], float] = time.time) -> int:
    """Prints the state of the gateway and of each upstream, trouble first.

    FAILED where one is not well, a reload was refused, or the audit log cannot be written.
    """
    try:
        found = RunningGateway(configuration).get("/status")
    except NotRunning as error:
        print_err(str(error))
        return ExitCode.NOT_FOUND
    upstreams = found["upstreams"]
    if as_json:
        print_json(found)
    else:
        where = found["url"] or "stdio"
        print_err(f"mcproxy {found['version']}, process {found['pid']}, at {where}")
        if found["refused_reload"]:
            _print_refused(found["refused_reload"], now())
        if found["audit_failing"]:
            print_err(f"{AUDIT_FAILING}; its log says why")
        in_trouble = sorted(upstreams, key=is_well)
        print_table(COLUMNS, [_row(upstream, now()) for upstream in in_trouble])
        for upstream in in_trouble:
            if upstream["error"]:
                print_err(f"{upstream['name']}: {upstream['error']}{_next_attempt(upstream, now())}")
            for oddity in upstream["oddities"]:
                print_err(f"{upstream['name']}: the server {oddity}")
    in_order = found["refused_reload"] is None and not found["audit_failing"]
    return ExitCode.OK if in_order and all(map(is_well, upstreams)) else ExitCode.FAILED


def _next_attempt(upstream: Mapping[str, Any], now: float) -> str:
    """When the next attempt to connect is due, as the end of a sentence."""
    due = upstream["next_attempt"]
    return "" if due is None else f"; the next attempt is due in {_ago(max(0.0, due - now))}"


def is_well(upstream: Mapping[str, Any]) -> bool:
    """Whether an upstream of `/status` serves those who may use it.

    Where callers bring their own credentials or logins, the connection without any may be refused.
    """
    match upstream["failure"]:
        case "login":
            return bool(upstream["login"]["is_per_principal"])
        case "rejected":
            return bool(upstream["takes_credentials"])
        case _:
            return upstream["state"] in WELL


def _print_refused(reload: Mapping[str, Any], now: float) -> None:
    """Says that the file is not what the gateway runs with, and why."""
    print_err(f"a reload was refused {_ago(now - reload['since'])} ago; the configuration before it is in force:")
    for problem in reload["problems"]:
        place = f":{problem['line']}:{problem['column']}" if "line" in problem else ""
        print_err("  " + ": ".join(filter(None, (problem["file"] + place, problem["key"], problem["sentence"]))))


def order(configuration: Path, names: Sequence[str], what: str) -> int:
    """Has the gateway `restart` or `retry` upstreams; one that there is not keeps none of the others from it."""
    codes = [_told(configuration, partial(_order_one, name, what)) for name in names]
    return max(codes, default=ExitCode.OK)


def _order_one(name: str, what: str, gateway: RunningGateway) -> None:
    gateway.post(server_path(name, what))
    print_err(DONE[what].format(name))


def log_level(configuration: Path, level: str) -> int:
    """Changes the level of the gateway's own log until it is restarted."""

    def change(gateway: RunningGateway) -> None:
        gateway.post("/log-level", level)
        print_err(f"the log is at {level} until the gateway is restarted")

    return _told(configuration, change)


def logs(configuration: Path, name: str, *, follow: bool, sleep: Callable[[float], None] = time.sleep) -> int:
    """Prints the last lines of a child's stderr; with `follow`, those to come too, until interrupted."""

    def read(gateway: RunningGateway) -> None:
        seen = 0
        while True:
            found = gateway.get(f"{server_path(name, 'stderr')}?after={seen}")
            for line in found["lines"]:
                print_out(line)
            seen = found["next"]
            if not follow:
                return
            sleep(POLL)

    return _told(configuration, read)


def _told(configuration: Path, tell: Callable[[RunningGateway], object]) -> int:
    try:
        tell(RunningGateway(configuration))
    except NotRunning as error:
        print_err(str(error))
        return ExitCode.NOT_FOUND
    except RefusedByGateway as refused:
        print_err(str(refused))
        return ExitCode.NOT_FOUND if refused.is_missing else ExitCode.INPUT
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _row(upstream: Mapping[str, Any], now: float) -> tuple[str, ...]:
    return (
        upstream["name"],
        upstream["state"],
        _ago(now - upstream["since"]),
        upstream["transport"],
        upstream["version"] or "",
        str(upstream["reconnects"]),
    )


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
