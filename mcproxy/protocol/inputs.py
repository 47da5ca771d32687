"""Input requests (sampling, elicitation, roots): the client capability that each needs, and whether an answer is valid.

Asks no client itself. The methods themselves are the keys of `methods.INPUT_CAPABILITIES`; another may be of an
extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from mcproxy.protocol.capabilities import is_of_extension, unknown_extensions
from mcproxy.protocol.json.bounds import Bounded
from mcproxy.protocol.jsonrpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    InvalidMessage,
    Params,
    nonnull,
    object_or_empty,
    parse_object,
    parse_text,
)
from mcproxy.protocol.methods import INPUT_CAPABILITIES
from mcproxy.protocol.tasks import EXTENSIONS

INPUT_REQUESTS: Final = "inputRequests"
INPUT_RESPONSES: Final = "inputResponses"
REQUEST_STATE: Final = "requestState"
"""The members by which input is asked for and given (2026-07-28, mrtr)."""

Capabilities = Mapping[str, Mapping[str, Mapping[str, object]]]
"""A ClientCapabilities object: features by capability."""

UNANSWERED: Final[Mapping[str, Raw]] = {"elicitation/create": Raw(b'{"action":"cancel"}')}
"""The result that means "no answer", for the requests that have one."""


class _Elicited(msgspec.Struct):
    """ElicitResult."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Raw] | None = None


class _Sampled(msgspec.Struct):
    """CreateMessageResult."""

    role: Literal["user", "assistant"]
    content: Raw
    model: str


class _Roots(msgspec.Struct):
    """ListRootsResult."""

    roots: list[dict[str, Raw]]


_answers: Final[Mapping[str, Bounded[Any]]] = {
    "elicitation/create": Bounded(_Elicited),
    "sampling/createMessage": Bounded(_Sampled),
    "roots/list": Bounded(_Roots),
}


def missing_capabilities(declared: Params, method: str, params: Params) -> Capabilities:
    """What a client that `declared` its capabilities lacks to answer an input request; empty where it lacks nothing.

    For a method that MCP does not have, it must declare an extension that the gateway does not know.
    """
    if method not in INPUT_CAPABILITIES:
        return {} if is_of_extension(method) and unknown_extensions(declared) else {EXTENSIONS: {}}
    capability = INPUT_CAPABILITIES[method]
    if capability not in declared:
        return {capability: {feature: {} for feature in _features(capability, params) if feature != _IMPLIED}}
    # Some clients write null for a feature that they leave out.
    features = nonnull(object_or_empty(declared[capability]))
    # elicitation, Capabilities: an empty object declares forms alone.
    missing = [f for f in _features(capability, params) if f not in features and (f != _IMPLIED or features)]
    return {capability: {feature: {} for feature in missing}} if missing else {}


def refusal_code(declared: Params, method: str) -> int:
    """The error code by which a client that `declared` its capabilities refuses a request that needs others.

    It has no such method (2025-11-25, roots, Error Handling), or not in this mode (elicitation, Error Handling).
    """
    return INVALID_PARAMS if INPUT_CAPABILITIES.get(method) in declared else METHOD_NOT_FOUND


def merged(one: Capabilities, other: Capabilities) -> Capabilities:
    """The union of two capabilities objects, feature by feature; `other` wins if both have a feature."""
    return {key: {**one.get(key, {}), **other.get(key, {})} for key in {**one, **other}}


def named(capabilities: Capabilities) -> str:
    """Capabilities as part of a sentence: `elicitation.url, roots`."""
    return ", ".join(
        f"{key}.{feature}" if feature else key
        for key, features in capabilities.items()
        for feature in features or ("",)
    )


def check_answer(method: str, answer: Raw) -> None:
    """Raises InvalidMessage if `answer` is no valid result of an input request of `method`."""
    parse_object(answer)
    if method not in _answers:
        return
    try:
        _answers[method].decode(answer)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidMessage(INVALID_PARAMS, f"no result of {method}: {error}") from error


_IMPLIED: Final = "form"


def _features(capability: str, params: Params) -> tuple[str, ...]:
    match capability:
        case "elicitation":
            return (parse_text(params.get("mode", b"")) or _IMPLIED,)
        case "sampling" if "tools" in params or "toolChoice" in params:
            return ("tools",)
        case _:
            return ()
