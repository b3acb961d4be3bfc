"""What people write down of a workload, turned into `Terms`, or into every problem that it has at once.

Knows no state: whether a queue is there, or a member, is for the hub to see. What is laid under its jobs is checked as
a job would be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dray.core.model.ids import ID_RULE, is_id
from dray.core.model.labels import is_label_name
from dray.core.model.records.workload import MODES, SHARES, WHEN_SPENT, Terms
from dray.core.model.specs.check import MAX_PROBLEMS, check_spec
from dray.core.model.specs.values import has_more_than, plain_fault, quote, suggest, text_fault
from dray.core.model.units import parse_moment
from dray.core.model.workloads.laying import said_of_jobs
from dray.errors import InvalidInput, InvalidSpec, Problem

LARGE = 10**12
MAX_MEMBERS, MAX_SHARES, MAX_TITLE = 256, 256, 256
MAX_VALUES, MAX_BYTES = 5_000, 128 * 1024
# Whose a job is, when it starts and what it is made of is said of each.
_OWN = frozenset(
    "id user_id workload array after hold template params rendered function type replicas queue priority deadline"
    " labels interactive".split()
)
_FIELDS = Terms.__struct_fields__


def check_terms(raw: Any) -> Terms:
    """The terms of a document, or `InvalidSpec` with every problem."""
    _refuse(list(_outline_problems(raw)))
    try:
        terms = msgspec.convert({key: value for key, value in raw.items() if value is not None}, Terms)
    except msgspec.ValidationError as error:
        where, what = _spell(str(error))
        raise InvalidSpec(f"{where}: {what}", [Problem(where, what)]) from None
    problems = [
        *_text_problems(terms),
        *_number_problems(terms),
        *_distribution_problems(terms),
        *_default_problems(terms),
    ]
    _refuse(problems)
    return terms


def _outline_problems(raw: Any) -> Iterator[Problem]:
    if not isinstance(raw, Mapping):
        yield Problem("workload", f"must be an object with {', '.join(_FIELDS)}, got {quote(raw)}")
        return
    for key in raw:
        if key not in _FIELDS:
            yield Problem(str(key)[:64], f"is not a field of a workload{suggest(key, list(_FIELDS))}")
    if has_more_than(raw, MAX_VALUES):
        yield Problem("workload", f"holds more than {MAX_VALUES} values, the limit")
    elif fault := plain_fault(raw):
        yield Problem("workload", fault)
    elif (size := len(msgspec.msgpack.encode(raw))) > MAX_BYTES:
        yield Problem("workload", f"takes {size} bytes, the limit is {MAX_BYTES}")


def _spell(text: str) -> tuple[str, str]:
    """What msgspec says of a value, in the words of problems."""
    what, _, place = text.partition(" - at `$")
    where = place.rstrip("`").lstrip(".").replace("[...]", "") or "workload"
    return where, what[:1].lower() + what[1:]


def _text_problems(terms: Terms) -> Iterator[Problem]:
    if len(terms.title) > MAX_TITLE or text_fault(terms.title) or not terms.title.isprintable():
        yield Problem("title", f"must be at most {MAX_TITLE} printable characters")
    if len(terms.members) > MAX_MEMBERS:
        yield Problem("members", f"holds {len(terms.members)} users, the limit is {MAX_MEMBERS}")
    for member in terms.members:
        if not is_id(member):
            yield Problem("members", f"{quote(member)} is no user: one is {ID_RULE}")
    if terms.deadline:
        try:
            parse_moment(terms.deadline)
        except InvalidInput as error:
            yield Problem("deadline", str(error))
    if terms.budget.when_spent not in WHEN_SPENT:
        near = suggest(terms.budget.when_spent, WHEN_SPENT)
        what = f"must be one of {', '.join(WHEN_SPENT)}, got {quote(terms.budget.when_spent)}{near}"
        yield Problem("budget.when_spent", what)


def _number_problems(terms: Terms) -> Iterator[Problem]:
    objective = terms.objective
    amounts = {
        "budget.money": terms.budget.money,
        "budget.gpu_hours": terms.budget.gpu_hours,
        "width": terms.width,
        "distribution.max_skew": terms.distribution.max_skew,
        **{f"objective.{name}": getattr(objective, name) for name in ("cost", "performance")},
        **{f"objective.{name}": getattr(objective, name) for name in ("reliability", "latency")},
    }
    for where, value in amounts.items():
        if not math.isfinite(value) or not 0 <= value <= LARGE:
            yield Problem(where, f"must be 0 or more, at most {LARGE:,}, got {value:g}")
    if not 0 <= terms.failures <= 1:
        yield Problem(
            "failures", f"is a share of its tasks: from 0 to 1, or `5%` in a file, got {terms.failures:g}"
        )


def _distribution_problems(terms: Terms) -> Iterator[Problem]:
    lies = terms.distribution
    if lies.mode not in MODES:
        what = f"must be one of {', '.join(MODES)}, got {quote(lies.mode)}{suggest(lies.mode, MODES)}"
        yield Problem("distribution.mode", what)
    if lies.by and not is_label_name(lies.by):
        yield Problem("distribution.by", f"{quote(lies.by)} is not the name of a worker label")
    if bool(lies.shares) != (lies.mode == SHARES):
        yield Problem("distribution.shares", "goes with the mode shares, and is needed there")
    if len(lies.shares) > MAX_SHARES:
        yield Problem("distribution.shares", f"holds {len(lies.shares)} values, the limit is {MAX_SHARES}")
    if lies.mode == SHARES and not lies.by:
        yield Problem(
            "distribution.by", "is missing: shares are of the values of a worker label, as in by: provider"
        )
    for name, share in lies.shares.items():
        if not math.isfinite(share) or not 0 < share <= LARGE:
            yield Problem(f"distribution.shares.{name[:64]}", f"must be above 0, got {share:g}")
    if lies.required and lies.mode not in ("spread", SHARES, "capacity"):
        what = f"goes with spread, capacity and shares: nothing can be too much in the mode {lies.mode}"
        yield Problem("distribution.required", what)
    if lies.required and not lies.max_skew:
        yield Problem(
            "distribution.max_skew", "must be 1 or more where it is required: else nothing could start"
        )


def _default_problems(terms: Terms) -> Iterator[Problem]:
    """As a job with nothing of its own would be checked."""
    own = [key for key in terms.defaults if key in _OWN]
    for key in own:
        yield Problem(
            f"defaults.{key}", "is said of the workload as a whole, or of each job: not of all its jobs alike"
        )
    if own:
        return
    try:
        check_spec({"command": ["true"], **terms.defaults, **said_of_jobs(terms)})
    except InvalidSpec as fault:
        for problem in fault.problems:
            of_all = problem.where.partition(".")[0] in ("queue", "priority", "deadline", "labels")
            yield Problem(problem.where if of_all else f"defaults.{problem.where}", problem.what)


def _refuse(problems: list[Problem]) -> None:
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}{more}", problems[:MAX_PROBLEMS])
