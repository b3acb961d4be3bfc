"""What a function and its keywords become: one spec, made once and used by every call that is alike.

Calls of one recipe share one open array. Surprising rule: a function that goes by value is packed again whenever
something that it refers to may have changed, since a name that was set anew between two submits must be seen by the
second.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dray.client.calls.terms import READERS, build_spec
from dray.core.model.specs.check import FIELDS, check_spec
from dray.core.model.specs.values import suggest
from dray.errors import InvalidInput
from dray.functions.envelope import Sealed, seal
from dray.functions.values import hidden_modules

# A call with one of these is a job of its own: they say when and whether that very call may start.
ALONE = frozenset(
    (
        "after",
        "array",
        "at_most_once",
        "deadline",
        "hold",
        "key",
        "node_count",
        "nodes",
        "notify",
        "notify_to",
        "scheduling_timeout",
        "scheduling_timeout_s",
        "scheduling_timeout_seconds",
    )
)
# A function is no template, and may well have parameters of these names itself.
TERMS = frozenset((*READERS, *FIELDS, "resources", "key")) - {"template", "params", "rendered"}
_STABLE = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
)
_REMEMBERED = 256


class Recipe(NamedTuple):
    """How calls of one kind are asked for. `spec` lacks the array; `blobs` is what the function itself needs."""

    key: Any
    name: str
    spec: dict[str, Any]
    sealed: Sealed
    alone: bool


def needing(recipe: Recipe, refs: Sequence[str]) -> Recipe:
    """The same recipe for calls that need the results of other tasks."""
    given = recipe.spec.get("after", ())
    needs = (f"ok:{task}" for task in dict.fromkeys(refs))
    return recipe._replace(
        spec={**recipe.spec, "after": [*given, *(need for need in needs if need not in given)]}
    )


class Recipes:
    """All recipes that a client has used lately. Safe to use from several threads: entries are only ever replaced."""

    def __init__(self) -> None:
        self._sealed: weakref.WeakKeyDictionary[Any, tuple[Any, Sealed]] = weakref.WeakKeyDictionary()
        self._known: dict[Any, Recipe] = {}

    def find(self, function: Callable[..., Any], terms: Mapping[str, Any], owner: Any = None) -> Recipe:
        """The recipe of a function under these keywords; raises where either cannot be used."""
        sealed = self.seal(function)
        key = (sealed.digest, _spell(terms), os.getcwd() if terms.get("workdir") is None else "", owner)
        known = self._known.get(key)
        if known is None:
            known = _write(key, sealed, terms)
            if len(self._known) >= _REMEMBERED:
                self._known = {}
            self._known[key] = known
        return known

    def seal(self, function: Callable[..., Any]) -> Sealed:
        """Pack a function, or take it as it was packed before where nothing about it can have changed."""
        mark = _fingerprint(function)
        if mark is None:
            return seal(function)
        try:
            found = self._sealed.get(function)
            if found is None or found[0] != mark:
                found = self._sealed[function] = (mark, seal(function))
        except TypeError:  # cannot be remembered: no weak references, or no hash
            return seal(function)
        return found[1]


def _spell(terms: Mapping[str, Any]) -> Any:
    if not terms:
        return ()
    try:
        items = tuple(sorted(terms.items()))
        hash(items)
    except TypeError:
        return repr(sorted(terms.items(), key=lambda item: item[0]))
    return items


def _write(key: Any, sealed: Sealed, terms: Mapping[str, Any]) -> Recipe:
    wanted = {name: value for name, value in terms.items() if name != "key" and value is not None}
    spec = build_spec({}, wanted)
    spec = {"name": sealed.name, "cpu_milli": 1000, **spec, "function": sealed.function}
    if "min_cpu_cores" in spec and "cpu_milli" not in wanted:
        del spec["cpu_milli"]
    if spec.get("snapshot_id"):
        raise InvalidInput(
            "a function travels by itself, with the modules it names: `snapshot` is for commands and services"
        )
    if spec.get("environment"):
        raise InvalidInput(
            "calls of functions run in no environment that is built for them: name one that is on the workers "
            "(env={'VIRTUAL_ENV': '/opt/venvs/train'}), or run a command, for which `environment` is built"
        )
    spec["workdir"] = os.path.abspath(spec.get("workdir") or os.getcwd())
    check_spec(spec)
    alone = bool(sealed.refs) or any(terms.get(name) is not None for name in ALONE)
    recipe = Recipe(key, sealed.name, spec, sealed, alone)
    return needing(recipe, sealed.refs) if sealed.refs else recipe


def split_keywords(
    function: Callable[..., Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell the keywords of a submit from those of the function itself."""
    terms = {name: value for name, value in given.items() if name in TERMS}
    own = {name: value for name, value in given.items() if name not in TERMS}
    if not given:
        return terms, own
    parameters = _parameters(function)
    if parameters is None:
        return terms, own
    for name in terms:
        if name in parameters and parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY:
            raise InvalidInput(
                f"{name!r} is a keyword of submit and a parameter of the function as well: give it to the function by "
                f"its place, or as functools.partial(function, {name}=...)"
            )
    takes_any = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())
    for name in own:
        if name not in parameters and not takes_any:
            hint = suggest(name, sorted(TERMS))
            raise TypeError(f"{name!r} is neither a parameter of the function nor a keyword of submit{hint}")
    return terms, own


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """What a function takes, where that can be told; remembered, since looking takes longer than all else here."""
    try:
        return _remembered_parameters(function)
    except TypeError:  # cannot be remembered: no hash
        return _read_parameters(function)


def _read_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


_remembered_parameters = functools.lru_cache(maxsize=256)(_read_parameters)


# --- whether a function can have changed ----------------------------------------------------------------------------


def _fingerprint(function: Any) -> Any:
    """Something that differs once anything the function refers to was set anew; None where that cannot be told."""
    if isinstance(function, types.BuiltinFunctionType) and isinstance(function.__self__, types.ModuleType):
        return function.__qualname__
    if not isinstance(function, types.FunctionType):
        return None
    inner = "<locals>" in function.__qualname__ or hidden_modules.holds(function.__module__)
    if function.__module__ != "__main__" and not inner:
        # It goes by name: what the runner imports is what counts.
        return function.__code__
    marks: list[Any] = []
    return tuple(marks) if _mark(function, marks, 0) else None


def _mark(function: types.FunctionType, marks: list[Any], depth: int) -> bool:
    code, scope = function.__code__, function.__globals__
    marks += (id(code), function.__defaults__ and id(function.__defaults__), id(function.__dict__))
    if function.__kwdefaults__ or function.__dict__ or depth > 3:
        return False
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        return False
    named = [scope[name] for name in _names(code) if name in scope]
    for value in (*cells, *named, *(function.__defaults__ or ())):
        marks.append(id(value))
        if isinstance(value, types.FunctionType):
            if value is not function and not _mark(value, marks, depth + 1):
                return False
        elif not isinstance(value, _STABLE) or (isinstance(value, type) and value.__module__ == "__main__"):
            return False
    return True


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    inner = (name for item in code.co_consts if isinstance(item, types.CodeType) for name in _names(item))
    return tuple(dict.fromkeys((*code.co_names, *inner)))
