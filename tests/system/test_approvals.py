"""Every official SDK as a client is asked to approve a call: its tool runs once where it does, and else not at all."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.system.running import PYTHON, Clients, Json, configuration, gateway, need_npm
from tests.system.scripts import call
from tests.system.test_large_results import PLAYERS
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ANSWERS: dict[str, Json] = {
    "yes": {"action": "accept", "content": {"approve": True}},
    "no": {"action": "decline"},
}


@pytest.mark.parametrize(("sdk", "mode"), PLAYERS)
async def test_each_client_is_asked_by_a_form_and_its_answer_counts(tmp_path: Path, sdk: str, mode: str) -> None:
    need_npm()
    notes = tmp_path / "notes"
    server = {"command": PYTHON, "args": ["-W", "ignore", "-m", "tests.fakes.servers.recorder", str(notes)]}
    servers = {era: {**server, "era": era} for era in ("legacy", "modern")}
    rules = [{"tools": ["note"], "approve": "caller"}, {}]
    settings = {**configuration(servers), "access": {"policy": {"roles": {"everyone": {"allow": rules}}}}}
    steps = [
        {**call(f"{era}__note", text=f"{era} {answer}"), "answers": {"elicitation/create": ANSWERS[answer]}}
        for era in servers
        for answer in ("yes", "no")
    ]
    async with gateway(tmp_path, settings) as running, aclosing(Clients()) as clients:
        transport = {"kind": "http", "url": f"{running.url}/mcp"}
        script = {"transport": transport, "mode": mode, "answers": {}, "steps": steps}
        transcript = json.loads(await clients.play(sdk, script, within=GUARD))
    assert [question["method"] for question in transcript["questions"]] == ["elicitation/create"] * 4
    assert all("Approve this call?" in question["params"]["message"] for question in transcript["questions"])
    said = [json.dumps(step) for step in transcript["steps"]]
    denials = ["this call was not approved: a person denied it" in step for step in said]
    assert denials == [False, True, False, True]
    assert ["noted legacy yes" in said[0], "noted modern yes" in said[2]] == [True, True]
    # The gateway has ended, and its servers with it: nothing runs any more.
    assert sorted(notes.read_text().splitlines()) == ["legacy yes", "modern yes"]
