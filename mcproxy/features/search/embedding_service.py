"""Requests vectors of texts from a service (`POST /v1/embeddings`, as in OpenAI's API), and checks its answers.

Follows no redirect, reads no more bytes than a valid answer may have, and accepts only one vector of finite numbers for
each text, all of one length. Keeps no text and no vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from mcproxy.egress.client import NotAnswered, OutgoingClient
from mcproxy.protocol.json.bounds import check_values
from mcproxy.settings.embeddings import EmbeddingSettings

if TYPE_CHECKING:
    from mcproxy.features.search.vectors import Matrix

_BYTES_OF_NUMBER: Final = 32
"""The most bytes of one number in an answer, with the punctuation around it."""
_BYTES_BESIDE: Final = 64 * 1024
"""The most bytes of an answer apart from its numbers."""
_VALUES_OF_VECTOR: Final = 8
"""JSON values of a vector apart from its numbers."""
_VALUES_BESIDE: Final = 1000


class EmbeddingFailed(Exception):
    """The service could not be reached, or its answer is not valid. The text says why, for operators."""


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _EmbeddingList(msgspec.Struct):
    data: list[_Vector]


_answer = msgspec.json.Decoder(_EmbeddingList)


class EmbeddingService:
    """A client of the service in `proxy.embeddings`. Requires numpy, which validation of the settings has checked."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        self.settings: Final = settings
        self._http = OutgoingClient(settings.leaving, kept=settings.max_concurrent)
        self._fields = {"Accept": "application/json", "Content-Type": "application/json"}
        if settings.key is not None:
            self._fields["Authorization"] = f"Bearer {settings.key}"
        from mcproxy.features.search.vectors import unit_vectors

        self._unit_vectors = unit_vectors

    async def __call__(self, texts: Sequence[str], seconds: float) -> Matrix:
        """The vectors of the texts, one in each row, each of length 1. Raises EmbeddingFailed."""
        try:
            with anyio.fail_after(seconds):
                return self._read(await self._post(texts), len(texts))
        except TimeoutError as error:
            raise EmbeddingFailed(f"no answer in {seconds:g} s") from error
        except (NotAnswered, ValueError) as error:
            raise EmbeddingFailed(str(error)) from error

    async def retire(self) -> None:
        """Same as `aclose`: a running request fails, and its search uses words only."""
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections; a later request opens new ones."""
        await self._http.aclose()

    async def _post(self, texts: Sequence[str]) -> bytes:
        most = len(texts) * self.settings.max_dimensions * _BYTES_OF_NUMBER + _BYTES_BESIDE
        clean = [text.encode(errors="replace").decode() for text in texts]
        body = msgspec.json.encode({"model": self.settings.model, "input": clean, "encoding_format": "float"})
        async with self._http.request("POST", self.settings.url, self._fields, body) as response:
            if response.status != 200:
                raise EmbeddingFailed(f"it answered HTTP {response.status}")
            answer = await response.read(most)
        if answer is None:
            raise EmbeddingFailed(f"its answer has more than {most} bytes")
        return answer

    def _read(self, answer: bytes, texts: int) -> Matrix:
        try:
            check_values(answer, texts * (self.settings.max_dimensions + _VALUES_OF_VECTOR) + _VALUES_BESIDE)
            data = _answer.decode(answer).data
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EmbeddingFailed("its answer is no list of vectors") from error
        by_index = {vector.index: vector.embedding for vector in data}
        if len(data) != texts or by_index.keys() != set(range(texts)):
            raise EmbeddingFailed("its answer has not one vector for each text")
        lengths = {len(vector) for vector in by_index.values()}
        if len(lengths) != 1 or not 0 < max(lengths) <= self.settings.max_dimensions:
            raise EmbeddingFailed("its vectors are empty, too long (max_dimensions), or of different lengths")
        found = self._unit_vectors([by_index[index] for index in range(texts)])
        if found is None:
            raise EmbeddingFailed("its vectors have numbers that are not finite, or only zeros")
        return found
