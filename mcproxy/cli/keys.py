"""`mcproxy keys`: makes keys for callers. Keeps none: what is printed is all there is, and the file holds its hash."""

from __future__ import annotations

import datetime
from typing import Annotated, TypeVar

import typer
import yaml
from pydantic import TypeAdapter, ValidationError

from mcproxy.access.keys import digest, make
from mcproxy.cli.presentation import show, show_json
from mcproxy.settings import Seconds
from mcproxy.settings.access.authentication import KeyName

T = TypeVar("T")

keys = typer.Typer(help="Make keys for callers.", no_args_is_help=True)


@keys.callback()
def root() -> None:
    """Make keys for callers."""


@keys.command()
def add(
    name: Annotated[str, typer.Argument(help="Who will use it: what policies and the audit log call the caller.")],
    role: Annotated[list[str] | None, typer.Option("--role", "-r", help="A role, as often as needed.")] = None,
    expires_in: Annotated[str | None, typer.Option("--expires-in", help="How long it is good, such as 90d.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a key, and show it this once, with what the configuration needs to know it by.

    A caller may have several: to change one, add another, have the caller use it, and take the first one out.
    """
    _check(TypeAdapter[str](KeyName), name, "NAME")
    key = make()
    entry: dict[str, object] = {"sha256": digest(key).hex()}
    if role:
        entry["roles"] = role
    if expires_in is not None:
        entry["expires"] = _after(_check(TypeAdapter[float](Seconds), expires_in, "--expires-in"))
    snippet = {"access": {"authentication": {"keys": {name: [entry]}}}}
    if as_json:
        show_json({"key": key, **snippet})
        return
    show(key)
    show("\n# The configuration knows it by this; a second one for the same caller goes below the first.")
    show(yaml.safe_dump(snippet, sort_keys=False, allow_unicode=True).rstrip())


def _check(kind: TypeAdapter[T], value: str, what: str) -> T:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        sentence = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(sentence, param_hint=what) from error


def _after(seconds: float) -> str:
    when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
