"""An entry of the MCP Registry (`server.json`) as an entry of `mcpServers`, which pins its package's version.

The first remote or package that can be run here is taken. Fetches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mcproxy.configuration.problems import ConfigurationError, Problem

JsonObject = Mapping[str, Any]

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][\w-]*)\}")
_REMOTES: Final = {"streamable-http": "http", "sse": "sse"}


def server_of(document: object, file: str) -> dict[str, object]:
    """Raises ConfigurationError where nothing in it can be run here."""
    if isinstance(document, Mapping):
        for remote in _objects(document.get("remotes")):
            if remote.get("type") in _REMOTES and isinstance(remote.get("url"), str):
                return _remote(remote)
        for package in _objects(document.get("packages")):
            start = _STARTS.get(str(package.get("registryType")))
            stdio = isinstance(package.get("transport"), Mapping) and package["transport"].get("type") == "stdio"
            if start is not None and stdio and isinstance(package.get("identifier"), str):
                return _package(package, start)
    if isinstance(document, Mapping) and not {"remotes", "packages"} & document.keys():
        sentence = "is no server.json of the registry, with `packages` or `remotes`; `import` reads hosts' files"
        raise ConfigurationError([Problem(file, sentence)])
    kinds = ", ".join(_STARTS)
    sentence = f"names no server that can be run here: a remote over HTTP, or a package over stdio of {kinds}"
    raise ConfigurationError([Problem(file, sentence)])


def _remote(remote: JsonObject) -> dict[str, object]:
    headers = {str(header["name"]): _value(header) for header in _inputs(remote.get("headers"))}
    found: dict[str, object] = {"url": _with_variables(remote["url"]), "type": _REMOTES[remote["type"]]}
    return {**found, "headers": headers} if headers else found


def _package(
    package: JsonObject, start: Callable[[str, str, Sequence[str], Sequence[str]], list[str]]
) -> dict[str, object]:
    variables = {str(variable["name"]): _value(variable) for variable in _inputs(package.get("environmentVariables"))}
    runtime = _arguments(package.get("runtimeArguments"))
    command, *arguments = start(str(package["identifier"]), str(package.get("version", "")), runtime, list(variables))
    arguments += _arguments(package.get("packageArguments"))
    return {"command": command, "args": arguments, **({"env": variables} if variables else {})}


def _npm(name: str, version: str, runtime: Sequence[str], _: Sequence[str]) -> list[str]:
    return ["npx", "-y", *(word for word in runtime if word != "-y"), f"{name}@{version}" if version else name]


def _pypi(name: str, version: str, runtime: Sequence[str], _: Sequence[str]) -> list[str]:
    return ["uvx", *runtime, f"{name}=={version}" if version else name]


def _oci(name: str, version: str, runtime: Sequence[str], variables: Sequence[str]) -> list[str]:
    # The program takes variables from the environment of the command, and hands on those that it is told.
    handed_on = [word for variable in variables for word in ("-e", variable)]
    tagged = f"{name}:{version}" if version and ":" not in name.rpartition("/")[2] and "@" not in name else name
    return ["docker", "run", "-i", "--rm", *handed_on, *runtime, tagged]


_STARTS: Final[Mapping[str, Callable[[str, str, Sequence[str], Sequence[str]], list[str]]]] = {
    "npm": _npm,
    "pypi": _pypi,
    "oci": _oci,
}


def _arguments(inputs: object) -> list[str]:
    """Arguments that have a value, or must have one; others are left out."""
    words: list[str] = []
    for argument in _objects(inputs):
        flag = [str(argument["name"])] if argument.get("type") == "named" and "name" in argument else []
        has_value = "value" in argument or "default" in argument
        if has_value or argument.get("isRequired") is True:
            named = argument if "name" in argument else {**argument, "name": str(argument.get("valueHint", "VALUE"))}
            words += [*flag, _value(named)]
    return words


def _inputs(inputs: object) -> list[JsonObject]:
    """Variables and headers that have a value, must have one, or are secrets that a user may want to set."""
    named = [found for found in _objects(inputs) if isinstance(found.get("name"), str)]
    return [found for found in named if {"value", "default"} & found.keys() or found.get("isRequired") is True]


def _value(found: JsonObject) -> str:
    """A fixed value with its variables, the default, or a variable named as it is."""
    if "value" in found:
        return _with_variables(str(found["value"]))
    if "default" in found and found.get("isSecret") is not True:
        return str(found["default"])
    return f"${{{_variable(str(found['name']))}}}"


def _with_variables(text: str) -> str:
    return _PLACEHOLDER.sub(lambda match: f"${{{_variable(match[1])}}}", text)


def _variable(name: str) -> str:
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper() or "VALUE"


def _objects(found: object) -> list[JsonObject]:
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
