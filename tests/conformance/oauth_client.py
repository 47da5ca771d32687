"""The client of the conformance suite's `auth/*` scenarios: the gateway, logged in and made to use the suite's server.

`python -m tests.conformance.oauth_client URL` is run by the suite, which judges what its servers are asked. An HTTP
client plays the person who opens the link and follows its redirect.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError

from mcproxy.cli.access import grants
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import load_configuration
from tests.conformance.client import calls_of
from tests.fakes.browser import Browser, browser
from tests.system.running import configuration, serving, write

Json = dict[str, Any]

ERA = "MCPROXY_CLIENT_ERA"
"""The variable that says how our client speaks: `legacy`, or `auto` for the newest that the gateway speaks."""
THROUGH = "MCPROXY_LOGIN_THROUGH"
"""The variable that says how the person logs in: by the `command`, or on the `page` whose link the client shows."""
LOGINS = 3
"""How often somebody would log in for one thing."""
LOOKS = 40
"""How often the list is looked at after a login, each half a second: a server may go on refusing."""
NOTICED = 10.0
"""Seconds after a login in which the gateway's own tool for it is gone, unless the server goes on refusing."""
KNOWN = 60.0
"""Seconds in which the gateway knows the suite's server after a login; in some scenarios it goes on refusing."""
LIST_WAIT = 3.0
"""Seconds that a list waits for a server: one that refuses for good is looked at again and again."""
LOGIN_TOOL = "login"
"""The gateway's own tool, at an upstream without a prefix."""
PUBLISHED = "https://conformance-test.local/client-metadata.json"
"""Where the suite takes the client's metadata document to be."""


def oauth_of(context: Json, folder: Path) -> Json:
    """The configuration that an operator would write with what the suite gave."""
    client: Json = {"metadata_url": PUBLISHED}
    if "client_id" in context:
        client = {"id": context["client_id"]}
    if "client_secret" in context:
        client["secret"] = context["client_secret"]
    if "private_key_pem" in context:
        client |= {"key": context["private_key_pem"], "algorithm": context.get("signing_algorithm")}
    match context.get("name", ""):
        case name if "client-credentials" in name:
            return {"grant": "client_credentials", "client": client}
        case name if "wif" in name:
            token = folder / "assertion"
            token.write_text(context["valid_jwt"])
            return {"grant": "workload", "workload": {"token_file": str(token)}, "client": client}
        case name if "enterprise" in name:
            token = folder / "identity"
            token.write_text(context["idp_id_token"])
            provider = {"issuer": context["idp_issuer"], "client": {"id": context["idp_client_id"]}}
            return {"grant": "enterprise", "enterprise": {**provider, "id_token_file": str(token)}, "client": client}
        case _:
            return {"client": client}


def open_url(url: str) -> None:
    with urllib.request.urlopen(url, timeout=60) as response:
        response.read()


class Person:
    """Logs in where the gateway asks for it."""

    def __init__(self, config: Path) -> None:
        self._settings = load_configuration(config).settings
        self._left = LOGINS

    async def login(self, *scopes: str) -> bool:
        self._left -= 1
        if self._left < 0:
            return False
        code = await grants.login(self._settings, "suite", scopes=scopes, open_url=open_url)
        return code is ExitCode.OK


async def use(client: Client, person: Person, context: Json) -> None:
    """Calls every tool; logs in again where a call says that it needs it."""
    tools = await listed(client)
    if not tools and await person.login():
        for _ in range(LOOKS):
            if tools:
                break
            await anyio.sleep(0.5)
            tools = await listed(client)
    for call in calls_of(tools, context):
        while (scopes := await refused(client, call)) is not None:
            if not await person.login(*scopes):
                return
            await anyio.sleep(1.1)  # the gateway looks at what was stored once a second


async def listed(client: Client) -> list[types.Tool]:
    """The server's own tools, without the gateway's for a login."""
    return [tool for tool in (await client.list_tools()).tools if tool.name != LOGIN_TOOL]


async def refused(client: Client, call: Json) -> list[str] | None:
    """The further scopes of the login that a call wants; None where it wants none."""
    try:
        result = await client.call_tool(call["name"], call["arguments"])
    except MCPError as error:
        said = str(error)
    else:
        texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
        said = " ".join(texts) if result.is_error else ""
    if said:
        print("refused:", said, file=sys.stderr)
    if "wants you to log in" not in said and "mcproxy login" not in said:
        return None
    wanted = re.search(r"further scopes for this: (.*?)(?:\. Open this link|: run |\.?$)", said)
    return [] if wanted is None else wanted[1].split()


class Visitor:
    """A person who opens each link that the client is asked to open, and logs in there."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._left = LOGINS
        self.logged_in = False
        """Whether the last link that was opened ended in a login."""

    async def __call__(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        self._left -= 1
        self.logged_in = False
        if self._left < 0:
            return types.ElicitResult(action="decline")
        page = await self._browser.open(params.url)
        if page.status == 200:
            page = await self._browser.consent(page)
        print("the login ended at:", page.title, file=sys.stderr)
        self.logged_in = page.status == 200
        return types.ElicitResult(action="accept" if self.logged_in else "cancel")


async def use_by_page(url: str, context: Json) -> None:
    """Calls every tool; a login is made where the client is asked for one."""
    async with AsyncExitStack() as stack:
        visitor = Visitor(await stack.enter_async_context(browser()))
        client = await stack.enter_async_context(Client(url, mode=os.environ[ERA], elicitation_callback=visitor))
        tools = (await client.list_tools()).tools
        for _ in range(LOGINS):
            if all(tool.name != LOGIN_TOOL for tool in tools):
                break
            with suppress(MCPError):
                await client.call_tool(LOGIN_TOOL, {})
            with anyio.move_on_after(NOTICED):
                while visitor.logged_in and any(tool.name == LOGIN_TOOL for tool in tools):
                    await anyio.sleep(0.1)
                    tools = (await client.list_tools()).tools
        for call in calls_of([tool for tool in tools if tool.name != LOGIN_TOOL], context):
            with suppress(MCPError):
                await client.call_tool(call["name"], call["arguments"])


async def main(url: str) -> None:
    context: Json = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    context.setdefault("name", os.environ.get("MCP_CONFORMANCE_SCENARIO", ""))
    with TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")  # as the gateway has it
        upstream = {"url": url, "prefix": "", "oauth": oauth_of(context, folder)}
        settings = configuration({"suite": upstream}, list_wait=LIST_WAIT)
        config = folder / "login.json"
        config.write_text(json.dumps(settings))
        if os.environ.get(THROUGH) == "page":
            async with serving(folder, write(folder, settings)) as running:
                await use_by_page(f"{running.url}/mcp", context)
            return
        person = Person(config)
        if not await person.login():
            return
        async with serving(folder, write(folder, settings)) as running:
            with anyio.fail_after(KNOWN):
                await running.knows("suite")
            async with Client(f"{running.url}/mcp", mode=os.environ[ERA]) as client:
                await use(client, person, context)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
