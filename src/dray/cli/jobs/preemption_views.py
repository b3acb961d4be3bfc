"""How preemptions look to a person whose work was stopped, or who waits for room; reads documents and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dray.cli.base.policy_text import spell_value
from dray.cli.base.render import (
    Column,
    clean,
    draw_pairs,
    draw_table,
    has_colour,
    local_time,
    paint,
    read_time,
    short_span,
    span_between,
    terminal_width,
)

Document = Mapping[str, Any]
OTHERS = "(another's)"
COLUMNS = (
    Column("RECEIPT"),
    Column("AGE", right=True),
    Column("FOR", least=8, cosy=14),
    Column("USER", least=4, drop=2),
    Column("PRIO", drop=5, right=True),
    Column("RULE", drop=4),
    Column("STOPPED", least=8, cosy=16),
    Column("LOST", right=True),
    Column("ON", least=4, drop=3, cosy=10),
    Column("STATUS"),
    Column("WAITED", drop=1, right=True),
)
VICTIM_COLUMNS = (
    Column("STOPPED", least=8, cosy=14),
    Column("USER", least=4, drop=4),
    Column("PRIO", drop=3, right=True),
    Column("ON", least=4, drop=5, cosy=10),
    Column("RAN", drop=2, right=True),
    Column("LOST", right=True),
    Column("GRACE", drop=1, right=True),
    Column("NOW", least=20),
)
_RULES = {
    "priority": "work of lower priority makes room",
    "pressure": "work of lower priority makes room while a resource is nearly used up",
    "fair_share": "work of a user who has more than their share makes room",
    "srsf": "work that has more left to do makes room",
    "moves": "work that has room elsewhere moves there",
}
_STATUSES = {
    "open": "the room is kept until everybody has left",
    "served": "the room was given to the job that it was made for",
    "rolled_back": "the job no longer waits; the room goes to whoever is next",
    "lapsed": "the room did not come free in time, and is no longer kept",
}


def draw_receipts(answer: Document, width: int | None = None, now: datetime | None = None) -> str:
    """The table of `preemptions`, and what all of them come to."""
    rows = [_row(receipt, now) for receipt in answer.get("preemptions") or []]
    table = draw_table(COLUMNS, rows, width or terminal_width(), has_colour())
    return f"{table}\n\n{_tell_statistics(answer.get('statistics') or {})}"


def _row(receipt: Document, now: datetime | None) -> list[str]:
    victims: Sequence[Document] = receipt.get("victims") or []
    wait_s = receipt.get("wait_s")
    return [
        str(receipt.get("id", "")),
        span_between(receipt.get("decided_at"), None, now),
        str(receipt.get("task_id") or OTHERS),
        str(receipt.get("user") or "-"),
        str(receipt.get("priority", 0)),
        _words(receipt.get("rule")),
        _name_victims(victims),
        short_span(receipt.get("lost_s") or 0),
        ", ".join(map(str, receipt.get("workers") or [])) or "-",
        _words(receipt.get("status")),
        "-" if wait_s is None else short_span(wait_s),
    ]


def _name_victims(victims: Sequence[Document]) -> str:
    seen = [victim for victim in victims if victim.get("task_id")]
    names = [_name_victim(victim) for victim in seen if _members(victim)]
    others = _stopped(victims) - _stopped(seen)
    shown, more = names[:2], max(0, len(names) - 2)
    parts = [*shown, f"{more} more" if more else "", f"{others} of others" if others else ""]
    return ", ".join(filter(None, parts))


def _name_victim(victim: Document) -> str:
    name = str(victim.get("task_id") or OTHERS)
    return f"{name} and its gang" if _members(victim) > 1 else name


def _members(victim: Document) -> int:
    return int(victim.get("members", 1))


def _stopped(victims: Sequence[Document]) -> int:
    return sum(_members(victim) for victim in victims)


def _tell_statistics(told: Document) -> str:
    counts = ", ".join(f"{count} by {_words(rule)}" for rule, count in (told.get("by_rule") or {}).items())
    ends = ", ".join(f"{count} {_words(status)}" for status, count in (told.get("by_status") or {}).items())
    within = told.get("serve_p50_s")
    number = told.get("receipts", 0)
    pairs = [
        (
            f"last {spell_value('window_s', told.get('window_s'))}",
            f"{_count(number, 'preemption')} ({counts}; {ends})" if number else "no preemptions",
        ),
        (
            "stopped",
            f"{_tell_count(told)}, {_lost(told.get('lost_s'))}" if number else "",
        ),
        ("served", "" if within is None else f"half of them within {_short(within)}"),
        ("most lost", ", ".join(_tell_user(line) for line in _losers(told)[:3])),
    ]
    return draw_pairs([(name, clean(value)) for name, value in pairs])


def _tell_count(told: Document) -> str:
    moved = int(told.get("moved") or 0)
    return f"{_count(told.get('victims', 0), 'task')}{f', {moved} of them moved' if moved else ''}"


def _losers(told: Document) -> list[Document]:
    return [line for line in told.get("users") or [] if line.get("stopped")]


def _tell_user(line: Document) -> str:
    return (
        f"{line.get('user')} {short_span(line.get('lost_s') or 0)} ({_count(line.get('stopped', 0), 'task')})"
    )


def draw_receipt(receipt: Document, now: datetime | None = None) -> str:
    """All that `preemptions ID` tells."""
    rule, status = str(receipt.get("rule") or ""), str(receipt.get("status") or "")
    job = receipt.get("task_id")
    whose = f"{job} of {receipt.get('user')}" if job else f"a job of {receipt.get('user')}"
    victims: Sequence[Document] = receipt.get("victims") or []
    pairs = [
        ("receipt", str(receipt.get("id", ""))),
        ("status", f"{paint(_words(status))}: {_STATUSES.get(status, '')}".rstrip(": ")),
        ("made for", f"{whose}, priority {receipt.get('priority', 0)}, queue {receipt.get('queue') or '-'}"),
        ("rule", f"{_words(rule)}: {_RULES.get(rule, '')}".rstrip(": ")),
        (
            "resource",
            {"gpu": "GPUs", "cpu": "cores"}.get(str(receipt.get("kind")), str(receipt.get("kind") or "")),
        ),
        (
            "room on",
            ", ".join(map(str, receipt.get("workers") or []))
            + (" (made up: fake machines)" if receipt.get("fake") else ""),
        ),
        ("decided", _tell_moment(receipt.get("decided_at"), now)),
        ("started", _tell_end(receipt) if status == "served" else ""),
        ("ended", local_time(receipt.get("ended_at")) if status not in ("served", "open") else ""),
        ("cost", f"{_tell_stopped(victims)}, {_lost(receipt.get('lost_s'))}"),
    ]
    rows = [_victim_row(receipt, victim) for victim in victims]
    table = draw_table(VICTIM_COLUMNS, rows, terminal_width(), has_colour())
    return f"{draw_pairs((name, clean(value)) for name, value in pairs)}\n\n{table}"


def _tell_stopped(victims: Sequence[Document]) -> str:
    moved = sum(1 for victim in victims if victim.get("moved_to"))
    aside = f", {moved} of them moved" if moved else ""
    return f"{_count(_stopped(victims), 'task')} stopped{aside}"


def _victim_row(receipt: Document, victim: Document) -> list[str]:
    return [
        _name_victim(victim),
        str(victim.get("user") or "-"),
        str(victim.get("priority", 0)),
        str(victim.get("worker") or "-"),
        short_span(victim.get("ran_s") or 0),
        short_span(victim.get("lost_s") or 0),
        short_span(victim.get("grace_s") or 0),
        _tell_now(receipt, victim),
    ]


def _tell_now(receipt: Document, victim: Document) -> str:
    """What became of it, and when it comes back."""
    state, back = str(victim.get("state") or ""), _clock(victim.get("back_at"))
    step = victim.get("saved_step")
    saved = "" if step is None else f" from step {step}"
    if state == "stopping":
        decided = read_time(receipt.get("decided_at"))
        latest = decided + timedelta(seconds=float(victim.get("grace_s") or 0)) if decided else None
        moves = f", moves to {victim['moved_to']}" if victim.get("moved_to") else ""
        return f"stopping, killed at {_clock(latest.isoformat())}{moves}" if latest else f"stopping{moves}"
    if state == "waiting":
        when = _clock(victim.get("earliest_back_at"))
        room = f"; room by {when} (time limits)" if when else ""
        return f"waits, first in its band{f', goes on{saved}' if saved else ''}{room}"
    if state == "running":
        return f"runs again{saved} since {back} on {victim.get('back_on')}" if back else f"runs again{saved}"
    if state == "starting":
        return f"starts again{saved}"
    if state == "gone":
        gone = _clock(victim.get("gone_at"))
        return f"gone since {gone}" if gone else "gone"
    return (
        f"{_words(state)}, ran again{saved} from {back} on {victim.get('back_on')}" if back else _words(state)
    )


def tell_receipts(receipts: Sequence[Document], job_id: str, task_id: str = "") -> str:
    """One line for `show`: how often a job was stopped, or others were for it, and where to read on."""
    made = [one for one in receipts if _is(one, job_id, task_id)]
    suffered = [
        one for one in receipts if any(_is(victim, job_id, task_id) for victim in one.get("victims") or [])
    ]
    parts = []
    if suffered:
        parts.append(f"stopped for others {_times(suffered)}")
    if made:
        parts.append(f"others stopped for it {_times(made)}")
    if not parts:
        return ""
    return f"{'; '.join(parts)}: see `dray preemptions {(suffered or made)[0].get('id')}`"


def _is(document: Document, job_id: str, task_id: str) -> bool:
    return document.get("task_id") == task_id if task_id else document.get("job_id") == job_id


def _times(receipts: Sequence[Document]) -> str:
    count = {1: "once", 2: "twice"}.get(len(receipts), f"{len(receipts)} times")
    names = ", ".join(str(one.get("id")) for one in receipts[:3])
    return f"{count} ({names}{', ...' if len(receipts) > 3 else ''})"


def tell_note(event: Document) -> str:
    """An event of the feed that is about a preemption, in words; empty for any other."""
    kind, receipt = event.get("type"), event.get("receipt")
    if kind == "preemption_decided":
        count = int(event.get("victims") or 0)
        where = ", ".join(map(str, event.get("workers") or []))
        asked = "is asked" if count == 1 else "are asked"
        moved = int(event.get("moved") or 0)
        what = f"to stop for it{f', {moved} of them to move' if moved else ''}"
        return (
            f"{_count(count, 'task')} on {where} {asked} {what} (by {_words(event.get('rule'))}, {receipt})"
        )
    if kind == "task_preempting":
        within, whose = short_span(event.get("grace_s") or 0), event.get("by")
        what = f"and move to {event['to']} to make room for" if event.get("to") else "for"
        return f"asked to stop within {within} {what} a job of {whose} (by {_words(event.get('rule'))}, {receipt})"
    status = str(kind or "").removeprefix("preemption_")
    if status == kind or status not in _STATUSES:
        return ""
    return f"{_STATUSES[status]} ({receipt})"


def _tell_moment(at: str | None, now: datetime | None) -> str:
    span = span_between(at, None, now or datetime.now(UTC))
    return f"{local_time(at)} ({span} ago)" if span else ""


def _tell_end(receipt: Document) -> str:
    wait_s = receipt.get("wait_s")
    after = f", {_short(wait_s)} after the decision" if wait_s is not None else ""
    return f"{local_time(receipt.get('served_at'))}{after}"


def _clock(text: str | None) -> str:
    """The time of day, with the date where it is another day."""
    when = read_time(text)
    if when is None:
        return ""
    local = when.astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def _short(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 10 else short_span(seconds)


def _lost(seconds: Any) -> str:
    return f"{short_span(seconds)} of work lost" if seconds and seconds >= 1 else "hardly any work lost"


def _words(text: Any) -> str:
    return str(text or "").replace("_", " ")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
