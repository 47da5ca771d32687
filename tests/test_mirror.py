"""Tests mirror the package: the twin of `mcproxy/gateway/routing.py` is `tests/gateway/test_routing.py`.

Folders of tests that the package does not have hold tests of the whole: `system`, `conformance`, `attacks` and others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "mcproxy"

SCENARIOS: Final = {
    "admin/test_browser.py": "the status page in a real browser",
    "cluster/test_redis_away.py": "three gateways while Redis is away",
    "configuration/test_authentication.py": "one section of a configuration through all that reads it",
    "configuration/test_headers_command.py": "one key of a configuration, ours and a host's",
    "configuration/test_cluster.py": "one section of a configuration through all that reads it",
    "configuration/test_oauth.py": "one section of a configuration through all that reads it",
    "downstream/test_sdk.py": "the official SDK's clients, over each transport",
    "gateway/approval/test_changed_calls.py": "calls that change while a person is asked, through all of the gateway",
    "gateway/approval/test_secret_arguments.py": "what the settings add to a call, and who approves sees of it",
    "gateway/test_argument_overrides.py": "overridden arguments, through all of the gateway",
    "gateway/test_credentials.py": "callers with credentials of their own, through all of the gateway",
    "gateway/test_extensions.py": "extensions that nobody knows, through all of the gateway",
    "gateway/test_isolation.py": "two principals, through all of the gateway",
    "gateway/test_model.py": "the gateway against a model of it",
    "gateway/test_skills.py": "skills of several servers, through all of the gateway",
    "gateway/test_noninterference.py": "what is denied, through all of the gateway, against a model",
    "gateway/test_pinning.py": "pins, through all of the gateway",
    "gateway/test_policy.py": "the policy, through all of the gateway",
    "gateway/test_reconfiguring.py": "a reload, through all of the gateway",
    "login/test_browser.py": "the login pages in a real browser",
    "upstream/test_eras.py": "how servers of one era or of both are reached",
    "upstream/test_sdk.py": "the official SDK's servers, over each transport",
    "http/client/test_oracle.py": "the HTTP client beside h11",
    "http/client/test_states.py": "every edge of the HTTP client's tables",
    "http/server/test_oracle.py": "the HTTP server beside h11",
    "upstream/oauth/test_link.py": "a link to a server that wants OAuth, through all of the folder",
    "test_duplicates.py": "the source of the whole package",
    "test_folders.py": "the source of the whole package",
    "test_mirror.py": "the tests themselves",
    "test_names.py": "the source of the whole package",
    "test_state_machines.py": "every state machine of the package",
}
"""Tests without a twin, and of what they are."""


def twinless(tests: Path = TESTS, package: Path = PACKAGE) -> set[str]:
    """The test modules in mirrored folders that are named for no module or folder, there or beside them."""
    return {
        str(path.relative_to(tests))
        for path in tests.rglob("test_*.py")
        if (mirrored := package / path.parent.relative_to(tests)).is_dir()
        and not any(
            (place / path.stem.removeprefix("test_")).with_suffix(suffix).exists()
            for place in (mirrored, path.parent)
            for suffix in ("", ".py")
        )
    }


def test_each_test_module_is_the_twin_of_one_in_the_package_or_a_scenario() -> None:
    assert twinless() - SCENARIOS.keys() == set(), "name it for its twin, or say in SCENARIOS what it is of"


def test_each_scenario_that_is_listed_is_there_and_has_no_twin() -> None:
    assert SCENARIOS.keys() - twinless() == set()


def test_a_test_module_without_a_twin_is_found(tmp_path: Path) -> None:
    tests, package = tmp_path / "tests", tmp_path / "package"
    for folder in (tests / "room", tests / "system", package / "room"):
        folder.mkdir(parents=True)
    (package / "room" / "chair.py").touch()
    for name in ("room/test_chair.py", "room/test_table.py", "system/test_house.py"):
        (tests / name).touch()
    assert twinless(tests, package) == {"room/test_table.py"}
