"""Validate the tree of a configuration file into `Settings`; collects every problem, each with its place."""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace as dataclass_replace
from functools import reduce
from pathlib import Path as FilePath
from typing import Final, TypeVar, get_args

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mcproxy.configuration import lock
from mcproxy.configuration.consistency import (
    certificate_faults,
    contradictions,
    cut_short,
    doubts,
    idle_tracing,
    node_text,
    open_doors,
    unanswerable,
    unequal_shares,
    unverified,
    url_fault,
    without_login_pages,
)
from mcproxy.configuration.documents.tree import Node, follow, without_nulls
from mcproxy.configuration.expansion import Expansion, Missing, parse_env_file
from mcproxy.configuration.hosts import translation
from mcproxy.configuration.prefixes import prefixes
from mcproxy.configuration.problems import ConfigurationError, Path, Problem, dotted
from mcproxy.configuration.references import findings
from mcproxy.egress.certificates import Certificates
from mcproxy.settings import Access, Admin, Cluster, Endpoint, Proxy, Settings, Tls, UpstreamSettings
from mcproxy.settings.access.audit import AuditSettings
from mcproxy.settings.access.pins import PinSettings
from mcproxy.settings.access.policy import EFFECTS, RulePath
from mcproxy.settings.egress import ServerTlsSettings
from mcproxy.settings.endpoints import NAME as ENDPOINT_NAME
from mcproxy.settings.endpoints import NAME_RULE, is_key
from mcproxy.settings.installed import section_of
from mcproxy.settings.section import InvalidKey, Section

