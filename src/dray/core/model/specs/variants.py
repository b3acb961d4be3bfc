"""A job's alternatives (`variants`): each laid over the job must give a job that could be accepted by itself.

Knows how one is laid over the other and which pairs contradict each other; what a sound field is says `check`,
which passes its rules in. The surprising rule: an alternative that says `gpu_count: 0` also drops what the job itself
asks of its cards, since a type or a size of card would ask for one again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dray.core.model.specs.spec import JobSpec, Variant
from dray.errors import Problem

MAX_VARIANTS = 16
VARIANT_FIELDS = Variant.__struct_fields__
_CARD_ASKS = ("gpu_type", "min_vram_gb", "vram_per_gpu_bytes", "gpu_milli", "gpu_backend")
Raw = Mapping[str, Any]


def lay_over(raw: Raw, variant: Raw) -> dict[str, Any]:
    """The job as it is asked for by one of its alternatives."""
    given = {name: value for name, value in variant.items() if value is not None and name != "name"}
    merged = {name: value for name, value in raw.items() if name != "variants"}
    if given.get("gpu_count") == 0:
        merged = {name: value for name, value in merged.items() if name not in _CARD_ASKS}
    env = {**(raw.get("env") or {}), **given.pop("env", {})}
    return merged | given | ({"env": env} if env else {})


def list_problems(variants: list[Any]) -> list[Problem]:
    """Faults of the list as such, before anything is laid over anything."""
    if not variants:
        return [Problem("variants", "is empty: list at least one alternative, or leave it out")]
    if len(variants) > MAX_VARIANTS:
        return [Problem("variants", f"holds {len(variants)} alternatives, the limit is {MAX_VARIANTS}")]
    problems, names = [], dict[str, int]()
    for number, variant in enumerate(variants):
        if not isinstance(variant, dict):
            problems.append(Problem(f"variants[{number}]", "must be an object: what differs from the job"))
            continue
        if not {name for name, value in variant.items() if value is not None} - {"name"}:
            what = "is empty: say what differs from the job, such as gpu_type or command"
            problems.append(Problem(f"variants[{number}]", what))
        name = variant.get("name")
        if isinstance(name, str) and name and names.setdefault(name, number) != number:
            what = f"{name!r} is the name of alternative {names[name]} already"
            problems.append(Problem(f"variants[{number}].name", what))
    return problems


def laid_problems(
    raw: Raw, variants: list[dict[str, Any]], judge: Callable[[Raw], list[Problem]]
) -> list[Problem]:
    """Faults that show when each alternative is laid over the job; one that all of them share is the job's own."""
    own = judge({name: value for name, value in raw.items() if name != "variants"})
    each = [judge(lay_over(raw, variant)) for variant in variants]
    shared = [problem for problem in own if all(problem in found for found in each)]
    apart = [
        Problem(f"variants[{number}].{problem.where}", problem.what)
        for number, found in enumerate(each)
        for problem in found
        if problem not in shared
    ]
    return shared + apart


def complete_variants(
    raw: Raw, base: JobSpec, variants: list[dict[str, Any]], complete: Callable[[Raw], JobSpec]
) -> tuple[list[Variant], list[Problem]]:
    """Each alternative as what truly differs from the job, in one spelling; and those that say the same twice."""
    made: list[Variant] = []
    seen: dict[bytes | str, int] = {}
    problems: list[Problem] = []
    for number, variant in enumerate(variants):
        whole = complete(lay_over(raw, variant))
        if variant.get("gpu_count") == 0 and whole.gpu_count:
            what = "is 0, but the device of the job asks for a card: give the alternative a device of its own"
            problems.append(Problem(f"variants[{number}].gpu_count", what))
        first = seen.setdefault(repr(whole), number)
        if first != number:
            problems.append(Problem(f"variants[{number}]", f"says the same as alternative {first}"))
        differs = {
            name: value
            for name in VARIANT_FIELDS
            if name not in ("name", "env") and (value := getattr(whole, name)) != getattr(base, name)
        }
        env = {name: value for name, value in whole.env.items() if base.env.get(name) != value}
        made.append(Variant(name=variant.get("name") or "", env=env, **differs))
    return made, problems
