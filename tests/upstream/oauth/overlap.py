"""Ten calls of 0.3 s at once, with an OAuth token and with a static header: `python -m tests.upstream.oauth.overlap`.

A client that holds its lock across requests takes three seconds for the first. Figures for people: the tests assert
that calls overlap, and nothing by the clock.
"""

from __future__ import annotations

import time

import anyio

from mcproxy.settings import Proxy, UpstreamSettings
from mcproxy.settings.upstreams.oauth import OAuthClient, OAuthSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.supervisor import Supervisor
from tests.fakes.authorization import authorization
from tests.upstream.support import QUICK, tool, value

CALLS = 10
SECONDS = 0.3
ITSELF = OAuthSettings(grant="client_credentials", client=OAuthClient(id="me", secret="s"))


async def taken(oauth: OAuthSettings | None) -> float:
    """Seconds for all calls, once the link is up."""
    async with authorization(delay=SECONDS) as server:
        server.valid.add("static")
        headers = {} if oauth is not None else {"Authorization": "Bearer static"}
        spec = UpstreamSettings(
            name="web", prefix="web", type="http", url=server.url, oauth=oauth, headers=headers, timeouts=QUICK
        )
        upstream = Supervisor(spec, Proxy(), lambda event: None, Metrics())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(upstream.run)
            assert value(await upstream(tool("any"))) == "done"
            server.valid &= {"static"}  # each of the calls finds the token refused
            began = time.perf_counter()
            async with anyio.create_task_group() as calls:
                for _ in range(CALLS):
                    calls.start_soon(upstream, tool("any"))
            seconds = time.perf_counter() - began
            tasks.cancel_scope.cancel()
    return seconds


async def main() -> None:
    static, oauth = await taken(None), await taken(ITSELF)
    print(f"{CALLS} calls of {SECONDS} s at once: {static:.3f} s with a static header, {oauth:.3f} s with OAuth,")
    print(f"whose token was just refused: {oauth / static:.2f} times as long")


if __name__ == "__main__":
    anyio.run(main)
