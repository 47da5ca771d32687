"""The soak for seconds: principals with logins of their own, at a real authorization server with short tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.timeouts import GUARD
from tests.upstream.oauth.provider import need_provider, provider
from tests.upstream.oauth.soak import soak

pytestmark = pytest.mark.anyio

NAMES = ["ann", "bob", "cyd", "dan", "eve"]
REFRESHES = 2
"""Of each principal."""


def renewed(figures: dict[str, Any]) -> bool:
    return bool(figures["grants"].get("refresh_token", 0) >= REFRESHES * len(NAMES))


async def test_r65_principals_with_short_tokens_log_in_once_and_redeem_each_refresh_token_once(tmp_path: Path) -> None:
    need_provider()
    with anyio.fail_after(3 * GUARD):
        async with provider(seconds=4) as at:
            report = await soak(tmp_path, at, NAMES, renewed, pause=0.2)
    assert report.faults() == []
    assert report.figures["discovers"] == len(NAMES), "a new token opens no new link (R64)"
    assert report.calls > 0
