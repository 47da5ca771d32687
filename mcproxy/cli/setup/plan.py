"""What `mcproxy add` shows before it asks: what would run or be connected to, and which values it would get.

Decides and returns lines; runs, connects to and writes nothing. Shows no secret.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import typer

from mcproxy.cli.terminal import printable_line
from mcproxy.configuration.expansion import referred
from mcproxy.configuration.packages.offer import Input, Offer, Value, Values, Variable
from mcproxy.settings.secret_values import looks_secret

MAX_SHOWN: Final = 400
"""Characters of a publisher's description that are shown."""


class Given(msgspec.Struct, frozen=True):
    """Values that the user typed. Secret (R44)."""

    values: tuple[str, ...]


Answers = Mapping[str, Given | Variable]
"""What the user said about inputs, by their names."""


def answered(offer: Offer, values: Sequence[str], env_from: Sequence[str]) -> dict[str, Given | Variable]:
    """The answers of the command line, `NAME=value` and `NAME` or `NAME=VARIABLE`. Raises BadParameter."""
    inputs = {input.name: input for input in offer.inputs}
    answers: dict[str, Given | Variable] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter("should be NAME=VALUE", param_hint="--set")  # the text may be secret
        _check(inputs.get(name), name, inputs, "--set")
        check_choice(inputs[name], value)
        known = answers.get(name)
        answers[name] = Given((*known.values, value) if isinstance(known, Given) else (value,))
    for text in env_from:
        name, _, variable = text.partition("=")
        _check(inputs.get(name), name, inputs, "--env-from")
        answers[name] = Variable(variable or name)
    return answers


def check_choice(input: Input, value: str) -> None:
    """Raises BadParameter if the value is none of the input's choices."""
    if input.choices and value not in input.choices:
        sentence = f"{input.name} should be one of {', '.join(input.choices)}"
        raise typer.BadParameter(printable_line(sentence), param_hint="--set")


def _check(input: Input | None, name: str, inputs: Mapping[str, Input], option: str) -> None:
    if input is None:
        names = f"there are {', '.join(sorted(inputs))}" if inputs else "there are none"
        raise typer.BadParameter(printable_line(f"the server asks for no {name!r}: {names}"), param_hint=option)


def unanswered(offer: Offer, answers: Answers) -> list[Input]:
    """The inputs that need a value and have none."""
    return [input for input in offer.inputs if input.required and input.name not in answers]


def shown_values(offer: Offer, answers: Answers) -> Values:
    """The values to show: `<NAME>` for secrets and for those that are still asked for."""
    shown: dict[str, Sequence[Value]] = {}
    for input in offer.inputs:
        match answers.get(input.name):
            case Given(values):
                hidden = input.secret or any(looks_secret(input.name, value) for value in values)
                shown[input.name] = [f"<{input.name}>"] if hidden else values
            case Variable() as variable:
                shown[input.name] = [variable]
            case None if input.default is not None:
                shown[input.name] = input.default
            case None if input.required:
                shown[input.name] = [f"<{input.name}>"]
            case None:
                pass
    return shown


def plan(
    name: str, entry: Mapping[str, object], offer: Offer | None, answers: Answers, moved: Collection[str]
) -> Iterator[str]:
    """The lines that a person reads before anything runs.

    `entry` holds no secret; `moved` are the variables that stand for those that the user typed.
    """
    yield f"{name} would"
    if offer is not None and offer.bundle is not None:
        yield f"  be unpacked to  {offer.bundle.target}"
    if "url" in entry:
        yield f"  connect to      {entry['url']}"
    else:
        args = entry.get("args")
        words = [str(entry.get("command", "")), *(map(str, args) if isinstance(args, list) else ())]
        yield f"  run             {shlex.join(words)}"
    if "cwd" in entry:
        yield f"  in the folder   {entry['cwd']}"
    for key, verb in (("headers", "send the header"), ("env", "get")):
        mapping = entry.get(key)
        for field, value in mapping.items() if isinstance(mapping, dict) else ():
            yield f"  {verb:<15} {field}: {value}" if key == "headers" else f"  {verb:<15} {field}={value}"
    for what in dict.fromkeys(referred(dict(entry))):
        if what not in moved:
            place = "" if what.startswith("file:") else " from your environment"
            yield f"  take            {what}{place}"
    for input in offer.inputs if offer is not None else ():
        yield f"  {input.name}: {_source(input, answers)}{_description(input)}"


def _source(input: Input, answers: Answers) -> str:
    match answers.get(input.name):
        case Given():
            return "as you say"
        case Variable(variable):
            return f"your variable {variable}"
        case None if input.default is not None:
            return f"{', '.join(input.default)}, the publisher's default"
        case None if input.required:
            return "you are asked for it"
        case None:
            return "left out; --set gives it a value"


def _description(input: Input) -> str:
    return f"  ({input.description[:MAX_SHOWN]})" if input.description else ""
