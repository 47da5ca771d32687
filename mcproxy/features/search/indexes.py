"""The search index of each view, built on first use. Bounded by the number of tools; independent of callers.

An index counts only the words of one view's tools, so that tools which a caller may not use do not influence its
results (R38). The words of a tool are counted once for all views that show it alike.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final, NamedTuple

import anyio
from cachetools import LRUCache

from mcproxy.catalog.search.ranking import ToolIndex, ToolText, terms_of
from mcproxy.catalog.search.search_view import found_by_search
from mcproxy.catalog.search.signatures import summary
from mcproxy.catalog.views.view import Shown, View
from mcproxy.concurrency.turns import in_turns
from mcproxy.features.search.found_lines import FoundLines

MAX_TOOLS: Final = 20_000
"""The most tools in all kept indexes together; the least recently used index is dropped first."""
SLICE: Final = 25
"""Tools to index before other tasks get a turn: about two milliseconds."""


class SearchableView(NamedTuple):
    """The tools of a view that a search may find, and their index."""

    view: View
    tools: tuple[Shown, ...]
    words: ToolIndex
    lines: FoundLines


class _Making:
    """An index under construction, for the callers that wait for it."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.found: SearchableView | None = None
        """None until the index is built, and if building it was interrupted."""


class SearchIndexes:
    """The most recently used indexes of views, and those under construction."""

    def __init__(self, max_tools: int = MAX_TOOLS) -> None:
        self._kept: LRUCache[int, SearchableView] = LRUCache(max_tools, getsizeof=_size)
        """Indexes by the identity of their view, which each entry keeps alive."""
        self._terms: LRUCache[bytes, tuple[Counter[str], ...]] = LRUCache(max_tools)
        self._making: dict[int, _Making] = {}
        """Indexes under construction, by the identity of their view."""

    async def of(self, view: View) -> SearchableView:
        """Returns the index of a view; concurrent callers wait for the same one."""
        while (found := self._kept.get(id(view))) is None:
            making = self._making.get(id(view))
            if making is None:
                return await self._make(view)
            await making.ended.wait()
            # The index may be too large to be kept.
            if making.found is not None:
                return making.found
        return found

    async def _make(self, view: View) -> SearchableView:
        making = self._making[id(view)] = _Making()
        try:
            making.found = found = await self._made(view)
            if _size(found) <= self._kept.maxsize:
                self._kept[id(view)] = found
            return found
        finally:
            del self._making[id(view)]
            making.ended.set()

    async def _made(self, view: View) -> SearchableView:
        tools = found_by_search(view)
        terms = []
        for position, shown in enumerate(tools):
            if position % SLICE == 0:
                await anyio.lowlevel.checkpoint()
            terms.append(self._terms_of(shown))
        return SearchableView(view, tools, await in_turns(ToolIndex.in_steps(terms)), FoundLines(tools))

    def _terms_of(self, shown: Shown) -> tuple[Counter[str], ...]:
        names = f"{shown.upstream}\n{shown.own}\n".encode(errors="surrogatepass")
        digest = hashlib.blake2b(names + bytes(shown.entry), digest_size=16).digest()
        terms = self._terms.get(digest)
        if terms is None:
            terms = self._terms[digest] = terms_of(searched_text(shown))
        return terms


def searched_text(shown: Shown) -> ToolText:
    """A tool's words, as its callers see them."""
    tool = summary(shown.entry)
    about = [schema.get("description") for schema in tool.properties.values() if isinstance(schema, dict)]
    described = " ".join(text for text in about if isinstance(text, str))
    return ToolText(shown.own, tool.title, tool.description, " ".join(tool.properties), described, shown.upstream)


def _size(found: SearchableView) -> int:
    return max(1, len(found.tools))