SIMILARITY: Final = 0.75
"""The similarity (0 to 1) from which an unknown key of a host's file counts as a misspelt key of ours."""
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of characters by which a name could be mistaken for another, or break its line."""
TOP_LEVEL: Final = (*translation.SERVER_MAPS, *translation.OURS, "inputs", "$schema")

_STARTING: Final = frozenset({"command", "args", "env", "envFile", "cwd", "url", "headers", "tls"})
"""Keys of a server by which it is started or reached, and which nothing else depends on."""
_KEYS: Final = ("access", "authentication", "keys")

M = TypeVar("M", bound=BaseModel)


class Validator(msgspec.Struct, frozen=True):
    """From the tree of a file to settings. Each step records its problems and continues with the rest."""

    expansion: Expansion
    warnings: list[Problem] = msgspec.field(default_factory=list)
    lenient: bool = False
    """Whether a server that cannot run as written costs only that server."""
    faults: dict[str, list[Problem]] = msgspec.field(default_factory=dict)
    """The problems of each such server, by its name."""

    def settings(self, document: Node) -> Settings | None:
        """The settings; None if there are problems."""
        if not isinstance(document.value, dict):
            self._problem(document, f"should be a mapping with {translation.SERVER_MAPS[0]}")
        self._refuse_unknown(document)
        proxy = self._proxy(document.members.get("proxy", Node({})))
        access = self._access(document.members.get("access", Node({})))
        admin = self._section(Admin, document.members.get("admin", Node({})))
        cluster = self._cluster(document.members.get("cluster", Node({})))
        if proxy is not None and access is not None and admin is not None:
            self._refuse_open_doors(document, proxy, access, admin)
            for path, sentence in (
                *unanswerable(access, admin),
                *cut_short(access, proxy),
                *unequal_shares(proxy, access),
                *idle_tracing(proxy),
            ):
                self._warn(follow(document, path), sentence)
        if proxy is not None and cluster is not None:
            self._refuse_lone_replicas(document, proxy, cluster)
        is_lenient = self.lenient and proxy is not None and not proxy.strict
        servers = self._servers(document, is_lenient=is_lenient)
        upstreams = self._upstreams(servers, is_lenient=is_lenient)
        if access is not None:
            access = self._with_manifests(access, upstreams)
            self._refuse_forwarding(servers, upstreams, access)
            upstreams = [self._with_login_owner(servers[each.name], each, access) for each in upstreams]
        endpoints = self._endpoints(document.members.get("endpoints", Node({})))
        features = self._features(document.members.get("features", Node({})))
        if self.expansion.problems or proxy is None or access is None or admin is None or cluster is None:
            return None
        settings = Settings(
            proxy=proxy,
            access=access,
            endpoints=endpoints,
            admin=admin,
            cluster=cluster,
            features=features,
            upstreams=tuple(upstreams),
        )
        self._check_references(document, settings)
        for path, sentence in without_login_pages(proxy, upstreams):
            self._warn(follow(document, path), sentence)
        return None if self.expansion.problems else settings

    def _check_references(self, document: Node, settings: Settings) -> None:
        """Reports names that name nothing: as a warning, or as an error for a deny rule that can deny nothing (R86)."""
        for found in findings(settings):
            node = follow(document, found.path)
            problem = Problem(str(self.expansion.file), found.sentence, node.place, found.path)
            (self.expansion.problems if found.is_error else self.warnings).append(problem)

    def _refuse_unknown(self, document: Node) -> None:
        """Reports unknown top-level keys; in a host's own file, only keys that resemble ours."""
        for key, node in document.members.items():
            ours = difflib.get_close_matches(key.lower(), translation.OURS, cutoff=SIMILARITY)
            if key in TOP_LEVEL or (self.expansion.host_file and not ours):
                continue
            if not ours and node.members.keys() & {"command", "url"}:
                self._problem(node, f"looks like a server: put it below {translation.SERVER_MAPS[0]}")
            else:
                self._problem(node, _unknown_key(key, TOP_LEVEL))

    def _proxy(self, node: Node) -> Proxy | None:
        proxy = self._section(Proxy, node)
        if proxy is None:
            return None
        egress = self._located(proxy.egress, ("ca",), node, "egress")
        self._check_certificates(Certificates(_given(egress.ca)), node, ("egress", "ca"))
        return proxy.model_copy(update={"tls": self._tls(proxy.tls, node), "egress": egress})

    def _check_certificates(self, certificates: Certificates, node: Node, path: Path) -> None:
        """Reports files of certificates that cannot be used."""
        if self.expansion.problems:
            return
        try:
            certificates.context()
        except OSError as error:
            self._problem(follow(node, path), error.strerror or str(error))

    def _tls(self, tls: Tls, node: Node) -> Tls:
        located = self._located(tls, ("certificate", "key", "client_ca"), node)
        for key, sentence in certificate_faults(located) if not self.expansion.problems else ():
            self._problem(follow(node, ("tls", key)), sentence)
        return located

    def _located(self, tls: M, keys: Iterable[str], node: Node, section: str = "tls") -> M:
        """A section of that key with absolute paths. Reports the files that cannot be read."""
        files: dict[str, str] = {}
        for key in keys:
            path = getattr(tls, key)
            if path is not None:
                files[key] = self._absolute(path)
                try:
                    self.expansion.read(FilePath(files[key]))
                except Missing as missing:
                    self._problem(follow(node, (section, key)), str(missing))
        return tls.model_copy(update=files)

    def _cluster(self, node: Node) -> Cluster | None:
        cluster = self._section(Cluster, node)
        if cluster is None:
            return None
        return cluster.model_copy(update={"tls": self._located(cluster.tls, ("certificate", "key", "ca"), node)})

    def _refuse_lone_replicas(self, document: Node, proxy: Proxy, cluster: Cluster) -> None:
        """Reports a cluster whose replicas could not understand each other."""
        if cluster.redis is not None and not proxy.secret:
            self._problem(follow(document, ("cluster",)), "needs proxy.secret, the same on every replica")
        if cluster.redis is not None and proxy.grant_key != "secret":
            sentence = "replicas share their logins, which the keyring of one machine cannot seal: set it to secret"
            self._problem(follow(document, ("proxy", "grant_key")), sentence)

    def _refuse_open_doors(self, document: Node, proxy: Proxy, access: Access, admin: Admin) -> None:
        """Reports combinations of sections that would let callers in without authentication."""
        for path, sentence in open_doors(proxy, access.authentication, admin):
            self._problem(follow(document, path), sentence)

    def _access(self, node: Node) -> Access | None:
        node = _with_empty_roles(node)
        access = self._section(Access, node)
        if access is None:
            return None
        policy = access.policy.placed(_rule_places(node, str(self.expansion.file)))
        return access.model_copy(
            update={"policy": policy, "audit": self._audit(access.audit), "pins": self._pins(access.pins)}
        )

    def _pins(self, pins: PinSettings) -> PinSettings:
        if pins.mode == "off" and pins.file is None:
            return pins
        path = FilePath(self._absolute(pins.file or lock.FILE_NAME))
        placed = pins.model_copy(update={"file": str(path)})
        if pins.mode == "off":
            return placed
        return self._locked(placed, path)

    def _with_manifests(self, access: Access, upstreams: Iterable[UpstreamSettings]) -> Access:
        """Settings with the lock file, if it lists what servers offer that are not started yet."""
        pins = access.pins
        if pins.mode != "off" or all(spec.start != "on_demand" for spec in upstreams):
            return access
        path = FilePath(self._absolute(pins.file or lock.FILE_NAME))
        return access.model_copy(update={"pins": self._locked(pins, path)})

    def _locked(self, placed: PinSettings, path: FilePath) -> PinSettings:
        self.expansion.files.add(path)
        try:
            return placed.holding(lock.read_lock(path))
        except ConfigurationError as error:
            self.expansion.problems.extend(error.problems)
            return placed

    def _audit(self, audit: AuditSettings) -> AuditSettings:
        return audit if audit.file is None else audit.model_copy(update={"file": self._absolute(audit.file)})

    def _endpoints(self, node: Node) -> dict[str, Endpoint]:
        node = without_nulls(self.expansion.apply(node))
        if node.value is not None and not isinstance(node.value, dict):
            self._problem(node, "should be a mapping from names to endpoints")
        endpoints: dict[str, Endpoint] = {}
        for name, selection in node.members.items():
            endpoint = self._validated(Endpoint, selection)
            if not re.fullmatch(ENDPOINT_NAME, name):
                self._problem(selection, NAME_RULE)
            elif endpoint is not None:
                endpoints[name] = endpoint
        return endpoints

    def _features(self, node: Node) -> dict[str, Section]:
        """The settings of features that other packages bring, each validated as the feature declares."""
        if node.value is not None and not isinstance(node.value, dict):
            self._problem(node, "should be a mapping from names of installed features to their settings")
        features: dict[str, Section] = {}
        for name, given in node.members.items():
            try:
                section = section_of(name)
            except ValueError as error:
                self._problem(given, str(error))
                continue
            found = self._section(section, Node({}, given.place) if given.value is None else given)
            if found is not None:
                features[name] = found
        return features

    def _section(self, model: type[M], node: Node) -> M | None:
        node = without_nulls(self.expansion.apply(node))
        return self._validated(model, replace(node, value={} if node.value is None else node.value))

    def _servers(self, document: Node, *, is_lenient: bool) -> dict[str, Node]:
        """Every server by its name, with the keys of `UpstreamSettings` and references expanded."""
        servers: dict[str, Node] = {}
        for key in translation.SERVER_MAPS:
            node = document.members.get(key, Node(None))
            if node.value is not None and not isinstance(node.value, dict):
                self._problem(node, "should be a mapping from names to servers")
            for name, server in node.members.items():
                if (fault := _fault_of_name(name)) is not None:
                    self._problem(server, fault)
                elif name in servers:
                    self._problem(server, "is already the name of another server")
                elif not isinstance(server.value, dict):
                    self._problem(server, "should be a mapping with a command or a url")
                else:
                    self._warn_of_ignored(server)
                    servers[name] = self._expanded(name, translation.translate(server), is_lenient=is_lenient)
        return servers

    def _warn_of_ignored(self, server: Node) -> None:
        """In a file of ours, a host's key without a meaning here is probably a mistake."""
        for key, node in server.members.items():
            if key in translation.LEFT_OUT and not self.expansion.host_file:
                self._warn(node, f"has no effect here: {translation.LEFT_OUT[key]}")

    def _expanded(self, name: str, server: Node, *, is_lenient: bool) -> Node:
        # A disabled server may lack the variables that it needs to run.
        enabled = server.members.get("enabled", Node(True)).value is not False
        if not enabled:
            expansion = replace(self.expansion, problems=[], secrets=set())
        elif is_lenient:
            expansion = replace(self.expansion, problems=self.faults.setdefault(name, []))
        else:
            expansion = self.expansion
        members = dict(expansion.apply(server).members)
        if (env_file := members.pop(translation.ENV_FILE, None)) is not None:
            env = members.get("env", replace(env_file, value={}))
            members["env"] = replace(env, value={**self._env_file(env_file, expansion), **env.members})
        if "cwd" in members:
            members["cwd"] = translation.map_text(members["cwd"], self._absolute)
        return replace(server, value=members)

    def _env_file(self, node: Node, expansion: Expansion) -> dict[str, Node]:
        try:
            variables = parse_env_file(expansion.read(FilePath(self._absolute(node.text))))
        except Missing as missing:
            expansion.problems.append(Problem(str(expansion.file), str(missing), node.place, node.path))
            return {}
        return {name: replace(node, value=value, text=value) for name, value in variables.items()}

    def _absolute(self, path: str) -> str:
        return os.path.normpath(self.expansion.folder / FilePath(path).expanduser())

    def _upstreams(self, servers: Mapping[str, Node], *, is_lenient: bool) -> list[UpstreamSettings]:
        chosen = {name: node_text(server.members.get("prefix")) for name, server in servers.items()}
        for name, problems in self.faults.items():
            if any(problem.path[2:3] == ("prefix",) for problem in problems):
                chosen[name] = None
        self._refuse_shared_prefixes(servers, chosen)
        given = prefixes(chosen)
        upstreams: list[UpstreamSettings] = []
        for name, server in servers.items():
            before = len(self.expansion.problems)
            upstream = None if self.faults.get(name) else self._upstream(name, server, given[name])
            if is_lenient:
                self._spare_others(name, before)
            if self.faults.get(name):
                upstream = self._out_of_service(name, server, given[name])
            if upstream is not None:
                upstreams.append(upstream)
        return upstreams

    def _spare_others(self, name: str, before: int) -> None:
        """Takes problems with how a server is started for faults of that server alone, if there are no others."""
        problems = self.expansion.problems[before:]
        if problems and all(set(problem.path[2:3]) <= _STARTING for problem in problems):
            del self.expansion.problems[before:]
            self.faults.setdefault(name, []).extend(problems)

    def _out_of_service(self, name: str, server: Node, prefix: str) -> UpstreamSettings | None:
        """A server that cannot run, with the reason; it keeps its name and its prefix."""
        self.warnings.extend(
            dataclass_replace(problem, sentence=f"{problem.sentence}; this server is out of service until then")
            for problem in self.faults[name]
        )
        url = node_text(server.members.get("url"))
        way = {"command": Node("-")} if url is None or url_fault(url) is not None else {"url": Node(url)}
        whole = replace(server, value={"name": Node(name), "prefix": Node(prefix), **way})
        upstream = self._validated(UpstreamSettings, whole)
        first = self.faults[name][0]
        where = dotted(first.path[2:]) or dotted(first.path)
        return None if upstream is None else upstream.out_of_service(f"{where}: {first.sentence}")

    def _upstream(self, name: str, server: Node, prefix: str) -> UpstreamSettings | None:
        for node, sentence in contradictions(server):
            self._problem(node, sentence)
        for node, sentence in (*doubts(server), *unverified(server)):
            # A value from a variable may be secret (R44).
            shown = reduce(lambda text, secret: text.replace(secret, "..."), self.expansion.secrets, sentence)
            self._warn(node, shown)
        whole = {"prefix": Node(prefix), **server.members, "name": Node(name)}
        upstream = self._validated(UpstreamSettings, replace(server, value=whole))
        return None if upstream is None else self._with_certificates(upstream, server)

    def _with_certificates(self, upstream: UpstreamSettings, server: Node) -> UpstreamSettings:
        """An upstream with absolute paths of its certificates, which are read once; those of a disabled one are not."""
        if not upstream.enabled or upstream.tls == ServerTlsSettings():
            return upstream
        tls = self._located(upstream.tls, ("ca", "certificate", "key"), server)
        self._check_certificates(Certificates(_given(tls.ca), tls.certificate, tls.key), server, ("tls",))
        return upstream.model_copy(update={"tls": tls})

    def _refuse_forwarding(
        self, servers: Mapping[str, Node], upstreams: Iterable[UpstreamSettings], access: Access
    ) -> None:
        """R40: a header that authenticates callers to the gateway is never forwarded."""
        for upstream in upstreams:
            header = upstream.credentials.consumed(access.authentication)
            if header is not None:
                node = follow(servers[upstream.name], ("credentials", "forward", header))
                self._problem(
                    node, "authenticates callers to this gateway (access.authentication) and cannot be forwarded"
                )

    def _with_login_owner(self, server: Node, upstream: UpstreamSettings, access: Access) -> UpstreamSettings:
        """R39: where callers authenticate, one person's login serves all of them only where an operator says so."""
        oauth = upstream.oauth
        if oauth is None:
            return upstream
        is_own = oauth.exchanges or (oauth.grant == "authorization_code" and access.authentication.required)
        if oauth.exchanges and not access.authentication.oauth.issuers:
            node = follow(server, ("oauth",))
            self._problem(node, "exchanges the tokens of callers, which need access.authentication.oauth.issuers")
        per = oauth.per or ("principal" if is_own else "gateway")
        connection = upstream.connection
        if per == "principal":
            written = server.members.get("connection")
            if written is not None and connection != "principal":
                self._problem(written, "and `oauth` per principal exclude each other: each principal has a connection")
            connection = "principal"
        changes = {"oauth": oauth.model_copy(update={"per": per}), "connection": connection}
        return upstream.model_copy(update=changes)

    def _refuse_shared_prefixes(self, servers: Mapping[str, Node], chosen: Mapping[str, str | None]) -> None:
        first: dict[str, str] = {}
        for name, prefix in chosen.items():
            if prefix is not None and first.setdefault(prefix, name) != name:
                sentence = f"is already the prefix of {first[prefix]!r}: choose another"
                self._problem(servers[name].members["prefix"], sentence)

    def _validated(self, model: type[M], node: Node) -> M | None:
        try:
            return model.model_validate(node.plain)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                path = _path(detail)
                found = follow(node, path)
                if detail["type"] == "extra_forbidden":
                    self._problem(found, _unknown_key(str(path[-1]), _keys(model, path[:-1])))
                else:
                    whole = (*node.path, *path)
                    self._problem(found, _sentence(detail, found, model, path) + _remedy(whole, detail), whole)
            return None

    def _problem(self, node: Node, sentence: str, path: Path | None = None) -> None:
        """Records the first problem of a key: further ones follow from it. A missing key has its parent's place."""
        problems, path = self.expansion.problems, node.path if path is None else path
        if all(problem.path != path for problem in problems):
            problems.append(Problem(str(self.expansion.file), sentence, node.place, path))

    def _warn(self, node: Node, sentence: str) -> None:
        self.warnings.append(Problem(str(self.expansion.file), sentence, node.place, node.path))


