"""Functions as jobs: what `submit`, `map` and `result` mean for them. Shared by the async and the blocking face.

Everything here may be called from any thread but the loop's own: packing takes the caller's time, never the loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dray.client.calls.desk import CallDesk
from dray.client.calls.large_values import Blobs
from dray.client.calls.maps import MapResults, size_of, zip_items
from dray.client.calls.progress import make_progress
from dray.client.calls.recipes import TERMS, Recipe, Recipes, needing
from dray.client.futures.futures import CallFuture
from dray.core.model.specs.values import suggest
from dray.errors import InvalidInput
from dray.functions.envelope import tell_name
from dray.functions.values import pack_call

# Keywords that say something about one call and have no meaning for a whole map.
_NOT_FOR_MAPS = frozenset(("after", "array", "key", "nodes", "node_count"))


class Functions:
    """Functions of one client."""

    def __init__(self, desk: CallDesk, blobs: Blobs) -> None:
        self.desk, self.blobs = desk, blobs
        self._recipes = Recipes()

    def submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        terms: Mapping[str, Any],
        owner: Any = None,
        limit: int = 0,
    ) -> CallFuture[Any]:
        """Put one call in; `terms` are keywords of submit. Calls of one `owner` stay apart from those of others."""
        bare, own_terms = bare_function(function)
        if own_terms:
            terms = {**own_terms, **terms}
        packed = pack_call(tell_name(bare), args, kwargs)
        recipe = self._recipes.find(bare, terms, owner)
        if packed.refs:
            recipe = needing(recipe, packed.refs)._replace(alone=True)
        return self.desk.submit(recipe, packed, str(terms.get("key") or ""), limit)

    def map(
        self,
        function: Callable[..., Any],
        iterables: Sequence[Iterable[Any]],
        given: Mapping[str, Any],
        progress: bool | None = None,
        total: int | None = None,
        **wanted: Any,
    ) -> MapResults[Any]:
        """Begin a map: one array of its own."""
        if not iterables:
            raise TypeError("a map needs something to go over: hub.map(function, items)")
        recipe = self.recipe_of_map(function, given)
        known = total if total is not None else size_of(iterables)
        bar = make_progress(str(recipe.spec.get("name") or recipe.name), known, progress)
        return MapResults(self.desk, recipe, zip_items(iterables), progress=bar, **wanted)

    def recipe_of_map(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Recipe:
        """What the calls of a map have in common."""
        for name in given:
            if name not in TERMS:
                raise TypeError(f"{name!r} is not a keyword of map{suggest(name, sorted(TERMS))}")
            if name in _NOT_FOR_MAPS and given[name] is not None:
                raise InvalidInput(f"{name} says something about one call: use submit for each of them")
        bare, own_terms = bare_function(function)
        return self._recipes.find(bare, {**own_terms, **given})._replace(alone=False)


def bare_function(function: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A function made by `@dray.task` as the function itself and the keywords that it brings along."""
    terms = getattr(function, "__dray_terms__", None)
    if terms is None:
        return function, {}
    return function.__wrapped__, dict(terms)  # type: ignore[attr-defined]  # set by the same decorator
