"""How queues, quotas, paces and values in force look to a person; reads documents and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dray.cli.base.policy_text import spell_value
from dray.cli.base.render import (
    Column,
    clean,
    draw_pairs,
    draw_table,
    has_colour,
    local_time,
    short_span,
    span_between,
    terminal_width,
)
from dray.core.model.units import format_bytes

Document = Mapping[str, Any]
QUEUE_COLUMNS = (
    Column("QUEUE", least=8, cosy=12),
    Column("ORDER", drop=4),
    Column("WEIGHT", drop=5, right=True),
    Column("WAITING", right=True),
    Column("RUNNING", right=True),
    Column("GPUS", drop=3, right=True, dull="0"),
    Column("OLDEST", drop=2, right=True),
    Column("P50", drop=6, right=True),
    Column("P90", drop=6, right=True),
    Column("STARTS/MIN", drop=7, right=True),
    Column("ENDS/MIN", drop=8, right=True),
)
LINE_COLUMNS = (
    Column("PLACE", right=True),
    Column("JOB"),
    Column("NAME", least=6, drop=1, cosy=12),
    Column("USER", least=4, drop=2),
    Column("PRIO", drop=3, right=True),
    Column("TASKS", right=True),
    Column("WAITED", right=True),
)
QUOTA_COLUMNS = (
    Column("FOR"),
    Column("NAME", least=6, cosy=12),
    Column("GPUS", right=True),
    Column("CPUS", drop=4, right=True, dull="-"),
    Column("MEM", drop=4, right=True, dull="-"),
    Column("TASKS", drop=2, right=True),
    Column("JOBS", drop=5, right=True, dull="-"),
    Column("PRIO", drop=5, right=True, dull="-"),
    Column("GPU-HOURS", right=True),
    Column("SOFT", drop=1, right=True),
    Column("HARD", right=True),
    Column("PER", drop=3, right=True),
    Column("STANDING"),
)


def draw_queues(queues: Sequence[Document], width: int | None = None) -> str:
    """The table of `queue ls`."""
    rows = [
        [
            str(queue.get("name", "")),
            str(queue.get("policy", "")),
            f"{queue.get('weight', 1):g}",
            str(queue.get("waiting", 0)),
            str(queue.get("running", 0)),
            _tell_held(queue),
            _tell_span(queue.get("oldest_wait_s")),
            _tell_span(queue.get("wait_p50_s")),
            _tell_span(queue.get("wait_p90_s")),
            _tell_rate(queue.get("starts_per_min_5m")),
            _tell_rate(queue.get("ends_per_min_5m")),
        ]
        for queue in queues
    ]
    return draw_table(QUEUE_COLUMNS, rows, width or terminal_width(), has_colour())


def draw_queue(queue: Document) -> str:
    """All that `queue show` tells."""
    pairs = [
        ("queue", f"{queue.get('name', '')}{'' if queue.get('listed') else ' (not named in the policy)'}"),
        ("order", f"{queue.get('policy', '')}, weight {queue.get('weight', 1):g}"),
        ("ageing", _tell_rule(queue.get("ageing_s"), "one more point of priority per {}")),
        ("protected", _tell_rule(queue.get("protect_after_s"), "after waiting for {}")),
        ("waiting", _tell_waiting(queue)),
        ("running", f"{_count(queue.get('running', 0), 'task')}, {_tell_held(queue)} GPUs"),
        ("starts", _tell_rates(queue, "starts")),
        ("ends", _tell_rates(queue, "ends")),
        ("waits", _tell_waits(queue)),
    ]
    line = queue.get("line") or []
    if not line:
        return draw_pairs(pairs)
    rows = [
        [
            str(entry.get("place", "")),
            f"{entry.get('job_id', '')}{'' if entry.get('task') is None else '/' + str(entry['task'])}",
            str(entry.get("name") or "-"),
            str(entry.get("user") or "-"),
            str(entry.get("priority", 0)),
            str(entry.get("tasks", 0)),
            span_between(entry.get("submitted_at"), None) or "-",
        ]
        for entry in line
    ]
    return f"{draw_pairs(pairs)}\n\n{draw_table(LINE_COLUMNS, rows, terminal_width(), has_colour())}"


def draw_quotas(quotas: Sequence[Document]) -> str:
    """The table of `quota`."""
    rows = [
        [
            str(quota.get("kind", "")),
            str(quota.get("name", "")),
            _tell_held(quota),
            _of(f"{quota.get('cpus_held') or 0:g}", quota.get("cpus_limit")),
            _of(format_bytes(quota.get("memory_held") or 0), quota.get("memory_limit"), format_bytes),
            _of(str(quota.get("running", 0)), quota.get("tasks_limit"), shown=True),
            "-" if quota.get("jobs_limit") is None else f"≤ {quota['jobs_limit']}",
            "-" if quota.get("priority_limit") is None else f"≤ {quota['priority_limit']}",
            _tell_number(quota.get("gpu_hours_used")),
            _tell_number(quota.get("gpu_hours_soft")),
            _tell_number(quota.get("gpu_hours_hard")),
            spell_value("period_s", quota.get("period_s")),
            str(quota.get("standing", "")),
        ]
        for quota in quotas
    ]
    return draw_table(QUOTA_COLUMNS, rows, terminal_width(), has_colour())


def _of(held: str, limit: Any, spell: Callable[[Any], str] = "{:g}".format, shown: bool = False) -> str:
    """What is held of what may be; without a limit only what is always shown."""
    if limit is None:
        return held if shown else "-"
    return f"{held}/{spell(limit)}"


def draw_paces(answer: Document) -> str:
    """The table of `pace`: buckets and caps."""
    columns = (
        Column("WHAT"),
        Column("FOR"),
        Column("NAME", least=8, cosy=12),
        Column("LIMIT"),
        Column("BURST", right=True),
        Column("NOW"),
    )
    rows = []
    for part in ("submits", "starts"):
        for bucket in answer.get(part) or []:
            tokens = bucket.get("tokens")
            now = (
                "-"
                if tokens is None
                else f"{_tell_number(tokens)} to spare"
                if tokens >= 0
                else f"{_tell_number(-tokens)} in debt"
            )
            limit = f"{_tell_number(bucket.get('per_minute', 0))} a minute"
            rows.append(
                [part, str(bucket.get("kind")), str(bucket.get("name")), limit, str(bucket.get("burst")), now]
            )
    for cap in answer.get("running") or []:
        limit = f"{cap.get('most')} at once"
        rows.append(["running", "label", str(cap.get("label")), limit, "-", f"{cap.get('running')} running"])
    return draw_table(columns, rows, terminal_width(), has_colour())


def draw_values(tables: Mapping[str, Sequence[Document]]) -> str:
    """The table of `config show`: what holds, and why."""
    columns = (
        Column("NAME", least=16, cosy=30),
        Column("VALUE", least=8, cosy=20),
        Column("ORIGIN", least=7),
    )
    rows = [
        [
            f"{title}.{item.get('name', '')}",
            spell_value(str(item.get("name", "")), item.get("value")) or "-",
            _tell_origin(str(item.get("origin", ""))),
        ]
        for title, values in tables.items()
        for item in values
    ]
    return draw_table(columns, rows, terminal_width(), has_colour())


def draw_changes(changes: Sequence[Document]) -> str:
    """What a policy changes, value by value."""
    columns = (Column("NAME", least=16), Column("OLD", least=6), Column("NEW", least=6))
    rows = [
        [
            str(item.get("name", "")),
            spell_value(str(item.get("name", "")), item.get("old")),
            spell_value(str(item.get("name", "")), item.get("new")),
        ]
        for item in changes
    ]
    return draw_table(columns, rows, terminal_width(), has_colour())


def _tell_origin(origin: str) -> str:
    before, mark, when = origin.partition(" at ")
    return clean(f"{before} at {local_time(when) or when}" if mark else origin)


def _tell_held(document: Document) -> str:
    limit = document.get("gpus_limit")
    held = f"{document.get('gpus_held', 0):g}"
    return held if limit is None else f"{held}/{limit:g}"


def _tell_waiting(queue: Document) -> str:
    oldest = queue.get("oldest_wait_s")
    since = f", the oldest for {short_span(oldest)}" if oldest is not None else ""
    return f"{_count(queue.get('waiting', 0), 'task')}{since}"


def _tell_rates(queue: Document, what: str) -> str:
    recent, hour = queue.get(f"{what}_per_min_5m") or 0, queue.get(f"{what}_per_min_1h") or 0
    return f"{_tell_number(recent)} a minute over 5 minutes, {_tell_number(hour)} over the last hour"


def _tell_waits(queue: Document) -> str:
    half, most = queue.get("wait_p50_s"), queue.get("wait_p90_s")
    if half is None or most is None:
        return ""
    return f"half of the last starts within {short_span(half)}, nine in ten within {short_span(most)}"


def _tell_rule(seconds: Any, words: str) -> str:
    return words.format(spell_value("x_s", seconds)) if seconds else "off"


def _tell_span(seconds: Any) -> str:
    return "-" if seconds is None else short_span(seconds)


def _tell_rate(rate: Any) -> str:
    return _tell_number(rate) if rate else "-"


def _tell_number(value: Any) -> str:
    """Three figures, or all those before the point: nobody reads 1.2e+04 in a table."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
