"""How workloads look on a terminal: a table of many, one screen for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dray.cli.base.render import (
    Column,
    clean,
    draw_pairs,
    draw_table,
    has_colour,
    local_time,
    paint,
    span_between,
    tell_money,
    terminal_width,
)

_COLUMNS = (
    Column("WORKLOAD"),
    Column("STATE"),
    Column("USER", drop=2),
    Column("RUN", right=True),
    Column("DONE", right=True),
    Column("FAILED", right=True),
    Column("OF", right=True),
    Column("GPU-HOURS", right=True, drop=3),
    Column("DEADLINE", drop=1, dull="-"),
    Column("TITLE", least=8, drop=1, cosy=30),
)
_BAR = 40
_FAILED = ("failed", "worker_failed", "unschedulable")


def draw_workloads(found: Sequence[Mapping[str, Any]]) -> str:
    """Many of them, newest first."""
    rows = [
        [
            one["id"],
            one["state"],
            clean(one["user"]),
            f"{one['tasks']['running']:,}",
            f"{one['tasks']['succeeded']:,}",
            f"{count_failed(one['tasks']):,}",
            f"{one['tasks']['total']:,}",
            _tell_spent(one["spent"]["gpu_hours"], one["budget"]["gpu_hours"]),
            local_time(one["deadline"]) or "-",
            clean(one["title"]),
        ]
        for one in found
    ]
    return draw_table(_COLUMNS, rows, terminal_width(), has_colour())


def count_failed(tasks: Mapping[str, int]) -> int:
    """Tasks that ended as somebody's fault."""
    return sum(tasks[word] for word in _FAILED)


def draw_workload(one: Mapping[str, Any]) -> str:
    """One of them: state, bar, purse, deadline, where, verdict."""
    tasks, budget, spent = one["tasks"], one["budget"], one["spent"]
    state = paint(one["state"]) + (", sealed" if one["sealed"] else "")
    pairs = [
        ("workload", one["id"] + (f" ({clean(one['title'])})" if one["title"] else "")),
        ("state", state),
        ("reason", clean(one["reason"])),
        (
            "tasks",
            f"{_bar(tasks)} {tasks['succeeded'] + count_failed(tasks) + tasks['killed']:,} of {tasks['total']:,}",
        ),
        ("", _tell_counts(tasks)),
        ("jobs", f"{one['jobs']['total']:,}, {one['jobs']['ended']:,} ended"),
        ("width", str(one["width"] or "")),
        ("GPU-hours", _tell_spent(spent["gpu_hours"], budget["gpu_hours"])),
        ("money", _tell_money(spent["money"], budget["money"])),
        ("when spent", budget["when_spent"] if budget["gpu_hours"] or budget["money"] else ""),
        ("deadline", local_time(one["deadline"])),
        (
            "failures",
            f"{one['failed_share']:.1%}, {one['failures']:.1%} may fail" if count_failed(tasks) else "",
        ),
        ("lies", _tell_lies(one["distribution"])),
        ("user", clean(one["user"]) + (f", members {', '.join(one['members'])}" if one["members"] else "")),
        ("defaults", _tell_defaults(one)),
        ("created", local_time(one["created_at"])),
        ("took", span_between(one["started_at"], one["ended_at"]) if one["ended_at"] else ""),
        ("health", _tell_health(one.get("health"))),
    ]
    return draw_pairs(pair for pair in pairs if pair[1])


def _bar(tasks: Mapping[str, int]) -> str:
    total = max(1, tasks["total"])
    done = round(_BAR * tasks["succeeded"] / total)
    failed = -(-_BAR * (count_failed(tasks) + tasks["killed"]) // total)
    running = -(-_BAR * tasks["running"] // total)
    return f"[{'#' * done}{'x' * failed}{'>' * running}".ljust(_BAR + 1, ".")[: _BAR + 1] + "]"


def _tell_counts(tasks: Mapping[str, int]) -> str:
    words = ("pending", "running", "succeeded", *_FAILED, "killed")
    return ", ".join(f"{tasks[word]:,} {word.replace('_', ' ')}" for word in words if tasks[word])


def _tell_spent(used: float, most: float) -> str:
    if most:
        return f"{used:.4g} of {most:g}"
    return f"{used:.4g}" if used else ""


def _tell_money(used: float, most: float) -> str:
    if most:
        return f"{tell_money(used)} of {tell_money(most)}"
    return tell_money(used) if used else ""


def _tell_lies(lies: Mapping[str, Any]) -> str:
    if lies["mode"] == "site":
        return ""
    shares = ", ".join(f"{name} {share:g}" for name, share in lies["shares"].items())
    by = f" by {lies['by']}" if lies["by"] else ""
    needed = f", required within {lies['max_skew']}" if lies["required"] else ""
    return f"{lies['mode']}{by}{f' ({shares})' if shares else ''}{needed}"


def _tell_defaults(one: Mapping[str, Any]) -> str:
    said = {"queue": one["queue"], "priority": one["priority"], **one["defaults"]}
    told = [f"{name}={value}" for name, value in said.items() if value not in ("", None)]
    return clean(", ".join([*told, *(f"{key}={value}" for key, value in one["labels"].items())]))


def _tell_health(health: Mapping[str, Any] | None) -> str:
    if not health:
        return ""
    reasons = "; ".join(health["reasons"])
    return f"{health['verdict']}{f': {clean(reasons)}' if reasons else ''}"


_PARTS = (
    Column("PLACE"),
    Column("RUNNING", right=True),
    Column("SHARE", right=True),
    Column("WANTED", right=True),
)


def draw_parts(found: Mapping[str, Any]) -> str:
    """Where its tasks run."""
    rows = [
        [clean(one["value"]) or "-", f"{one['running']:,}", f"{one['share']:.0%}", f"{one['wanted']:.0%}"]
        for one in found["parts"]
    ]
    return draw_table(_PARTS, rows, terminal_width(), has_colour())
