"""Edits functions of a module that is imported already: whoever has one of them has the edited one from then on.

A function keeps its identity and gets other code, so that nothing need be imported once more. What is not in a
function, as a constant or a default value, cannot be edited so.
"""

from __future__ import annotations

import functools
import gc
import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class PatchError(Exception):
    """An edit is outside of functions, or of one that nobody has."""


def patch(file: str, before: str, after: str) -> None:
    """Give the functions of a module the code that they have in `after`. Raises PatchError.

    Functions that `gc.freeze` has put away are not found.
    """
    changed = changed_functions(file, before, after)
    missing = set(changed)
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == file:
            place = function.__code__.co_qualname, function.__code__.co_firstlineno
            if place in changed:
                function.__code__ = changed[place]
                missing.discard(place)
    if missing:
        raise PatchError(f"nobody has {', '.join(name for name, _ in sorted(missing))} of {file}")


def changed_functions(file: str, before: str, after: str) -> dict[tuple[str, int], CodeType]:
    """Return the code that functions have in `after`, by their names and lines in `before`. Raises PatchError."""
    pairs = list(_functions(_compiled(file, before), compile(after, file, "exec", dont_inherit=True)))
    changed = {(old.co_qualname, old.co_firstlineno): new for old, new in pairs if _essence(old) != _essence(new)}
    if not changed:
        raise PatchError(f"the edit of {file} changes no function")
    return changed


@functools.lru_cache(maxsize=8)
def _compiled(file: str, source: str) -> CodeType:
    return compile(source, file, "exec", dont_inherit=True)


def _functions(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the functions of a module or of a class body, those of its classes too, as they were and as they are."""
    if _essence(old, of_functions=False) != _essence(new, of_functions=False):
        raise PatchError(f"the edit of {old.co_filename} is outside of functions, in {old.co_qualname}")
    for each, other in zip(_parts(old), _parts(new), strict=True):
        if each.co_flags & inspect.CO_OPTIMIZED:
            yield each, other
        else:
            yield from _functions(each, other)


def _parts(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _essence(code: CodeType, *, of_functions: bool = True) -> tuple[object, ...]:
    """What a code does, wherever its lines are."""
    inner: list[object] = []
    for each in code.co_consts:
        if isinstance(each, CodeType):
            inner.append(_essence(each) if of_functions else each.co_name)
        elif of_functions or not isinstance(each, int):  # a class knows its line
            inner.append(repr(each))
    return code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, tuple(inner)
