"""Which events the agent can emit, read from its source: reason, type, what each is about, and how its text begins.

Calls of the recorder are looked for, and the values of their arguments. A value is a constant, a name of the module, a
local variable, or a parameter of the function around it: then the calls of that function in the same module are
looked at. A reason that comes out of an object is looked for where such objects are made (`MAKERS`). One that is found
nowhere is None, so that a test can ask for more.
"""

from __future__ import annotations

import ast
import itertools
from functools import cache
from typing import TYPE_CHECKING, Final

import attrs

from tests.parity.source import PACKAGE, Function, Module, assignments, name_of, possible, values

if TYPE_CHECKING:
    from collections.abc import Iterator

POD: Final = "pod"
CONTAINER: Final = "container"
NODE: Final = "node"
OBJECTS: Final = {"claim": "claim", "persistent": "volume"}
"""Other objects, by what they are called where events of them are recorded."""
NORMAL: Final = "Normal"

_SIGNATURES: Final = {
    "pod_event": ("pod", "type_", "reason", "message"),
    "node_event": ("type_", "reason", "message"),
    "object_event": ("about", "type_", "reason", "message"),
}


@attrs.frozen
class Maker:
    """Where reasons come from: arguments of calls of `name` in `place`, a file or folder below `trikubelet/`; or pairs
    that are assigned to `name`."""

    place: str
    name: str
    argument: int = 0
    type: int | str | None = None
    """The argument that is the type, or the type."""
    about: str | None = None
    """What only these are about; None: all."""
    default: str | None = None
    """The reason where the argument is left out."""


_DNS: Final = "runtime/sandboxes/name_resolution.py"
MAKERS: Final = {
    "pods/sync_handler.py": (
        Maker("admission", "Rejected"),
        Maker("admission", "Mismatch"),
        Maker("allocation", "AllocationError", 1, default="UnexpectedAdmissionError"),
    ),
    "pods/reporting.py": (Maker("pods/reporting.py", "Eviction"),),
    "kube_client/pod_certificates.py": (Maker("kube_client/pod_certificate_state.py", "Warned"),),
    "node/reporting.py": (
        Maker("node/status.py", "NodeOccurrence", 1, type=0),
        Maker("node/conditions.py", "_Words", 2, type=NORMAL),
        Maker("node/conditions.py", "append", type=NORMAL),
    ),
    "runtime/sandboxes/sandbox.py": (Maker(_DNS, "append", about=POD), Maker(_DNS, "node_warnings", about=NODE)),
}
"""By the module that emits them."""
HANDED_ON: Final = {
    ("admission/admit.py", "first.reason"): ("OutOf*",),
    ("kube_client/pod_certificate_state.py", "condition.type"): ("Denied", "Failed"),
    ("node/status.py", "reason"): (),
}
"""What stands for several reasons: `OutOf` with the name of any resource, and what other makers tell."""


@attrs.frozen
class Emitted:
    """One event that the agent can emit."""

    reason: str | None
    type: str | None
    about: str
    text: str
    """How it begins, as far as the source tells."""
    where: str
    """The module, from `trikubelet/` on."""


@cache
def emitted() -> tuple[Emitted, ...]:
    """All of them."""
    found: set[Emitted] = set()
    for module in Module.all_below("", *_SIGNATURES):
        if module.path != "telemetry/events.py":
            for call in module.calls(*_SIGNATURES):
                found |= set(_of_call(module, call))
    return tuple(sorted(found, key=str))


def _of_call(module: Module, call: ast.Call) -> Iterator[Emitted]:
    kind = name_of(call.func)
    where = f"{PACKAGE.name}/{module.path}"
    for bound in _bindings(module, call, _SIGNATURES[kind]):
        about = _about(kind, bound)
        types = {value.value for value in values(bound.get("type_")) if hasattr(value, "value")}
        reasons = {value for value in values(bound.get("reason")) if isinstance(value, str)}
        if reasons:
            for reason, type_, text in itertools.product(reasons, types or {None}, _beginnings(bound)):
                yield Emitted(reason, type_, about, text, where)
        else:
            for reason_made, type_made in _made(module, about):
                for type_ in types or {type_made}:
                    yield Emitted(reason_made, type_, about, "", where)


def _about(kind: str, bound: dict[str, ast.expr]) -> str:
    if kind == "object_event":
        return OBJECTS[ast.unparse(bound["about"]).rpartition(".")[2]]
    container = bound.get("container", ast.Constant(None))
    return NODE if kind == "node_event" else CONTAINER if ast.unparse(container) != "None" else POD


