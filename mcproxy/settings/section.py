"""The base class of all settings, and the types of durations, sizes, globs and prefixes."""

import re
from enum import Enum
from typing import Annotated, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.fields import FieldInfo

_UNITS: Final[dict[str, dict[str, float]]] = {
    "seconds": {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400},
    "bytes": {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9},
}


def parse_quantity(value: object, measure: Literal["seconds", "bytes"]) -> object:
    """`"5m"` as 300 seconds, `"16MiB"` as bytes; a number is returned unchanged. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    units = _UNITS[measure]
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value if isinstance(value, str) else "", re.ASCII)
    if match is None or (match[2] and match[2] not in units):
        example = '"30s" or "5m"' if measure == "seconds" else '"16MiB"'
        raise ValueError(f"should be a number of {measure}, or a text such as {example}; units: {', '.join(units)}")
    number = float(match[1]) * units.get(match[2], 1)
    return int(number) if number.is_integer() else number


def _no_truth_value(value: object) -> object:
    """The value, unless it is true or false, which pydantic takes for 1 and 0. Raises ValueError."""
    if value is True or value is False:
        raise ValueError("should be a number, not true or false (YAML reads yes, no, on and off as these)")
    return value


def worded(sentence: str) -> WrapValidator:
    """Says in plain words which texts a type takes, where pydantic would show a regular expression."""

    def check(value: object, validate: ValidatorFunctionWrapHandler) -> object:
        try:
            return validate(value)
        except ValidationError as error:
            if not isinstance(value, str):
                raise
            raise ValueError(sentence) from error

    return WrapValidator(check)


def _seconds(value: object) -> object:
    return parse_quantity(value, "seconds")


def _bytes(value: object) -> object:
    return parse_quantity(value, "bytes")


Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(gt=0),
    WithJsonSchema({"type": ["number", "string"], "exclusiveMinimum": 0, "examples": [30, "30s", "5m"]}),
]
SecondsOrNone = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(ge=0),
    WithJsonSchema({"type": ["number", "string"], "minimum": 0, "examples": [0, 30, "30s"]}),
]
Bytes = Annotated[
    int,
    BeforeValidator(_bytes),
    Field(gt=0),
    WithJsonSchema({"type": ["integer", "string"], "exclusiveMinimum": 0, "examples": [65536, "16MiB"]}),
]
Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Number = Annotated[float, BeforeValidator(_no_truth_value)]
Positive = Annotated[Whole, Field(gt=0)]
Glob = str
Prefix = Annotated[
    str,
    Field(pattern=r"^([a-z][a-z0-9-]*)?$", max_length=32),
    worded("should be lower-case letters, digits and -, a letter first, at most 32"),
]


class Reload(Enum):
    """What a reload does if a key differs; stands beside the key's type, as in `Annotated[bool, Reload.LINK]`.

    A key without one takes effect at once, but one of an upstream (`RECONNECT`).
    """

    LINK = "link"
    """Of an upstream: its link adopts the value, and nothing else depends on it."""
    CACHE = "cache"
    """Of an upstream: its link adopts the value; what is cached of it is dropped."""
    VIEW = "view"
    """Of an upstream: its link adopts the value; callers' views of it are made anew."""
    RECONNECT = "reconnect"
    """Of an upstream: its link is made anew."""
    RESTART = "restart"
    """The old value stays in force until the process restarts."""

    @classmethod
    def of(cls, field: FieldInfo, default: "Reload") -> "Reload":
        """The class of a field; `default` if it states none."""
        return next((found for found in field.metadata if isinstance(found, cls)), default)


class InvalidKey(ValueError):
    """Raised by a section's validator: what is wrong, and the path of the key below the section."""

    def __init__(self, sentence: str, *path: str | int) -> None:
        super().__init__(sentence)
        self.path = path


class Section(BaseModel):
    """Immutable; an unknown key is an error; the text below each key describes it in the JSON Schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)
