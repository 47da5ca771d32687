"""A person with a browser at the login pages: cookies, forms and links, without scripts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser

import aiohttp
from yarl import URL


class _Forms(HTMLParser):
    """The fields of each form of a page, by their names; and its links by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[dict[str, str]] = []
        self.links: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        match tag:
            case "form":
                self.forms.append({})
            case "input" if self.forms:
                self.forms[-1][found["name"]] = found.get("value", "")
            case "a" if "id" in found:
                self.links[found["id"]] = found["href"]


@dataclass
class Page:
    url: str
    status: int
    text: str
    headers: dict[str, str]

    def form(self, step: str) -> dict[str, str]:
        """The fields of the form for that step."""
        return next(form for form in self._read.forms if form.get("step") == step)

    @property
    def onward(self) -> str:
        """The link by which one leaves for the authorization server."""
        return self._read.links["continue"]

    @property
    def title(self) -> str:
        return unescape(re.findall(r"<title>(.*?)</title>", self.text)[0])

    @property
    def _read(self) -> _Forms:
        forms = _Forms()
        forms.feed(self.text)
        return forms


class Browser:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def open(self, url: str, *, follow: bool = True) -> Page:
        async with self._http.get(URL(url, encoded=True), allow_redirects=follow) as response:
            return await _page(response)

    async def submit(self, page: Page, step: str, **fields: str) -> Page:
        """Sends the form of `page` for a step, with further fields."""
        return await self.post(page.url, {**page.form(step), **fields})

    async def post(self, url: str, form: dict[str, str], origin: str | None = None) -> Page:
        """Sends a form, as a browser does from a page of `origin`: the very site, where none is given."""
        headers = {"Origin": origin or str(URL(url).origin())}
        async with self._http.post(URL(url, encoded=True), data=form, headers=headers) as response:
            return await _page(response)

    async def consent(self, page: Page) -> Page:
        """Gives consent, and goes to the authorization server and back."""
        return await self.open((await self.submit(page, "consent")).onward)

    async def log_in(self, link: str) -> Page:
        """The whole login, where nobody has to say who they are; the last page."""
        return await self.consent(await self.open(link))

    def forget_cookies(self) -> None:
        self._http.cookie_jar.clear()


async def _page(response: aiohttp.ClientResponse) -> Page:
    return Page(str(response.url), response.status, await response.text(), dict(response.headers))


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        yield Browser(http)


def link_in(text: str) -> str:
    """The first link in what a client was told."""
    found = re.search(r"https?://[^\s\"\\]+", text)
    assert found is not None, text
    return found[0]