def _bindings(module: Module, call: ast.Call, parameters: tuple[str, ...]) -> Iterator[dict[str, ast.expr]]:
    """The arguments by name, with those of the calls of the function around where they are its parameters."""
    function = module.function_of(call)
    for arguments in _arguments(module, call):
        bound: dict[str, ast.expr] = dict(zip(parameters, arguments, strict=False))
        bound |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        callers = [] if function is None else [one for one in module.calls(function.name) if one is not call]
        names = () if function is None else _parameters(function)
        wanted = {value.id for value in bound.values() if isinstance(value, ast.Name)} & {*names}
        if function is None or not callers or not wanted & {"reason", "type_"}:
            yield bound
            continue
        for caller in callers:
            for outer in _bindings(module, caller, names):
                given = {**_defaults(function), **outer}
                yield {
                    name: given.get(value.id, value) if isinstance(value, ast.Name) and value.id in wanted else value
                    for name, value in bound.items()
                }


def _arguments(module: Module, call: ast.Call) -> Iterator[list[ast.expr]]:
    """With `*call(…)`, once for each tuple that the called function returns, wherever it is."""
    starred = next((one for one in call.args if isinstance(one, ast.Starred)), None)
    if starred is None:
        yield call.args
        return
    before = call.args[: call.args.index(starred)]
    for made in possible(starred.value):
        if isinstance(made, ast.Call):
            for returned in _returned(name_of(made.func)):
                yield [*before, *returned.elts]


@cache
def _returned(function: str) -> tuple[ast.Tuple, ...]:
    return tuple(
        node.value
        for module in Module.all_below("volumes", f"def {function}")
        for one in module.functions(function)
        for node in ast.walk(one)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    )


def _made(module: Module, about: str) -> Iterator[tuple[str | None, str | None]]:
    makers = [maker for maker in MAKERS.get(module.path, ()) if maker.about in (about, None)]
    if not makers:
        yield None, None
    for maker in makers:
        for place in Module.all_below(maker.place, maker.name):
            for call in place.calls(maker.name):
                yield from _of_maker(place, maker, call.args)
            for pairs in place.assigned(maker.name):
                for pair in pairs.elts if isinstance(pairs, ast.Tuple) else ():
                    yield from _of_maker(place, maker, [pair])


def _of_maker(place: Module, maker: Maker, arguments: list[ast.expr]) -> Iterator[tuple[str | None, str | None]]:
    is_pair = len(arguments) == 1 and isinstance(arguments[0], ast.Tuple)
    if is_pair and isinstance(arguments[0], ast.Tuple):
        arguments = arguments[0].elts
    if len(arguments) <= maker.argument and maker.default is not None:
        yield maker.default, None
        return
    reason = arguments[maker.argument]
    types: list[str | None] = [maker.type] if isinstance(maker.type, str) else [None]
    if isinstance(maker.type, int):
        types = [value.value for value in values(arguments[maker.type])]
    handed_on = HANDED_ON.get((place.path, ast.unparse(reason)))
    reasons = values(reason) if handed_on is None else list(handed_on)
    if not reasons and handed_on is None and (is_pair or len(arguments) > 1):
        reasons = [None]  # else something quite different is put somewhere
    yield from itertools.product(reasons, types)


def _parameters(function: Function) -> tuple[str, ...]:
    names = tuple(argument.arg for argument in (*function.args.args, *function.args.kwonlyargs))
    return names[1:] if names[:1] == ("self",) else names


def _defaults(function: Function) -> dict[str, ast.expr]:
    arguments = function.args
    found = dict(zip((one.arg for one in reversed(arguments.args)), reversed(arguments.defaults), strict=False))
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {**found, **{argument.arg: value for argument, value in pairs if value is not None}}


def _beginnings(bound: dict[str, ast.expr]) -> set[str]:
    """The texts up to the first value in them; an empty one where the source does not tell."""
    message = bound.get("message")
    if isinstance(message, ast.Name):
        before = [one for one in assignments(message) if one.lineno < message.lineno]
        message = max(before, key=lambda one: one.lineno, default=message)
    return {_beginning(one) for one in possible(message)} if message is not None else {""}


def _beginning(message: ast.expr) -> str:
    if isinstance(message, ast.JoinedStr) and message.values:
        first = message.values[0]
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    return next((value for value in values(message) if isinstance(value, str)), "")
