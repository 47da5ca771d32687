"""Hooks in front of a real service, for the official SDKs' clients of both generations and languages, in both eras.

Each tool has a hook of its own kind; the last word of a call's text says what the service does. What ran is in a file.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import pytest
from aiohttp import web

from tests.fakes.webhooks import SECRET, WebhookService, decides, webhook_service
from tests.system.running import PYTHON, Clients, Json, configuration, gateway, need_npm
from tests.system.scripts import call
from tests.system.test_large_results import PLAYERS
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ERAS: Final = ("legacy", "modern")
SLOW: Final = 0.3
"""Seconds that a hook waits for a service which never answers."""
MAX_BYTES: Final = 4096
HOOKS: Final[dict[str, Json]] = {
    "before": {"timeout": GUARD, "max_bytes": MAX_BYTES},
    "after": {"phase": "after", "timeout": GUARD},
    "closed": {"timeout": SLOW},
    "open": {"timeout": SLOW, "fail": "open"},
    "unsigned": {"timeout": GUARD, "secret": "not the secret of the service"},
    "audited": {"mode": "audit", "timeout": GUARD},
}
"""The hook of each tool."""
CALLS: Final = [
    *(("before", way) for way in ("allow", "deny", "change", "oversized", "nonsense")),
    *(("after", way) for way in ("allow", "deny", "change")),
    *(("closed", "slow"), ("open", "slow"), ("unsigned", "allow")),
    *(("audited", way) for way in ("allow", "deny", "change")),
    ("unhooked", "deny"),
]
NOT_CHECKED: Final = "a check that every such call needs could not be made; try again later"
DENIED: Final = "this call was denied by a check of the gateway: there is no ticket"


async def answer(told: Json) -> web.StreamResponse:
    text = told["arguments"]["text"]
    match text.split()[-1]:
        case "slow":
            await anyio.sleep_forever()
            raise AssertionError
        case "deny":
            return await decides("deny", reason="there is no ticket")
        case "change" if told["type"] == "after":
            return await decides("change", body={"result": {"content": [{"type": "text", "text": "hidden"}]}})
        case "change":
            return await decides("change", body={"arguments": {"text": f"{text}d"}})
        case "oversized":
            return await decides("allow", reason="x" * MAX_BYTES)
        case "nonsense":
            return web.Response(text="allow")
        case _:
            return await decides("allow")


@dataclass
class House:
    """A gateway with hooks, in front of one server of each era."""

    url: str
    service: WebhookService
    folder: Path

    def runs(self, text: str) -> int:
        """How often a tool ran for a text."""
        return (self.folder / "notes").read_text().splitlines().count(text)

    def told(self, text: str) -> list[Json]:
        """What the service was told of calls with a text."""
        return [told for told in self.service.told if told["arguments"]["text"] == text]

    async def verdicts(self, text: str) -> list[str] | None:
        """What hooks said of a call, as the audit has it: its records are written a moment after the answer."""
        with anyio.fail_after(GUARD):
            while (line := self._audited(text)) is None:  # noqa: ASYNC110  # it is another process that it waits for
                await anyio.sleep(0.02)
        found: list[str] | None = line.get("hooks")
        return found

    def _audited(self, text: str) -> Json | None:
        lines = map(json.loads, (self.folder / "audit.jsonl").read_text().splitlines())
        return next((line for line in lines if line.get("arguments", {}).get("text") == text), None)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def clients(anyio_backend: str) -> AsyncIterator[Clients]:
    made = Clients()
    yield made
    await made.aclose()


@pytest.fixture(scope="module")
async def house(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("hooks")
    arguments = ["-W", "ignore", "-m", "tests.fakes.servers.recorder", str(folder / "notes"), *HOOKS, "unhooked"]
    async with webhook_service(answer) as service:
        settings = configuration({era: {"command": PYTHON, "args": arguments, "era": era} for era in ERAS})
        hooks = [{"url": service.url, "secret": SECRET, "tools": [tool], **hook} for tool, hook in HOOKS.items()]
        audit = {"file": str(folder / "audit.jsonl"), "arguments": "redacted"}
        settings["access"] = {"hooks": hooks, "audit": audit}
        async with gateway(folder, settings) as running:
            yield House(f"{running.url}/mcp", service, folder)


@pytest.mark.parametrize(("sdk", "mode"), PLAYERS)
async def test_each_client_gets_what_the_service_says(house: House, clients: Clients, sdk: str, mode: str) -> None:
    need_npm()
    texts = {(era, *each): f"{sdk} {mode} {era} {' '.join(each)}" for era in ERAS for each in CALLS}
    script = {
        "transport": {"kind": "http", "url": house.url},
        "mode": mode,
        "answers": {},
        "steps": [call(f"{era}__{tool}", text=text) for (era, tool, _), text in texts.items()],
    }
    unsigned = house.service.unsigned
    steps = json.loads(await clients.play(sdk, script, within=GUARD))["steps"]
    for ((_, tool, way), text), step in zip(texts.items(), steps, strict=True):
        assert_as_said(house, tool, way, text, step, await house.verdicts(text))
    assert house.service.unsigned == unsigned + len(ERAS)


def assert_as_said(house: House, tool: str, way: str, text: str, step: Json, verdicts: list[str] | None) -> None:
    noted, refused = step.get("result", {}).get("content"), step.get("error", {}).get("message", "")
    as_it_is = [{"type": "text", "text": f"noted {text}"}]
    runs = house.runs(text)
    match tool, way:
        case ("before", "allow"):
            assert (noted, runs, verdicts) == (as_it_is, 1, ["before, enforce: allow"])
        case ("before", "deny"):
            assert (DENIED in refused, runs, verdicts) == (True, 0, ["before, enforce: deny: there is no ticket"])
        case ("before", "change"):
            assert (noted, runs) == ([{"type": "text", "text": f"noted {text}d"}], 0)
            assert (house.runs(f"{text}d"), verdicts) == (1, ["before, enforce: change"])
        case ("before" | "closed" | "unsigned", _):
            assert (NOT_CHECKED in refused, runs, verdicts) == (True, 0, ["before, enforce: failed"])
        case ("open", _):
            assert (noted, runs, verdicts) == (as_it_is, 1, ["before, enforce: failed"])
        case ("after", "allow"):
            assert (noted, runs, verdicts) == (as_it_is, 1, ["after, enforce: allow"])
            assert house.told(text)[0]["result"]["content"] == as_it_is
        case ("after", "deny"):
            assert (DENIED in refused, runs, verdicts) == (True, 1, ["after, enforce: deny: there is no ticket"])
        case ("after", "change"):
            assert (noted, runs) == ([{"type": "text", "text": "hidden"}], 1)
        case ("audited", _):
            reason = ": there is no ticket" if way == "deny" else ""
            assert (noted, runs, verdicts) == (as_it_is, 1, [f"before, audit: {way}{reason}"])
        case ("unhooked", _):
            assert (noted, runs, verdicts, house.told(text)) == (as_it_is, 1, None, [])
        case _:
            raise AssertionError(f"{tool} {way} is not said")