def _fault_of_name(name: str) -> str | None:
    """Why a server may not have this name; None if it may."""
    if not name.strip():
        return "a server needs a name"
    if is_key(name):
        return "the name of a server must not begin with `/`, as the keys of endpoints do"
    if name in {".", ".."}:
        return "the name of a server must not be `.` or `..`, which URLs do not keep"
    if any(unicodedata.category(letter) in _UNSEEN for letter in name):
        return "the name of a server must not hold characters that cannot be seen"
    return None


def _given(file: str | None) -> tuple[str, ...]:
    return () if file is None else (file,)


def _policy_roles(access: Node) -> Node:
    return access.members.get("policy", Node({})).members.get("roles", Node({}))


def _with_empty_roles(access: Node) -> Node:
    """Keeps roles without rules: if they were dropped, there might be no policy at all."""
    roles = _policy_roles(access)
    if all(role.value is not None for role in roles.members.values()):
        return access
    policy = access.members["policy"]
    kept = {name: replace(role, value={}) if role.value is None else role for name, role in roles.members.items()}
    said = replace(policy, value={**policy.members, "roles": replace(roles, value=kept)})
    return replace(access, value={**access.members, "policy": said})


def _rule_places(access: Node, file: str) -> dict[RulePath, str]:
    """File and line of each rule of the policy."""
    places: dict[RulePath, str] = {}
    for role, said in _policy_roles(access).members.items():
        for effect in EFFECTS:
            rules = said.members.get(effect, Node([])).value
            for index, rule in enumerate(rules if isinstance(rules, list) else ()):
                places[role, effect, index] = f"{file}:{rule.place.line}"
    return places


