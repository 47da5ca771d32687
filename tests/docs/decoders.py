"""Every place that decodes a list, a map or any value, with its bound: found in the code, or said here.

A decoder whose type has neither of them makes nothing that is larger than its text, and stands nowhere.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from msgspec import inspect as types

from tests.docs.diagrams import ROOT
from tests.sources import parsed

PACKAGE: Final = ROOT / "mcproxy"
COUNTING: Final = {
    "parse_array": "items",
    "parse_texts": "strings",
    "decode_counted": "members",
    "check_values": "any value, with all values in it",
}
"""Functions that take a bound, and what they count."""
WHOLE: Final = {"json.loads", "parse_qsl", "parse_qs", "msgspec.json.decode", "msgspec.json.Decoder"}

ENTRY: Final = "an entry of a list: `MAX_ENTRY`, 4 MiB, and `MAX_VALUES` values"
ENDPOINT: Final = "an authorization server's answer: `MAX_ANSWER`, 256 KiB"
ISSUER: Final = "an issuer's answer: `keys_max_bytes`, 256 KiB"
OURS: Final = "sealed or signed by a gateway: nobody else writes it"
OWN: Final = "written by the person who runs the command, or for them"
HEAD: Final = "a request's target: `MAX_HEAD`, 64 KiB"
MEMBERS: Final = "a text of at most `LONG` bytes; a longer one is read by `decode_counted`"

SAID: Final = {
    "access/audit/record_lines.py:_shown": "a call's arguments: `MAX_SHOWN` bytes",
    "access/oauth/issuers.py:_signing_key": ISSUER,
    "access/oauth/issuers.py:read_keys": ISSUER,
    "access/oauth/tokens.py:_decoded": "a token: `max_token_bytes`, 16 KiB",
    "access/pins.py:pin": ENTRY,
    "access/policy.py:_scalar": "an argument that is neither an array nor an object",
    "admin/control.py:explain": "a request over the control socket: 64 KiB",
    "admin/entry_form.py:_value": "a form: 64 KiB",
    "admin/trying.py:_answers": "a form: 64 KiB",
    "catalog/argument_flaws.py:_is_integer": "an argument that is a number",
    "catalog/arguments.py:_flaw_of_given": "an argument, counted before: `_MOST_VALUES` commas and brackets of a kind",
    "cli/access/grants.py:by_hand": OWN,
    "cli/access/grants.py:take": "a request's target: 8 KiB",
    "cli/calling.py:_json_or_text": OWN,
    "cli/commands.py:_json_object": OWN,
    "cli/reports.py:_tools": OWN,
    "cli/running/client.py:_ask": "the gateway's own answer to its commands",
    "cluster/envelope.py:_decoder": OURS,
    "features/remembering/store.py:_decoder": OURS,
    "cluster/events.py:_decoder": OURS,
    "cluster/homes.py:stream_home": HEAD,
    "cluster/members.py:_opened": OURS,
    "cluster/oauth/grants.py:_decoder": OURS,
    "cluster/oauth/grants.py:_registrations": OURS,
    "cluster/oauth/renewals.py:_inquiries": OURS,
    "cluster/oauth/renewals.py:_inquiry_answers": OURS,
    "cluster/oauth/renewals.py:_renewal_answers": OURS,
    "cluster/oauth/renewals.py:_renewals": OURS,
    "cluster/records.py:_opened": OURS,
    "configuration/documents/json_reader.py:_scalar": OWN,
    "configuration/hosts/importing.py:_url": OWN,
    "configuration/lock.py:parse_lock": OWN,
    "configuration/packages/bundle.py:_manifest": "a bundle's manifest: `MAX_MANIFEST`, 1 MiB",
    "downstream/handshake/session_ids.py:verify": OURS,
    "gateway/input/request_state.py:_canonical": "a param of a call: `MAX_CANONICAL`, 1 MiB",
    "gateway/listings/lists.py:_opened": OURS,
    "features/search/answers.py:_number": "an argument that is a number",
    "features/search/embedding_service.py:_answer": "counted by `_read` before",
    "http/server/messages.py:query": HEAD,
    "login/routes.py:_form": "a form: `MAX_FORM`, 16 KiB",
    "login/routes.py:_redirected": HEAD,
    "protocol/json/repeated_members.py:_decode": "a text of `SHORT`, 16 KiB",
    "protocol/jsonrpc.py:_object": MEMBERS,
    "protocol/jsonrpc.py:_plain": MEMBERS,
    "upstream/headers_command.py:_from_json": "a command's output: `MAX_OUTPUT`, 16 KiB",
    "upstream/oauth/leniency.py:json_object": ENDPOINT,
    "upstream/oauth/leniency.py:token_members": ENDPOINT,
    "upstream/oauth/login.py:authorization_url": ENDPOINT,
    "upstream/oauth/storage/store.py:_read": OURS,
}
"""Where the bound is not one of items or values, by file and function: whose it is, and what bounds it."""


class Place(NamedTuple):
    """A call that decodes something."""

    where: str
    """File and function, below the package."""
    what: str
    bound: str | None
    """None where the code does not say."""


def places() -> Iterator[Place]:
    """All of them, in the order of the files."""
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text()
        if not any(word in text for word in (*COUNTING, *WHOLE, "Bounded", "parse_value", "first_items")):
            continue
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        names = vars(importlib.import_module(module)) if not module.endswith("__main__") else {}
        yield from _in(parsed(text), file.relative_to(PACKAGE).as_posix(), "", names)


def _in(node: ast.AST, file: str, scope: str, names: dict[str, Any]) -> Iterator[Place]:
    for child in ast.iter_child_nodes(node):
        within = scope
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) if not scope:
                within = name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                within = name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if not scope:
                within = name
            case ast.Call():
                yield from _of(child, f"{file}:{scope}", names)
        yield from _in(child, file, within, names)


def _of(call: ast.Call, where: str, names: dict[str, Any]) -> Iterator[Place]:
    name = ast.unparse(call.func)
    bare = name.rpartition(".")[2]
    if where.startswith("protocol/json/bounds.py"):
        return
    if bare in COUNTING:
        yield Place(where, COUNTING[bare], f"`{ast.unparse(call.args[-1])}`")
    elif bare == "Bounded":
        most = ast.unparse(call.args[1]) if len(call.args) > 1 else "MAX_VALUES"
        yield Place(where, f"`{ast.unparse(call.args[0])}`", f"`{most}` values in it")
    elif name in ("parse_value", "bounds.parse_value") and "parse_value" not in _own(names):
        yield Place(where, "any value", "`MAX_VALUES` values in it")
    elif bare == "first_items":
        yield Place(where, "the first items", "10,000 items")
    elif name in WHOLE:
        kept = _kept(call, name, names)
        if kept:
            yield Place(where, kept, SAID.get(where))


def _own(names: dict[str, Any]) -> set[str]:
    return {key for key, value in names.items() if getattr(value, "__module__", None) == names.get("__name__")}


def _kept(call: ast.Call, name: str, names: dict[str, Any]) -> str | None:
    """The type that is decoded, unless it has neither lists nor maps."""
    if not name.startswith("msgspec"):
        return "any value" if name == "json.loads" else "a query"
    given = call.args[0] if name.endswith("Decoder") and call.args else None
    given = next((each.value for each in call.keywords if each.arg == "type"), given)
    if given is None:
        return "any value"
    text = ast.unparse(given)
    try:
        read = types.type_info(eval(text, dict(names)))  # text of our own
    except NameError:
        return f"`{text}`"
    return f"`{text}`" if grows(read) else None


def grows(read: types.Type, within: frozenset[type] = frozenset()) -> bool:
    """Whether what is decoded as that type may take far more than its text."""
    match read:
        case types.AnyType() | types.CollectionType() | types.DictType() | types.CustomType():
            return True
        case types.UnionType(types=inner):
            return any(grows(each, within) for each in inner)
        case types.TupleType(item_types=inner):
            return any(grows(each, within) for each in inner)
        case types.StructType(cls=cls, fields=fields):
            return cls not in within and any(grows(field.type, within | {cls}) for field in fields)
        case _:
            return False


def table() -> str:
    rows = sorted({(place.where, place.what, place.bound or "?") for place in places()})
    lines = (f"| `{where}` | {what.replace('|', chr(92) + '|')} | {bound} |" for where, what, bound in rows)
    return "\n".join(["| place | reads | bound |", "|---|---|---|", *lines])
