"""`@dray.task`: a function that knows what it needs. Called as ever it runs here; `submit` and `map` send it out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from dray.client.calls.maps import MapResults
from dray.client.calls.recipes import TERMS
from dray.client.faces.default_hub import default_hub
from dray.client.futures.futures import CallFuture
from dray.core.model.specs.values import suggest

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function and the keywords of `submit` that it brings along."""

    def __init__(self, function: Callable[P, R], terms: Mapping[str, Any]) -> None:
        check_terms(terms)
        self.__wrapped__ = function
        self.__dray_terms__ = dict(terms)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it here and now, as the plain function."""
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        terms = ", ".join(f"{name}={value!r}" for name, value in self.__dray_terms__.items())
        return f"<task {self.__wrapped__.__qualname__}({terms})>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A task that another function refers to travels as the function and its keywords.
        return Task, (self.__wrapped__, self.__dray_terms__)

    def options(self, **terms: Any) -> Task[P, R]:
        """The same function with other keywords laid over its own."""
        return Task(self.__wrapped__, {**self.__dray_terms__, **terms})

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> CallFuture[R]:
        """Send one call out, to the hub that `dray.connect()` finds. All keywords go to the function."""
        return default_hub().submit_task(self, args, kwargs)

    def map(self, *iterables: Iterable[Any], **wanted: Any) -> MapResults[R]:
        """Call it once per item; keywords as for `Hub.map`."""
        return default_hub().map(self, *iterables, **wanted)


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(**terms: Any) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Callable[..., Any] | None = None, /, **terms: Any) -> Any:
    """Make a task of a function: `@dray.task` or `@dray.task(gpus=1, memory="8g")`."""
    if function is not None:
        return Task(function, terms)
    check_terms(terms)
    return lambda found: Task(found, terms)


def check_terms(terms: Mapping[str, Any]) -> None:
    """Refuse a keyword that submit would not know."""
    for name in terms:
        if name not in TERMS:
            raise TypeError(f"{name!r} is not a keyword of submit{suggest(name, sorted(TERMS))}")
