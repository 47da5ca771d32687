"""Skills of real servers, loaded by a real client through one gateway: the official TypeScript SDK plays both.

Its client verifies what it loads: the digest and the size of each file against the entry, and the frontmatter of each
`SKILL.md`. Servers of both eras have a skill of the same name and URI.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.system.running import NODE, Gateway, Json, configuration, gateway, need_npm, run
from tests.timeouts import GUARD

ERAS: Final = ["legacy", "modern"]
REFUNDS: Final = "skill://acme/refunds"
FORM: Final = "# Form\n\nÜber alles: 50 €\n"


def manifest(era: str) -> str:
    return (
        f"---\nname: refunds\ndescription: Refund a customer of {era}\nlicense: MIT\n---\n\n# {era}\n\nSee the form.\n"
    )


def written(folder: Path, era: str) -> Path:
    skill = folder / era / "refunds"
    (skill / "forms").mkdir(parents=True)
    (skill / "SKILL.md").write_text(manifest(era))
    (skill / "forms" / "FORM.md").write_text(FORM)
    return folder / era


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def running(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    need_npm()
    folder = tmp_path_factory.mktemp("skills")
    servers: Json = {
        era: {"command": "node", "args": [str(NODE / "skills_server.mjs"), era, str(written(folder, era))]}
        for era in ERAS
    }
    async with gateway(folder, configuration(servers, list_wait=60)) as made:
        yield made


@pytest.fixture(scope="module", params=[("legacy", "legacy"), ("modern", "auto")], ids=ERAS)
async def loaded(anyio_backend: str, running: Gateway, request: pytest.FixtureRequest) -> Json:
    """What a client of one era loads of all servers."""
    _, mode = request.param
    found: Json = json.loads(
        await run(["node", str(NODE / "skills_client.mjs"), mode, f"{running.url}/mcp"], within=GUARD)
    )
    return found


def test_the_skills_of_both_servers_are_loaded_and_verified(loaded: Json) -> None:
    assert loaded["supported"]
    assert [each["listed"]["uri"] for each in loaded["loaded"]] == [f"{era}+{REFUNDS}/SKILL.md" for era in ERAS]
    for era, each in zip(ERAS, loaded["loaded"], strict=True):
        assert each["described"] == each["listed"]
        assert each["listed"]["frontmatter"]["description"] == f"Refund a customer of {era}"
        assert each["files"] == {
            f"{era}+{REFUNDS}/SKILL.md": {"text": manifest(era), "verified": True},
            f"{era}+{REFUNDS}/forms/FORM.md": {"text": FORM, "verified": True},
        }
        assert f"# {era}" in each["body"]


def test_directories_are_read_and_lead_to_the_same_files(loaded: Json) -> None:
    assert loaded["directoryRead"]
    assert loaded["directories"] == {
        f"{era}+{REFUNDS}": [
            {"uri": f"{era}+{REFUNDS}/SKILL.md", "mimeType": "text/markdown"},
            {"uri": f"{era}+{REFUNDS}/forms", "mimeType": "inode/directory"},
        ]
        for era in ERAS
    }


def test_a_skill_that_no_server_has_is_invalid(loaded: Json) -> None:
    assert loaded["missing"] == -32602
