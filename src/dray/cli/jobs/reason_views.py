"""How the answers of `why` and `plan` look to a person; reads documents of the API and nothing else.

Sentences come from the hub, which words every reason once; here they are only put in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dray.cli.base.render import Column, clean, draw_table, has_colour, paint, tell_money, terminal_width
from dray.core.model.units import format_seconds

Document = Mapping[str, Any]
MOST_LINES = 12
PLACE_COLUMNS = (
    Column("TASKS", right=True),
    Column("WORKER", least=8),
    Column("GPUS"),
    Column("ALTERNATIVE", drop=1, dull="-"),
)
VICTIM_COLUMNS = (
    Column("TASK", least=8),
    Column("USER", drop=2),
    Column("WORKER", least=8),
    Column("PRIO", right=True),
    Column("RAN", right=True),
    Column("LOST", right=True),
    Column("GRACE", right=True, drop=1),
)

# A job that has waited for less is asked about because it waits at all.
LEAST_WAIT_S = 10


def draw_why(job_id: str, answer: Document) -> str:
    """The answer of `why`: the summary, what is in the way, who comes first, when it starts, and the way out."""
    lines = [f"{job_id}: {paint(str(answer.get('state', '')))}", clean(str(answer.get("summary") or ""))]
    lines += _tell_learned(answer)
    lines += _tell_failures(answer.get("failures") or [])
    barriers = [b for b in answer.get("blockers") or [] if not b.get("workers")]
    rules = [b for b in answer.get("blockers") or [] if b.get("workers")]
    lines += _list("In the way:", [_message(item) for item in [*barriers, *rules]])
    lines += _list("Workers:", _tell_classes(answer))
    lines += _list("Held by:", [_message(item) for item in answer.get("holders") or []])
    lines += _list("Workers to come:", [clean(str(line)) for line in answer.get("launches") or []])
    ahead = [answer.get("place"), answer.get("preemption"), answer.get("start"), answer.get("estimate")]
    lines += _list("When:", [_message(item) for item in ahead if item])
    lines += _list(
        "Until now:" if answer.get("place") else "How it waited:", _tell_waits(answer.get("waits"))
    )
    lines += _tell_fix(answer, job_id)
    return "\n".join(lines)


def _tell_waits(waits: Document | None) -> list[str]:
    """What was in its way, the longest first; of a moment nobody asks why."""
    if waits is None or waits["seconds"] < LEAST_WAIT_S:
        return []
    return [f"{format_seconds(part['seconds'])} {clean(part['words'])}" for part in waits["parts"]]


def _tell_learned(answer: Document) -> list[str]:
    return [f"It {clean(str(answer['learned']))}."] if answer.get("learned") else []


def _tell_failures(failures: Sequence[Document]) -> list[str]:
    """Why tasks failed: each verdict with its evidence and the one thing to do next."""
    lines: list[str] = []
    for failure in failures:
        count, first = failure.get("tasks") or 1, str(failure.get("task_id") or "")
        where = (
            f" ({count} tasks, the first is {first})" if count > 1 else f" ({first})" if "/" in first else ""
        )
        lines += ["", f"Because: {clean(str(failure.get('title') or failure.get('kind')))}{where}"]
        lines += [f"  {clean(str(line))}" for line in failure.get("evidence") or []]
        lines.append(f"Next: {clean(str(failure.get('step') or ''))}")
    return lines


def draw_plan(name: str, answer: Document) -> str:
    """The answer of `plan`: where it would go, how good those places are, at whose cost, or why not."""
    lines = [f"{clean(name)}: {clean(str(answer.get('summary') or ''))}", *_tell_learned(answer)]
    if answer.get("placements"):
        lines += ["", _draw_placements(answer["placements"])]
    if answer.get("candidates"):
        total = answer.get("candidates_total") or len(answer["candidates"])
        lines += ["", f"Best of {total:,} worker{'' if total == 1 else 's'} with room:"]
        lines.append(_draw_candidates(answer["candidates"]))
    if answer.get("choices"):
        lines += ["", "By money and time:", draw_choices(answer["choices"])]
        lines += [f"Chosen: {clean(str(answer['chosen']))}."] if answer.get("chosen") else []
    lines += _tell_strategy(answer.get("placement") or {})
    if answer.get("victims"):
        lost = format_seconds(answer.get("lost_s") or 0)
        lines += ["", f"Would be stopped for it ({answer.get('rule')}), {lost} of work lost:"]
        lines.append(_draw_victims(answer["victims"]))
    lines += _list("Quotas:", [_tell_use(use) for use in answer.get("quotas") or []])
    if not answer.get("starts_now"):
        blockers = [_message(item) for item in answer.get("blockers") or []]
        lines += _list("In the way:", blockers)
        lines += _list("Held by:", [_message(item) for item in answer.get("holders") or []])
        ahead = [answer.get("place"), answer.get("earliest"), answer.get("estimate")]
        lines += _list("When:", [_message(item) for item in ahead if item])
    lines += _tell_fix(answer, "")
    return "\n".join(lines)


def draw_comparison(answer: Document) -> str:
    """A row for each strategy."""
    columns = (
        Column("STRATEGY", least=8),
        Column("PLACED", right=True),
        Column("COST", right=True),
        Column("WORKERS", right=True),
        Column("TOOK", right=True),
        Column("", least=0),
    )
    rows = [
        [
            clean(one["strategy"]),
            str(one["placed"]),
            "-" if one["trouble"] else f"{one['cost']:.2f}",
            str(one["workers"]),
            f"{one['seconds'] * 1000:.0f} ms",
            clean(one["trouble"]),
        ]
        for one in answer["outcomes"]
    ]
    head = f"the first {answer['tasks']:,} tasks in line that can be placed together; nothing was placed"
    return "\n".join([head, draw_table(columns, rows, terminal_width(), has_colour())])


def _tell_strategy(placement: Document) -> list[str]:
    """By which strategy, where that was left open: who has chosen it knows."""
    if not placement.get("automatic"):
        return []
    why = clean(str(placement.get("why") or ""))
    return [f"Placed by {placement['strategy']} (auto, rule {placement['rule']}): {why}."]


def draw_choices(choices: Sequence[Document]) -> str:
    """Providers and cards with money and time; below them where the hours come from."""
    columns = (
        Column("PROVIDER", least=8, cosy=16),
        Column("GPU", least=6, cosy=20),
        Column("ROOM", right=True),
        Column("PRICE/H", right=True),
        Column("RUN", right=True),
        Column("P90", drop=2, right=True),
        Column("MONEY", right=True),
        Column("IN TIME", drop=1),
        Column("SUCCESS", drop=3, right=True),
        Column("HEALTH", drop=4),
    )
    rows = [
        [
            (clean(str(one["provider"])) or "-")
            + (f" ({clean(one['variant'])})" if one.get("variant") else ""),
            clean(str(one["gpu_type"])),
            f"{one['workers_with_room']}/{one['workers']}",
            tell_money(one["price_per_hour"]) + ("" if one.get("priced", True) else "?"),
            tell_hours(one["hours_p50"]),
            tell_hours(one["hours_p90"]),
            tell_money(one["money"]),
            "yes" if one["in_time"] else "no",
            f"{one['success']:.1%}",
            one["health"],
        ]
        for one in choices
    ]
    sources = dict.fromkeys(str(one["hours_from"]) for one in choices)
    notes = [f"Run times: {'; '.join(map(clean, sources))}."]
    if not all(one.get("priced", True) for one in choices):
        notes.append("? the price list leaves this card out: the dearest that it names was taken.")
    return "\n".join([draw_table(columns, rows, terminal_width(), has_colour()), *notes])


def tell_hours(hours: float) -> str:
    """Hours as people read them: short runs by their minutes or seconds."""
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{hours * 60:.1f} min" if hours * 60 >= 1 else f"{hours * 3600:.1f} s"


def _tell_fix(answer: Document, job_id: str) -> list[str]:
    change: Document = answer.get("change") or {}
    told = []
    if change:
        command = f": dray set {job_id} {change['assign']}" if job_id and change.get("assign") else ""
        where = f" (on {change['worker']})" if change.get("worker") else ""
        told.append(clean(f"{change.get('message')}{where}{command}"))
    if answer.get("fix"):
        told.append(clean(str(answer["fix"])))
    return ["", *(f"Fix: {words}" for words in told)] if told else []


def _list(title: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    shown = [f"  - {item}" for item in items[:MOST_LINES]]
    more = [f"  - and {len(items) - MOST_LINES} more (-o json)"] if len(items) > MOST_LINES else []
    return ["", title, *shown, *more]


def _message(item: Document) -> str:
    variant = item.get("variant")
    lead = f"alternative {variant}: " if isinstance(variant, int) and variant else ""
    return clean(f"{lead}{item.get('message') or item.get('kind')}")


def _tell_classes(answer: Document) -> list[str]:
    """Classes of worker; a handful of workers are told one by one, by name."""
    workers = answer.get("workers") or []
    total = answer.get("workers_total") or len(workers)
    if (
        total > len(workers)
        or total > 6
        or any(group.get("variant") for group in answer.get("classes") or [])
    ):
        return [_message(group) for group in answer.get("classes") or []]
    groups: dict[str, list[str]] = {}
    for worker in workers:
        reasons = [str(item.get("message") or item.get("kind")) for item in worker.get("rejections") or []]
        groups.setdefault("; ".join(reasons) or "would fit", []).append(str(worker.get("id", "")))
    return [f"{_name_workers(names)}: {clean(reason)}" for reason, names in groups.items()]


def _name_workers(names: list[str]) -> str:
    if len(names) <= 3:
        return ", ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more"


def _draw_placements(placements: Sequence[Document]) -> str:
    """Tasks that go to the same place are one line."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place in placements:
        cards = ",".join(map(str, place.get("devices") or [])) or "-"
        key = (str(place.get("worker")), cards, str(place.get("variant") or "-"))
        groups.setdefault(key, []).append(int(place.get("task") or 0))
    rows = [[_span(tasks), *key] for key, tasks in groups.items()]
    return draw_table(PLACE_COLUMNS, rows, terminal_width(), has_colour())