def _remedy(path: Path, detail: ErrorDetails) -> str:
    """A command that makes a value of the right form, if there is one; none makes a name that is refused."""
    if "[key]" in detail["loc"]:
        return ""
    name = path[len(_KEYS) : len(_KEYS) + 1]
    return f"; `mcproxy keys add {name[0]}` prints the lines" if name and path[: len(_KEYS)] == _KEYS else ""


def _path(detail: ErrorDetails) -> Path:
    """Where an error is: the place that its validator names, below the section that was validated."""
    error = detail.get("ctx", {}).get("error")
    path = tuple(key for key in detail["loc"] if key != "[key]")
    return (*path, *error.path) if isinstance(error, InvalidKey) else path


def _sections(annotation: object) -> Iterator[type[BaseModel]]:
    """The sections in a type, however deep: in `dict[str, tuple[Section, ...]]` too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def _section_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    """The section at `path` of a model."""
    for key in path:
        if key in model.model_fields:
            model = next(_sections(model.model_fields[str(key)].annotation), model)
    return model


def _keys(model: type[BaseModel], path: Path) -> Collection[str]:
    """The keys allowed at `path` of a model."""
    model = _section_at(model, path)
    return {*model.model_fields, *translation.KEYS} if model is UpstreamSettings else list(model.model_fields)


def _unknown_key(key: str, known: Collection[str]) -> str:
    spelt = {name.lower(): name for name in sorted(known)}
    nearest = difflib.get_close_matches(key.lower(), spelt, n=1)
    if nearest:
        return f'unknown key; did you mean "{spelt[nearest[0]]}"?'
    return f"unknown key; known keys: {', '.join(sorted(known))}"


def _typical_key(model: type[BaseModel], path: Path) -> str:
    """A key of the section at `path`: one that it requires, if any."""
    fields = _section_at(model, path).model_fields
    return next((name for name, field in fields.items() if field.is_required()), next(iter(fields)))


def _sentence(detail: ErrorDetails, node: Node, model: type[BaseModel], path: Path) -> str:
    """pydantic's message in terms of the file. It names the rule alone, never the value."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "is required"
        case "tuple_type":
            return "should be a list, such as [one, two]"
        case "dict_type":
            return "should be a mapping, such as {key: value}"
        case "model_type" | "model_attributes_type":
            return f"should be a mapping, such as {{{_typical_key(model, path)}: ...}}"
        case "int_type" | "int_parsing" | "int_from_float":
            return "should be a whole number"
        case "float_type" | "float_parsing":
            return "should be a number"
        case "bool_type" | "bool_parsing":
            return "should be true or false"
        case "string_type":
            return "should be a text" + (": put it in quotes" if isinstance(node.value, bool | int | float) else "")
        case "timezone_aware" | "datetime_type" | "datetime_parsing" | "datetime_from_date_parsing":
            return "should be a time with its zone, such as 2030-01-31T00:00:00Z"
        case "less_than_equal":
            return f"should be at most {context['le']:g}"
        case "greater_than_equal":
            return f"should be at least {context['ge']:g}"
        case "value_error":
            return detail["msg"].removeprefix("Value error, ")
        case _:
            return detail["msg"].removeprefix("Input ").removeprefix("String ")
