"""The agent's source as trees: functions, calls, and what expressions may be. For tests that read what can be."""

from __future__ import annotations

import ast
import importlib
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = Path(__file__).parents[2] / "trikubelet"
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@attrs.frozen(eq=False, slots=False)
class Module:
    """One file."""

    path: str
    """Below `trikubelet/`."""
    _around: dict[ast.AST, Function | None]
    """The innermost function of each node."""

    @classmethod
    @cache
    def read(cls, file: Path) -> Module:
        tree = ast.parse(file.read_text())
        around: dict[ast.AST, Function | None] = {}

        def visit(node: ast.AST, function: Function | None) -> None:
            around[node] = function
            inner = node if isinstance(node, Function) else function
            for child in ast.iter_child_nodes(node):
                visit(child, inner)

        visit(tree, None)
        module = cls(str(file.relative_to(PACKAGE)), around)
        _OWNERS.update(dict.fromkeys(around, module))
        return module

    @classmethod
    def all_below(cls, place: str, *words: str) -> Iterator[Module]:
        """Of a file or a folder below `trikubelet/` those that have one of the words; without what is generated."""
        at = PACKAGE / place
        for file in [at] if at.is_file() else sorted(at.rglob("*.py")):
            if "rpc" not in file.relative_to(PACKAGE).parts and any(word in file.read_text() for word in words):
                yield cls.read(file)

    @cached_property
    def names(self) -> dict[str, Any]:
        dotted = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return dict(vars(importlib.import_module(f"{PACKAGE.name}.{dotted}")))

    def calls(self, *names: str) -> Iterator[ast.Call]:
        for name in names:
            yield from self._calls.get(name, ())

    @cached_property
    def _calls(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = {}
        for node in self._around:
            if isinstance(node, ast.Call):
                found.setdefault(name_of(node.func), []).append(node)
        return found

    def functions(self, name: str) -> Iterator[Function]:
        for node in self._around:
            if isinstance(node, Function) and node.name == name:
                yield node

    def assigned(self, name: str) -> Iterator[ast.expr]:
        """To a variable of this name, anywhere."""
        for node in self._around:
            if isinstance(node, ast.Assign) and any(name_of(target) == name for target in node.targets):
                yield node.value

    def function_of(self, node: ast.AST) -> Function | None:
        """The innermost function around a node of this module."""
        return self._around.get(node)


_OWNERS: Final[dict[ast.AST, Module]] = {}
"""The module of each expression that was read."""


def possible(expression: ast.expr) -> Iterator[ast.expr]:
    """The expression, or what was assigned to it where it is a local variable; each branch of a condition."""
    if isinstance(expression, ast.IfExp):
        yield from possible(expression.body)
        yield from possible(expression.orelse)
        return
    assigned = list(assignments(expression)) if isinstance(expression, ast.Name) else []
    if not assigned:
        yield expression
    for one in assigned:
        yield from possible(one)


def assignments(name: ast.Name) -> Iterator[ast.expr]:
    """In the function around, in order: also of a part of a tuple."""
    module = _OWNERS.get(name)
    function = None if module is None else module.function_of(name)
    for node in () if function is None else ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _given(target, node.value, name.id)


def _given(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, ast.Tuple):
        names = [one.id for one in target.elts if isinstance(one, ast.Name)]
        for one in possible(value) if name in names else ():
            if isinstance(one, ast.Tuple) and len(one.elts) == len(names):
                yield one.elts[names.index(name)]


def values(expression: ast.expr | None) -> list[Any]:
    """What an expression may be; nothing where the source does not tell."""
    found = []
    for one in () if expression is None else possible(expression):
        module = _OWNERS.get(one)
        try:
            found.append(eval(ast.unparse(one), {} if module is None else module.names))
        except (NameError, AttributeError, TypeError):
            continue
    return found


def name_of(expression: ast.expr) -> str:
    """The last part of a dotted name."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
