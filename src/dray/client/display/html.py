"""Documents of the hub as HTML for a notebook: pure, and nothing of a document reaches the page unescaped.

Every text here may come from somebody else: names of jobs, output of tasks, errors. Only `tag` makes markup, and it
escapes what it is given; what it made is `Markup` and passes. No script and no outside resource: a notebook that is
opened elsewhere shows the last picture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dray.core.model.units import format_seconds

Document = Mapping[str, Any]
COLOURS = {"succeeded": "#2e7d32", "running": "#1565c0", "pending": "#b26a00", "killed": "#616161"}
FAILED = "#c62828"
SHOWN_LINES = 8
SHOWN_LETTERS = 400
_STYLE = "font-family:ui-monospace,monospace;font-size:12px;line-height:1.5"
_BAR = "display:inline-block;width:16em;height:0.7em;border:1px solid #8888;vertical-align:middle"
_BOX = "white-space:pre-wrap;margin:2px 0;padding:2px 6px;border-left:3px solid #8886"
# The standard library's own would load all names of letters that HTML knows.
_UNSAFE = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
# Colours and movements of a terminal, and what no page shows.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)|[\x00-\x08\x0b-\x1f\x7f]")


class Markup(str):
    """Text that is HTML already; only `tag` and `join` make it."""

    __slots__ = ()


def tag(name: str, *content: str, style: str = "") -> Markup:
    """One element; what it holds is escaped unless it is markup itself."""
    made = f' style="{style.translate(_UNSAFE)}"' if style else ""
    return Markup(f"<{name}{made}>{join(*content)}</{name}>")


def join(*content: str) -> Markup:
    """Parts one after the other, escaped unless they are markup."""
    return Markup("".join(part if isinstance(part, Markup) else part.translate(_UNSAFE) for part in content))


def draw_job(document: Document, why: Document | None = None, output: str = "") -> Markup:
    """A job, or one task of it: state, how far, why it waits or how it ended, its last lines."""
    facts = [_tell_tasks(document), _tell_place(document), _tell_times(document)]
    rows = [_head(str(document["id"]), str(document.get("name") or ""), str(document["state"]), facts)]
    rows += _progress(document)
    rows += _waiting(document, why)
    rows += _ending(document)
    if lines := last_lines(output):
        rows.append(tag("div", "\n".join(lines), style=_BOX))
    return _frame(rows)


def draw_map(
    name: str, job: str, done: int, total: int, more: bool, spent_s: float, why: Document | None
) -> Markup:
    """A map: how many of its calls have ended, and how long the rest takes at this rate."""
    lives = more or done < total
    state = "running" if lives and done else "pending" if lives else "ended"
    facts = [f"{done:,} of {total:,}{' and more' if more else ''} calls ended"]
    if done and lives:
        facts.append(f"{done / max(spent_s, 1e-6):.3g}/s")
        if not more:
            facts.append(f"about {format_seconds(spent_s / done * (total - done))} left")
    rows = [_head(job, f"map of {name}()", state, facts), tag("div", _bar(done / total if total else 0.0))]
    return _frame(rows + _waiting({"state": state}, why))


def draw_hub(address: str, overview: Document, jobs: Sequence[Document]) -> Markup:
    """A hub at a glance, and the newest jobs."""
    workers, slots, gpus = overview["workers"], overview["slots"], overview["gpus"]
    here = sum(count for kind, count in workers.items() if kind != "offline")
    facts = [
        f"{here} worker{'' if here == 1 else 's'}",
        *([f"{workers['offline']} away"] if workers.get("offline") else []),
        f"{slots['in_use']} of {slots['total']} slots in use",
        *([f"{gpus['held']} of {gpus['total']} GPUs held"] if gpus["total"] else []),
    ]
    head = tag("div", tag("b", "dray "), f"{address} · {' · '.join(facts)}")
    if not jobs:
        return _frame([head, tag("div", "no jobs")])
    cells = [[tag("th", word, style="text-align:left") for word in ("job", "name", "state", "user", "")]]
    cells += [
        [
            tag("td", str(job["id"])),
            tag("td", _cut(str(job.get("name") or ""))),
            tag("td", _state(str(job["state"]))),
            tag("td", str(job.get("user") or "")),
            tag("td", _cut(str(job.get("reason") or _tell_tasks(job))), style="text-align:left"),
        ]
        for job in jobs
    ]
    return _frame([head, tag("table", *(tag("tr", *row) for row in cells))])


def draw_trouble(told: str, problem: str) -> Markup:
    """What is left to show where the hub cannot be asked."""
    return _frame([tag("div", told), tag("div", _cut(problem), style=f"color:{FAILED}")])


def last_lines(output: str) -> list[str]:
    """The end of what a task printed, as a page can show it: of a line that was written over, what stood there last."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in output.rstrip("\n").split("\n")[-SHOWN_LINES:]]
    return [_cut(_ESCAPES.sub("", line)) for line in lines] if output.strip() else []


