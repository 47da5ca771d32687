"""Tests mirror the package: the twin of `mcproxy/gateway/routing.py` is `tests/gateway/test_routing.py`.

Each module has a twin, or is listed with the test that runs most of what it does.

Folders of tests that the package does not have hold tests of the whole: `system`, `conformance`, `attacks` and others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "mcproxy"

SCENARIOS: Final = {
    "admin/test_browser.py": "the status page in a real browser",
    "cluster/test_redis_away.py": "three gateways while Redis is away",
    "configuration/test_authentication.py": "one section of a configuration through all that reads it",
    "configuration/test_headers_command.py": "one key of a configuration, ours and a host's",
    "configuration/test_cluster.py": "one section of a configuration through all that reads it",
    "configuration/test_oauth.py": "one section of a configuration through all that reads it",
    "downstream/test_sdk.py": "the official SDK's clients, over each transport",
    "features/approvals/test_changed_calls.py": "calls that change while a person is asked, through all of the gateway",
    "features/approvals/test_secret_arguments.py": "what the settings add to a call, and who approves sees of it",
    "gateway/test_argument_overrides.py": "overridden arguments, through all of the gateway",
    "gateway/test_credentials.py": "callers with credentials of their own, through all of the gateway",
    "gateway/test_extensions.py": "extensions that nobody knows, through all of the gateway",
    "gateway/test_isolation.py": "two principals, through all of the gateway",
    "gateway/test_model.py": "the gateway against a model of it",
    "gateway/test_skills.py": "skills of several servers, through all of the gateway",
    "gateway/test_noninterference.py": "what is denied, through all of the gateway, against a model",
    "gateway/test_noninterference_of_settings.py": "the same where tools are overridden, approved, found by meaning",
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
    "test_state_machines.py": "every state machine of the package",
}
"""Tests without a twin, and of what they are."""

ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "access/outgoing/test_webhooks.py": ("settings/access/webhook",),
    "access/audit/test_audit_log.py": ("settings/access/audit",),
    "features/limits/test_limits.py": ("access/limit_rules", "settings/access/limits"),
    "admin/test_status_page.py": ("admin/listener", "admin/page_values", "admin/pages", "settings/admin"),
    "cli/access/test_policy_cases.py": ("cli/access/explain",),
    "cli/access/test_grants.py": ("service/state",),
    "cli/running/test_operating.py": ("cli/running/client", "cli/running/commands", "cli/running/diagnosing"),
    "cli/setup/test_adding.py": ("cli/setup/commands",),
    "cli/test_commands.py": ("__main__", "cli/checking", "cli/options", "rlimits"),
    "cli/test_serving.py": ("serving",),
    "cluster/test_replica.py": ("cluster/forwarding", "settings/cluster"),
    "configuration/test_authentication.py": ("settings/access/authentication",),
    "configuration/test_documents.py": (
        "configuration/documents/json_reader",
        "configuration/documents/parsing",
        "configuration/documents/toml_reader",
        "configuration/documents/tree",
        "configuration/documents/yaml_reader",
    ),
    "configuration/test_oauth.py": ("settings/upstreams/oauth",),
    "configuration/test_validation.py": (
        "configuration/consistency",
        "configuration/problems",
        "settings/proxy",
        "settings/root",
        "settings/upstreams/upstream",
    ),
    "downstream/handshake/test_session_store.py": ("downstream/handshake/session_ids",),
    "downstream/handshake/test_streamable_http.py": (
        "downstream/handshake/batches",
        "downstream/handshake/conversation",
        "downstream/io/context",
        "downstream/io/inbound",
        "downstream/io/responses",
        "protocol/eras",
    ),
    "downstream/stateless/test_streamable_http.py": (
        "concurrency/cancel_scope",
        "downstream/io/event_stream",
        "downstream/io/shutdown",
        "protocol/sse",
    ),
    "downstream/stateless/test_subscriptions.py": ("call/clients",),
    "features/approvals/test_approving.py": ("settings/access/approvals",),
    "gateway/cache/test_read_cache.py": ("gateway/cache/singleflight", "gateway/cache/store", "gateway/cache/watches"),
    "gateway/input/test_bridge.py": ("gateway/input/url_elicitation",),
    "gateway/input/test_logins.py": ("concurrency/clock",),
    "gateway/listings/test_fetcher.py": (
        "gateway/component",
        "gateway/listings/internal_calls",
        "gateway/listings/known_links",
        "gateway/listings/list_reports",
        "gateway/listings/state",
    ),
    "features/search/test_answers.py": ("features/search/answer_texts",),
    "features/search/test_embedding_service.py": ("settings/embeddings",),
    "gateway/subscriptions/test_resources.py": (
        "gateway/listings/keys",
        "gateway/subscriptions/updates",
        "gateway/subscriptions/watchers",
    ),
    "gateway/tasks/test_relay.py": (
        "gateway/resolving/task_ids",
        "gateway/tasks/lists",
        "gateway/tasks/registry",
        "gateway/tasks/states",
        "gateway/tasks/subscriptions",
        "protocol/tasks",
    ),
    "gateway/test_explaining.py": ("settings/access/policy", "settings/endpoints"),
    "features/hooks/test_hooks.py": ("settings/access/hooks",),
    "gateway/test_pinning.py": ("gateway/listings/vetted_lists", "features/pins/feature", "settings/access/pins"),
    "gateway/test_pipeline.py": ("call/calls", "call/errors", "call/identity"),
    "http/client/test_connection.py": ("http/client/response",),
    "http/server/test_connection.py": (
        "http/server/chunked",
        "http/server/messages",
        "http/server/owner",
        "http/server/reader",
        "http/server/server",
    ),
    "system/test_upstream_logins.py": ("login/pages", "login/routes"),
    "telemetry/test_tracing.py": ("settings/tracing", "telemetry/trace_context"),
    "upstream/child/test_process.py": ("upstream/child/reaper",),
    "upstream/handshake/test_conversation.py": ("upstream/handshake/server_requests",),
    "upstream/handshake/test_streamable_http.py": ("upstream/handshake/bodies",),
    "upstream/oauth/test_authorizer.py": ("concurrency/spawn",),
    "upstream/oauth/test_link.py": ("upstream/oauth/logins",),
    "upstream/stateless/test_conversation.py": (
        "upstream/context",
        "upstream/stateless/stdio",
        "upstream/stateless/streamable_http",
    ),
    "upstream/test_supervisor.py": ("call/upstreams", "upstream/link"),
}
"""Modules without a test of their own name, by the test that runs most of what they do."""


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


def untested(tests: Path = TESTS, package: Path = PACKAGE) -> set[str]:
    """The modules that have no test of their own name."""
    modules = (path.relative_to(package) for path in package.rglob("*.py") if path.stem != "__init__")
    return {
        path.with_suffix("").as_posix()
        for path in modules
        if not (tests / path).with_name(f"test_{path.name}").exists()
    }


def test_each_module_has_a_test_of_its_name_or_is_listed_with_the_one_that_tests_it() -> None:
    listed = [module for modules in ELSEWHERE.values() for module in modules]
    assert untested() == set(listed), "name its test for it, or say in ELSEWHERE which one tests it"
    assert len(listed) == len(set(listed))


def test_each_test_that_stands_for_others_is_there() -> None:
    assert [name for name in ELSEWHERE if not (TESTS / name).exists()] == []


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


def test_a_module_without_a_test_is_found(tmp_path: Path) -> None:
    tests, package = tmp_path / "tests", tmp_path / "package"
    for folder in (tests / "room", package / "room"):
        folder.mkdir(parents=True)
    for path in (package / "room/chair.py", package / "room/table.py", tests / "room/test_chair.py"):
        path.touch()
    assert untested(tests, package) == {"room/table"}
