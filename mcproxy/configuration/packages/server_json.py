"""An entry of the MCP Registry (`server.json`) as an offer, which pins its package's version.

The first remote or package that can be run here is taken. Fetches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mcproxy.configuration.packages.offer import Input, Offer, Slot, Text, Words, slots
from mcproxy.configuration.problems import ConfigurationError, Problem

JsonObject = Mapping[str, Any]

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][\w-]*)\}")
_REMOTES: Final = {"streamable-http": "http", "sse": "sse"}


def offer_of(document: object, file: str) -> Offer:
    """Raises ConfigurationError where nothing in it can be run here."""
    if isinstance(document, Mapping):
        for remote in _objects(document.get("remotes")):
            if remote.get("type") in _REMOTES and isinstance(remote.get("url"), str):
                return _remote(remote)
        for package in _objects(document.get("packages")):
            start = _STARTS.get(str(package.get("registryType")))
            stdio = isinstance(package.get("transport"), Mapping) and package["transport"].get("type") == "stdio"
            if start is not None and stdio and isinstance(package.get("identifier"), str):
                if package["identifier"].startswith("-"):
                    sentence = f"names a package that would be an option: {package['identifier']!r}"
                    raise ConfigurationError([Problem(file, sentence)])
                return _package(package, start)
    if isinstance(document, Mapping) and not {"remotes", "packages"} & document.keys():
        sentence = "is no server.json of the registry, with `packages` or `remotes`; `import` reads hosts' files"
        raise ConfigurationError([Problem(file, sentence)])
    kinds = ", ".join(_STARTS)
    sentence = f"names no server that can be run here: a remote over HTTP, or a package over stdio of {kinds}"
    raise ConfigurationError([Problem(file, sentence)])


@dataclass(slots=True)
class _Inputs:
    """Collects the inputs of an entry while its texts are read."""

    found: dict[str, Input] = field(default_factory=dict)

    def value(self, described: JsonObject, name: str) -> Text:
        """A fixed value with its variables, or the place of a value."""
        if "value" in described:
            variables = described.get("variables")
            return self.text(str(described["value"]), variables if isinstance(variables, Mapping) else {})
        return self._slot(name, described, required=described.get("isRequired") is True)

    def text(self, text: str, variables: JsonObject) -> Text:
        """A text with placeholders such as `{tenant}`, which `variables` describes."""
        parts: list[str | Slot] = []
        end = 0
        for match in _PLACEHOLDER.finditer(text):
            described = variables.get(match[1])
            parts.append(text[end : match.start()])
            parts += self._slot(match[1], described if isinstance(described, Mapping) else {}, required=True)
            end = match.end()
        return (*(part for part in (*parts, text[end:]) if part != ""),) or ("",)

    def _slot(self, name: str, described: JsonObject, *, required: bool) -> Text:
        secret = described.get("isSecret") is True
        default = (str(described["default"]),) if "default" in described and not secret else None
        choices = described.get("choices")
        self.found[name] = Input(
            name,
            str(described.get("description", "")),
            secret,
            required and default is None,
            default,
            tuple(map(str, choices)) if isinstance(choices, list) else (),
        )
        return (Slot(name),)


def _remote(remote: JsonObject) -> Offer:
    inputs = _Inputs()
    variables = remote.get("variables")
    url = inputs.text(remote["url"], variables if isinstance(variables, Mapping) else {})
    headers = {name: inputs.value(header, name) for name, header in _named(remote.get("headers"))}
    return Offer(tuple(inputs.found.values()), url=url, type=_REMOTES[remote["type"]], headers=headers)


_Start = Callable[[str, str, Sequence[Words], Mapping[str, Text]], list[Words]]


def _package(package: JsonObject, start: _Start) -> Offer:
    inputs = _Inputs()
    env = {name: inputs.value(variable, name) for name, variable in _named(package.get("environmentVariables"))}
    runtime = _arguments(package.get("runtimeArguments"), inputs)
    command = start(str(package["identifier"]), str(package.get("version", "")), runtime, env)
    command += _arguments(package.get("packageArguments"), inputs)
    return Offer(tuple(inputs.found.values()), tuple(command), env)


def _plain(*words: str) -> Words:
    return Words(tuple((word,) for word in words))


def _npm(name: str, version: str, runtime: Sequence[Words], _: Mapping[str, Text]) -> list[Words]:
    further = [word for word in runtime if word != _plain("-y")]
    return [_plain("npx", "-y"), *further, _plain(f"{name}@{version}" if version else name)]


def _pypi(name: str, version: str, runtime: Sequence[Words], _: Mapping[str, Text]) -> list[Words]:
    return [_plain("uvx"), *runtime, _plain(f"{name}=={version}" if version else name)]


def _oci(name: str, version: str, runtime: Sequence[Words], env: Mapping[str, Text]) -> list[Words]:
    # docker passes on those variables of its own environment that it is told.
    passed = [Words((("-e",), (variable,)), slots([text])) for variable, text in env.items()]
    tagged = f"{name}:{version}" if version and ":" not in name.rpartition("/")[2] and "@" not in name else name
    return [_plain("docker", "run", "-i", "--rm"), *passed, *runtime, _plain(tagged)]


_STARTS: Final[Mapping[str, _Start]] = {"npm": _npm, "pypi": _pypi, "oci": _oci}


def _arguments(described: object, inputs: _Inputs) -> list[Words]:
    """Arguments, each with its flag; one without a value is left out."""
    words: list[Words] = []
    for argument in _objects(described):
        flag: list[Text] = [(str(argument["name"]),)] if argument.get("type") == "named" and "name" in argument else []
        value = inputs.value(argument, str(argument.get("name", argument.get("valueHint", "VALUE"))).lstrip("-"))
        words.append(Words((*flag, value)))
    return words


def _named(described: object) -> Iterator[tuple[str, JsonObject]]:
    for found in _objects(described):
        if isinstance(found.get("name"), str):
            yield found["name"], found


def _objects(found: object) -> list[JsonObject]:
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
