"""The command `top`: the cluster live on a whole screen; as plain text, once, where nobody watches.

The hub is asked for totals and for as many rows as fit: ten thousand machines cost here no more than a screenful.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from dray.cli.base.hub import Hub, job_path
from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.base.render import Column, clean, draw_table, has_colour, span_between, text_width
from dray.cli.machines.views import tell_state
from dray.errors import DrayError

SORTS = ("name", "use", "gpus", "state")
KEYS = "q quit  tab other list  ↑↓ choose  s sort  / filter  enter why  c cancel"
_PLAIN_ROWS = 20
_WORKERS = (
    Column("WORKER", 8),
    Column("STATE"),
    Column("GPUS", right=True),
    Column("TYPE", 4, drop=2, cosy=8),
    Column("SLOTS", right=True),
    Column("HELD BY", 10, cosy=40),
    Column("DETAIL", 6, drop=1, cosy=24),
)
_JOBS = (
    Column("JOB", 8),
    Column("NAME", 4, drop=2, cosy=16),
    Column("USER", 4, drop=1, cosy=12),
    Column("STATE"),
    Column("TASKS", right=True),
    Column("SINCE", right=True),
    Column("WHERE, OR WHEN AND WHY", 12, cosy=60),
)
Document = Mapping[str, Any]


@click.command("top", cls=HubCommand)
@click.option(
    "--sort", type=click.Choice(SORTS), default="use", show_default=True, help="Which workers come first."
)
@click.option(
    "--filter",
    "match",
    default="",
    metavar="TEXT",
    help="Only workers with this in their or a holder's name.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between looks.",
)
@pass_session
def top(session: Session, sort: str, match: str, interval: float) -> None:
    """Watch the cluster: workers with their GPUs and who holds them, what runs, and what is first in line and when.

    \b
      q  quit         tab  workers or jobs    up, down  choose a line
      s  sort         /    filter             enter     why a job waits
      c  cancel the job that is chosen, after a question
    """
    look = Look(session.hub, sort, match)
    if session.json:
        session.print_json(look.ask(_PLAIN_ROWS))
    elif not (sys.stdout.isatty() and sys.stdin.isatty()):
        print("\n".join(draw(look, look.ask(_PLAIN_ROWS), 0, 0)))
    else:
        Watching(look, interval).run()


class Look:
    """What is looked at, and how."""

    def __init__(self, hub: Hub, sort: str, match: str) -> None:
        self.hub, self.sort, self.match = hub, sort, match
        self.offset = 0

    def ask(self, rows: int) -> dict[str, Any]:
        """Totals, so many workers, what waits first and what runs."""
        query = {"sort": self.sort, "match": self.match, "offset": self.offset, "limit": rows, "heads": rows}
        found = dict(self.hub.get("/overview", query))
        found["queues"] = self.hub.get("/queues")["queues"]
        found["alarms"] = self.hub.get("/alarms")["alarms"]
        found["running"] = self.hub.get("/jobs", {"state": "running", "limit": max(1, rows)})["jobs"]
        return found


class Watching:
    """The live view: what is chosen, and what a key does."""

    def __init__(self, look: Look, interval_s: float) -> None:
        self._look, self._interval_s = look, interval_s
        self._in_jobs, self._chosen = True, 0
        self._typed: str | None = None
        self._asked = ""
        self._said = ""
        self._page: list[str] = []
        self._found: dict[str, Any] = {}
        self._lines = 0

    def run(self) -> None:
        """Draw and listen until somebody has seen enough."""
        from dray.cli.machines.screen import Screen

        with Screen() as screen:
            due, size = 0.0, (0, 0)
            while True:
                if time.monotonic() >= due or screen.size != size:
                    size = screen.size
                    self._refresh(size[1])
                    due = time.monotonic() + self._interval_s
                screen.draw(self._frame(*size))
                # Short enough that a window of another size is filled at once.
                key = screen.read_key(min(0.25, max(0.0, due - time.monotonic())))
                if key and not self._take(key):
                    return
                if key in ("s", "enter", "page up", "page down") and not self._page:
                    due = 0.0

    def _refresh(self, lines: int) -> None:
        try:
            self._found = self._look.ask(max(1, _rows(lines)))
        except DrayError as error:
            self._said = error.message

    def _frame(self, width: int, lines: int) -> list[str]:
        if self._page:
            return [_cut(line, width) for line in self._page[: lines - 1]] + [
                _bar("any key goes back", width)
            ]
        marked = (1 if self._in_jobs else 0, self._chosen)
        self._lines = lines - 1
        body = draw(self._look, self._found, width, self._lines, marked) if self._found else []
        foot = self._said or KEYS
        if self._typed is not None:
            foot = f"filter: {self._typed}_"
        elif self._asked:
            foot = f"cancel {self._asked}? y/N"
        return [*body[: lines - 1], *[""] * (lines - 1 - len(body)), _bar(foot, width)]

    def _take(self, key: str) -> bool:
        """Do what a key says; False to leave."""
        self._said = ""
        if key == "gone":
            return False
        if self._page:
            self._page = []
        elif self._typed is not None:
            self._type(key)
        elif self._asked:
            asked, self._asked = self._asked, ""
            if key in ("y", "Y"):
                self._cancel(asked)
        elif key == "q":
            return False
        else:
            self._steer(key)
        return True

    def _steer(self, key: str) -> None:
        jobs = _listed_jobs(self._found, self._lines)
        count = len(jobs) if self._in_jobs else len(self._found.get("rows", ()))
        if key == "tab":
            self._in_jobs, self._chosen = not self._in_jobs, 0
        elif key in ("up", "k", "down", "j"):
            self._chosen = max(0, min(count - 1, self._chosen + (1 if key in ("down", "j") else -1)))
        elif key in ("page up", "page down"):
            step = max(1, len(self._found.get("rows", ()))) * (1 if key == "page down" else -1)
            most = max(0, self._found.get("matched", 0) - 1)
            self._look.offset = max(0, min(most, self._look.offset + step))
        elif key == "s":
            self._look.sort = SORTS[(SORTS.index(self._look.sort) + 1) % len(SORTS)]
            self._look.offset = 0
        elif key == "/":
            self._typed = self._look.match
        elif key in ("enter", "w", "c") and self._in_jobs and self._chosen < len(jobs):
            job_id = str(jobs[self._chosen]["id"])
            if key == "c":
                self._asked = job_id
            else:
                self._show_why(job_id)

    def _type(self, key: str) -> None:
        assert self._typed is not None
        if key == "enter":
            self._look.match, self._look.offset, self._typed = self._typed, 0, None
        elif key == "escape":
            self._typed = None
        elif key == "erase":
            self._typed = self._typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self._typed += key

    def _show_why(self, job_id: str) -> None:
        from dray.cli.jobs.reason_views import draw_why

        try:
            self._page = draw_why(job_id, self._look.hub.get(job_path(job_id, "/why"))).splitlines()
        except DrayError as error:
            self._said = error.message

    def _cancel(self, job_id: str) -> None:
        try:
            job = self._look.hub.call("POST", job_path(job_id, "/cancel"), body={})
            self._said = f"{job_id}: {job.get('note') or 'cancel requested'}"
        except DrayError as error:
            self._said = error.message


def _list_rows(found: Document, lines: int) -> int:
    """The same of a view of so many lines, of which alarms take one."""
    return (
        _rows(lines + 1 - bool(found.get("alarms")) - bool((found.get("prewarms") or {}).get("sent")))
        if lines
        else _PLAIN_ROWS
    )


def _rows(lines: int) -> int:
    """How many lines each of the two lists gets: half of what totals, titles and the line of keys leave."""
    return (lines - 8) // 2


def draw(look: Look, found: Document, width: int, lines: int, marked: tuple[int, int] = (-1, 0)) -> list[str]:
    """The whole view; with a width and a number of lines cut to them."""
    rows = _list_rows(found, lines)
    match = f", filter {look.match!r}" if look.match else ""
    shown = found["rows"][:rows]
    title = f"workers by {look.sort}{match}: {look.offset + len(shown):,} of {found['matched']:,}"
    jobs = _listed_jobs(found, lines)
    lists = ((_WORKERS, [_worker_cells(row) for row in shown]), (_JOBS, [_job_cells(job) for job in jobs]))
    drawn = [
        [
            _mark(line, marked == (place, number - 1), width)
            for number, line in enumerate(_table(*table, width))
        ]
        for place, table in enumerate(lists)
    ]
    return [
        *_totals(found, width),
        _strong(title, width),
        *drawn[0],
        _strong("jobs: running, then first in line", width),
        *drawn[1],
    ]


def _totals(found: Document, width: int) -> list[str]:
    queues, workers = found["queues"], found["workers"]
    slots, gpus = found["slots"], found["gpus"]
    running, waiting = (sum(queue[name] for queue in queues) for name in ("running", "waiting"))
    starts, ends = (sum(queue[f"{name}_per_min_5m"] for queue in queues) for name in ("starts", "ends"))
    states = ", ".join(f"{count:,} {name}" for name, count in workers.items() if count) or "no worker"
    users = ", ".join(
        f"{user['user']} {user['tasks']:,}" + (f"/{user['gpus']:,} GPUs" if user["gpus"] else "")
        for user in found["users"][:8]
    )
    lines = [
        f"workers {states}   slots {_meter(**slots)}   GPUs {_meter(gpus['held'], gpus['total'])}",
        f"tasks   {running:,} running, {waiting:,} waiting   a minute {starts:g} starts, {ends:g} ends",
        f"users   {users or 'nobody holds anything'}",
    ]
    if (prewarms := found.get("prewarms") or {}).get("sent"):
        lines.append(f"warmed  {_tell_prewarms(prewarms)}")
    if alarms := [str(alarm["text"]) for alarm in found.get("alarms") or ()]:
        lines.append(f"alarms  {len(alarms)}: {'; '.join(alarms)}")
    return [_cut(clean(line), width) for line in lines]


def _tell_prewarms(prewarms: Mapping[str, int]) -> str:
    used, wasted = prewarms.get("used", 0), prewarms.get("wasted", 0)
    return f"ahead of time {prewarms['sent']:,} times, of use {_meter(used, used + wasted)}"


def _meter(in_use: int, total: int) -> str:
    return f"{in_use:,}/{total:,} ({100 * in_use / total:.0f} %)" if total else "-"


def _listed_jobs(found: Document, lines: int) -> list[Document]:
    """The jobs that a view of so many lines has room for: also in the lines that workers leave."""
    rows = _list_rows(found, lines)
    room = 2 * rows - len(found.get("rows", ())[:rows])
    heads = {job["id"]: job for job in found.get("heads", ())}
    running = [job for job in found.get("running", ()) if job["id"] not in heads]
    # Half of the list for each where there are more of both than it has lines.
    first = running[: max(room - len(heads), room // 2)]
    return [*first, *list(heads.values())[: room - len(first)]]


def _worker_cells(row: Document) -> list[str]:
    holders: dict[str, list[str]] = {}
    for holder in row["holders"]:
        holders.setdefault(holder["user"], []).append(holder["task_id"])
    held = ", ".join(f"{user}: {_name_tasks(tasks)}" for user, tasks in holders.items())
    more = f"{', ' if held else ''}{row['others']} more" if row["others"] else ""
    return [
        row["id"],
        row["status"],
        f"{row['gpus_held']}/{row['gpu_count']}" if row["gpu_count"] else "-",
        row["gpu_type"] or "-",
        f"{row['active_jobs']}/{row['total_slots']}",
        held + more or "-",
        tell_state(row),
    ]


def _name_tasks(tasks: list[str]) -> str:
    """Tasks by name; of several of one job only how many they are."""
    counts = Counter(task.partition("/")[0] for task in tasks)
    alone = {task.partition("/")[0]: task for task in tasks}
    return " ".join(alone[job] if count == 1 else f"{job} ×{count}" for job, count in counts.items())


def _job_cells(job: Document) -> list[str]:
    estimate = str((job.get("estimate") or {}).get("message") or "")
    waits = "; ".join(filter(None, (estimate, str(job.get("reason") or ""))))
    counts = job.get("tasks") or {}
    since = job.get("started_at") or job.get("submitted_at")
    return [
        job["id"],
        job.get("name") or "-",
        job.get("user") or "-",
        job["state"],
        f"{counts.get('running', 0)}/{counts.get('total', 1)}",
        span_between(since, None) or "-",
        (str(job.get("worker") or "") or "-") if job["state"] == "running" and not waits else waits or "-",
    ]


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    return draw_table(columns, rows, width or None, bool(width) and has_colour()).splitlines()


def _cut(text: str, width: int) -> str:
    return text if not width or text_width(text) <= width else f"{text[: width - 1]}…"


def _strong(text: str, width: int) -> str:
    return f"\x1b[1m{_cut(clean(text), width)}\x1b[0m" if width and has_colour() else clean(text)


def _mark(line: str, chosen: bool, width: int) -> str:
    return f"\x1b[7m{click.unstyle(line)}\x1b[0m" if chosen and width else line


def _bar(text: str, width: int) -> str:
    return f"\x1b[7m{_cut(clean(text), width).ljust(width)}\x1b[0m"
