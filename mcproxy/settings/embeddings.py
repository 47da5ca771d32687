"""Settings of an embeddings service, for searches by meaning (`proxy.embeddings`)."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from mcproxy.settings.egress import Leaving
from mcproxy.settings.loopback import SafeUrl
from mcproxy.settings.section import Bytes, Positive, Seconds, Whole
from mcproxy.settings.tracing import is_installed


class EmbeddingSettings(Leaving):
    """A service by which `find_tools` also searches by meaning; needs `pip install mcproxy[embeddings]`."""

    url: SafeUrl
    """URL to post texts to, such as https://models.example/v1/embeddings: https, or http on loopback."""
    model: Annotated[str, Field(min_length=1)]
    """The model for the service to use."""
    key: Annotated[str, Field(min_length=1)] | None = None
    """Sent as a bearer token."""
    timeout: Seconds = 0.3
    """Time for the vector of a query; after it, the search goes by words alone."""
    batch_timeout: Seconds = 30
    """Time for the vectors of a batch of tools."""
    max_batch: Annotated[Whole, Field(gt=0, le=256)] = 32
    """Tools whose texts are posted at once."""
    max_dimensions: Annotated[Whole, Field(gt=0, le=16384)] = 4096
    """Numbers of a vector; a longer one counts as failed."""
    max_bytes: Bytes = 64 * 1024 * 1024
    """Bytes of the vectors of tools that are kept, four for each number; the least recently used go first."""
    max_concurrent: Positive = 16
    """Queries that are posted at once; further searches go by words alone."""

    @model_validator(mode="after")
    def _can_be_had(self) -> Self:
        if not is_installed("numpy"):
            raise ValueError("needs numpy: pip install 'mcproxy[embeddings]'")
        return self
