"""The verbs of a `ClientSession`, which both generations of the Python SDK spell the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any, TypeVar

import anyio

from tests.fakes.clients.script import Json, OnProgress, Verb, dumped

CANCEL_REASON = "the script says so"

Streams = TypeVar("Streams")


@asynccontextmanager
async def leavable(transport: AbstractAsyncContextManager[Streams]) -> AsyncIterator[Streams]:
    """The SDK's SSE client, for which a message is an error that comes while its own session is closing."""
    try:
        async with transport as streams:
            yield streams
    except* anyio.BrokenResourceError:
        pass  # raised to the reader of a connection alone, once the session has let go of its other end


def verbs(
    session: Any, call: Callable[..., Any], types: ModuleType, as_uri: Callable[[str], Any], cancel: Verb
) -> dict[str, Verb]:
    """Every step's method as a coroutine function. `types` is the SDK's module of message types."""

    async def call_tool(params: Json, on_progress: OnProgress | None) -> Json:
        return dumped(await call(params["name"], params.get("arguments"), progress_callback=on_progress))

    async def read(params: Json, _: OnProgress | None) -> Json:
        return dumped(await session.read_resource(as_uri(params["uri"])))

    async def get_prompt(params: Json, _: OnProgress | None) -> Json:
        return dumped(await session.get_prompt(params["name"], params.get("arguments")))

    async def complete(params: Json, _: OnProgress | None) -> Json:
        kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
        ref = kinds[params["ref"]["type"]].model_validate(params["ref"])
        known = params.get("context", {}).get("arguments")
        return dumped(await session.complete(ref, params["argument"], context_arguments=known))

    async def set_level(params: Json, _: OnProgress | None) -> Json:
        return dumped(await session.set_logging_level(params["level"]))

    async def subscribe(params: Json, _: OnProgress | None) -> Json:
        return dumped(await session.subscribe_resource(as_uri(params["uri"])))

    async def unsubscribe(params: Json, _: OnProgress | None) -> Json:
        return dumped(await session.unsubscribe_resource(as_uri(params["uri"])))

    async def listen(params: Json, _: OnProgress | None) -> Json:
        for uri in params["uris"]:
            await session.subscribe_resource(as_uri(uri))
        return {}

    async def ping(_: Json, __: OnProgress | None) -> Json:
        return dumped(await session.send_ping())

    return {
        "tools/call": call_tool,
        "resources/read": read,
        "prompts/get": get_prompt,
        "completion/complete": complete,
        "logging/setLevel": set_level,
        "resources/subscribe": subscribe,
        "resources/unsubscribe": unsubscribe,
        "listen": listen,
        "ping": ping,
        "cancel": cancel,
        "tools/list": _draining(session.list_tools, "tools", types),
        "resources/list": _draining(session.list_resources, "resources", types),
        "resources/templates/list": _draining(session.list_resource_templates, "resourceTemplates", types),
        "prompts/list": _draining(session.list_prompts, "prompts", types),
    }


def _draining(list_page: Callable[..., Any], member: str, types: ModuleType) -> Verb:
    async def drain(_: Json, __: OnProgress | None) -> Json:
        entries: list[Json] = []
        cursor = None
        while True:
            params = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
            page = dumped(await list_page(params=params))
            entries += page[member]
            cursor = page.get("nextCursor")
            if cursor is None:
                return {member: entries}

    return drain


async def given_up(call: Callable[[OnProgress], Any], *, leave: Callable[[], Any]) -> Json:
    """Starts a call, and gives it up at its first report of progress; `leave` says so to the server."""
    started = anyio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        started.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, on_progress)
        await started.wait()
        await leave()
        tasks.cancel_scope.cancel()
    return {"cancelled": True}
