"""`mcproxy keys add`: generate an API key for a caller. Stores nothing: the configuration holds the key's hash."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TypeVar

import typer
import yaml
from pydantic import TypeAdapter, ValidationError

from mcproxy.access.keys import key_digest, make
from mcproxy.cli.output import print_json, print_out
from mcproxy.settings import Seconds
from mcproxy.settings.access.authentication import KeyName

T = TypeVar("T")


def add_key(name: str, roles: Sequence[str], expires_in: str | None, *, as_json: bool) -> None:
    """Prints a new key and the lines of a configuration that know it. Raises typer.BadParameter."""
    _check(TypeAdapter[str](KeyName), name, "NAME")
    key = make()
    entry: dict[str, object] = {"sha256": key_digest(key).hex()}
    if roles:
        entry["roles"] = list(roles)
    if expires_in is not None:
        entry["expires"] = _after(_check(TypeAdapter[float](Seconds), expires_in, "--expires-in"))
    snippet = {"access": {"authentication": {"keys": {name: [entry]}}}}
    if as_json:
        print_json({"key": key, **snippet})
        return
    print_out(key)
    print_out("")
    print_out("# The configuration knows it by this; a second one for the same caller goes below the first.")
    print_out(yaml.safe_dump(snippet, sort_keys=False, allow_unicode=True).rstrip(), lines=True)


def _check(kind: TypeAdapter[T], value: str, what: str) -> T:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        sentence = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(sentence, param_hint=what) from error


def _after(seconds: float) -> str:
    when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