def _frame(rows: Sequence[Markup]) -> Markup:
    return tag("div", *rows, style=_STYLE)


def _head(job: str, name: str, state: str, facts: Sequence[str]) -> Markup:
    told = "".join(f" · {fact}" for fact in facts if fact)
    return tag("div", tag("b", job), f" {_cut(name)} " if name else " ", _state(state), told)


def _state(state: str) -> Markup:
    return tag(
        "span", f"● {state}", style=f"color:{COLOURS.get(state, FAILED if state != 'ended' else '#2e7d32')}"
    )


def _bar(fraction: float) -> Markup:
    width = f"{100 * min(1.0, max(0.0, fraction)):.0f}%"
    return tag(
        "span", tag("span", style=f"display:block;height:100%;width:{width};background:#1565c0"), style=_BAR
    )


def _tell_tasks(document: Document) -> str:
    tasks = document.get("tasks") or {}
    if int(tasks.get("total") or 1) <= 1:
        return ""
    counts = [f"{count:,} {state}" for state, count in tasks.items() if state != "total" and count]
    return f"{tasks['total']:,} tasks: {', '.join(counts)}"


def _tell_place(document: Document) -> str:
    return f"on {document['worker']}" if document.get("worker") else ""


def _tell_times(document: Document) -> str:
    from datetime import UTC, datetime

    if not document.get("started_at"):
        return ""
    ended = datetime.fromisoformat(document["ended_at"]) if document.get("ended_at") else datetime.now(UTC)
    spent_s = max(0.0, (ended - datetime.fromisoformat(document["started_at"])).total_seconds())
    return f"ran {format_seconds(spent_s)}" if document.get("ended_at") else f"for {format_seconds(spent_s)}"


def _progress(document: Document) -> list[Markup]:
    tasks, said = document.get("tasks") or {}, document.get("progress") or {}
    if int(tasks.get("total") or 1) > 1:
        done = sum(count for state, count in tasks.items() if state not in ("total", "pending", "running"))
        return [tag("div", _bar(done / tasks["total"]))]
    parts = (
        [_bar(float(said["fraction"])), f" {float(said['fraction']):.0%}"]
        if said.get("fraction") is not None
        else []
    )
    if said.get("step") is not None:
        parts.append(f" step {said['step']}")
    if said.get("note"):
        parts.append(f" {_cut(str(said['note']))}")
    return [tag("div", *parts)] if parts else []


def _waiting(document: Document, why: Document | None) -> list[Markup]:
    if document.get("state") != "pending":
        return []
    found = why or {}
    summary = str(found.get("summary") or document.get("reason") or "")
    rows = [tag("div", f"it waits: {_cut(summary)}")] if summary else []
    if (estimate := found.get("estimate")) and estimate.get("message"):
        rows.append(tag("div", f"start: {_cut(str(estimate['message']))}"))
    if found.get("fix"):
        rows.append(tag("div", f"what would help: {_cut(str(found['fix']))}"))
    return rows


def _ending(document: Document) -> list[Markup]:
    verdict = document.get("verdict") or {}
    if not verdict and not document.get("error"):
        return []
    first = next(iter(verdict.get("evidence") or []), document.get("error") or "")
    said = f"{verdict.get('title')}: {first}" if verdict.get("title") else str(first)
    rows = [tag("div", _cut(said), style=f"color:{FAILED}")]
    return [*rows, tag("div", f"next: {_cut(str(verdict['step']))}")] if verdict.get("step") else rows


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_LETTERS else f"{text[: SHOWN_LETTERS - 1]}…"