def _span(tasks: list[int]) -> str:
    if len(tasks) > 1 and tasks[-1] - tasks[0] == len(tasks) - 1:
        return f"{tasks[0]}-{tasks[-1]}"
    return ",".join(map(str, tasks[:4])) + (f" and {len(tasks) - 4} more" if len(tasks) > 4 else "")


def _draw_candidates(candidates: Sequence[Document]) -> str:
    terms = list(dict.fromkeys(name for each in candidates for name in each.get("terms") or {}))
    columns = (
        Column("WORKER", least=8),
        Column("SCORE", right=True),
        *(Column(name.upper(), right=True, drop=1) for name in terms),
        Column("GPUS", drop=2),
        Column("ALTERNATIVE", drop=3),
    )
    rows = [
        [
            str(each.get("worker")),
            str(each.get("score")),
            *(f"{(each.get('terms') or {}).get(name, 0):.2f}" for name in terms),
            ",".join(map(str, each.get("devices") or [])) or "-",
            str(each.get("variant") or "-"),
        ]
        for each in candidates
    ]
    return draw_table(columns, rows, terminal_width(), has_colour())


def _draw_victims(victims: Sequence[Document]) -> str:
    rows = [
        [
            str(victim.get("task_id") or "-"),
            str(victim.get("user") or "-"),
            _tell_worker(victim),
            str(victim.get("priority")),
            format_seconds(victim.get("ran_s") or 0),
            format_seconds(victim.get("lost_s") or 0),
            format_seconds(victim.get("grace_s") or 0),
        ]
        for victim in victims
    ]
    return draw_table(VICTIM_COLUMNS, rows, terminal_width(), has_colour())


def _tell_worker(victim: Document) -> str:
    to = victim.get("moved_to")
    return f"{victim.get('worker')}, moves to {to}" if to else str(victim.get("worker"))


def _tell_use(use: Document) -> str:
    return clean(
        f"{use['kind']} of {use['whose']}: {use['used']:.4g} of {use['limit']:g} {use['unit']} used, "
        f"{use['after']:.4g} after its start"
    )


def draw_estimates(answer: Document) -> str:
    """How good start-time estimates were."""
    if not answer.get("every_s"):
        return "start times are not estimated here (estimate_every_s is 0)"
    judged = answer.get("judged") or 0
    if not judged:
        return "no task that had an estimate has started yet: `dray why` and `dray ps` ask for estimates"
    return "\n".join(
        [
            f"The last {judged:,} starts that had an estimate, by the first one they got:",
            f"  half of them were off by less than {format_seconds(answer['error_p50_s'])}",
            f"  nine of ten were off by less than {format_seconds(answer['error_p90_s'])}",
            f"  {100 * answer['later_than_p50']:.0f}% came later than the middle estimate (50% would be right)",
            f"  {100 * answer['within_p90']:.0f}% came within the p90 estimate (90% would be right)",
        ]
    )
