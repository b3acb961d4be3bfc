"""What a person sees while waiting: one line for a job, a bar for an array; plain lines where nobody watches."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dray.cli.base.exit_codes import ENDED, UNSUCCESSFUL
from dray.cli.base.outage import say
from dray.cli.base.render import clean, short_span, shorten
from dray.client.calls.progress import tell_rate
from dray.core.model.units import format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 2.0
_STEPS = 10
Document = Mapping[str, Any]


class StatusLine:
    """Why a job waits. On a terminal one line that is rewritten and wiped away before output; else one per reason."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._shown = ""
        self._since = time.monotonic()

    def note(self, job: Document) -> None:
        """Look at a job; speak only if it has been waiting long enough to wonder."""
        waited_s = time.monotonic() - self._since
        if job.get("state") != "pending":
            self.clear()
            return
        if waited_s < PATIENCE_S:
            return
        reason = clean(str(job.get("reason") or job.get("phase") or "no reason given"))
        text = f"{job.get('id')} waits: {reason}"
        if not self._live:
            if text != self._shown:
                self._shown = text
                say(text)
            return
        with self._lock:
            self._shown = text
            import shutil

            wide = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{shorten(f'dray: {text} ({short_span(waited_s)})', wide)}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Wipe the line before anything else is written to the terminal."""
        with self._lock:
            if self._shown and self._live:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                self._shown = ""


def count_done(job: Document) -> tuple[int, int, int]:
    """(ended, ended badly, all) tasks of a job."""
    tasks = job.get("tasks") or {}
    done = sum(tasks.get(state, 0) for state in ENDED)
    return done, sum(tasks.get(state, 0) for state in UNSUCCESSFUL), tasks.get("total", 0)


class ArrayProgress:
    """A bar with rate and remaining time on a terminal; elsewhere a line at every tenth."""

    def __init__(self, job_id: str) -> None:
        self._id = job_id
        self._began = time.monotonic()
        self._first: int | None = None
        self._step = 0
        self._bar: tuple[Progress, TaskID] | None = None
        self._live = sys.stderr.isatty()

    def note(self, job: Document) -> None:
        done, bad, total = count_done(job)
        if self._first is None:
            # What had ended before the first look says nothing about the rate from now on.
            self._first = done
        if self._live:
            self._draw(done, bad, total)
        elif total and done * _STEPS // total > self._step:
            self._step = done * _STEPS // total
            say(f"{self._id}: {self._tell(done, bad, total)}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def _tell(self, done: int, bad: int, total: int) -> str:
        elapsed_s = time.monotonic() - self._began
        fresh = done - (self._first or 0)
        parts = [f"{done} of {total} tasks done"]
        if bad:
            parts.append(f"{bad} did not succeed")
        if fresh and elapsed_s > 0:
            parts.append(f"{tell_rate(fresh / elapsed_s).removesuffix('/s')} per second")
            if done < total:
                parts.append(f"about {format_seconds((total - done) * elapsed_s / fresh)} left")
        return ", ".join(parts)

    def _draw(self, done: int, bad: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._start_bar(total)
        bar, task = self._bar
        elapsed_s = max(time.monotonic() - self._began, 1e-6)
        fresh = done - (self._first or 0)
        bar.update(
            task,
            completed=done,
            total=total,
            bad=f"[red]{bad} not ok" if bad else "",
            rate=tell_rate(fresh / elapsed_s) if fresh else "",
            left=f"{short_span((total - done) * elapsed_s / fresh)} left" if fresh and done < total else "",
        )

    def _start_bar(self, total: int) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[bad]}"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
        )
        bar.start()
        return bar, bar.add_task(self._id, total=total, bad="", rate="", left="")
