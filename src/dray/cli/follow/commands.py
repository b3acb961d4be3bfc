"""Commands that stay: run, wait, logs, events. They outlast a hub that is away, and exit as the job did.

The surprising rule: Ctrl-C means different things. It cancels what `run` started, and merely leaves `wait`, `logs` and
`events`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from dray.cli.asks.flags import job_options, template_options
from dray.cli.asks.submission import SubmitCommand, prepare, send
from dray.cli.base.completion import complete_job
from dray.cli.base.exit_codes import INTERRUPTED, NOT_RUN, TIME_LIMIT, describe_end, has_ended, is_numbered
from dray.cli.base.hub import job_path
from dray.cli.base.invocation import HubCommand, Session, abandon_stdout, pass_session
from dray.cli.base.outage import Outage, say
from dray.cli.follow.array_logs import ArrayLogs, under_numbers
from dray.cli.follow.following import (
    LONG_POLL_S,
    LastLines,
    LogCopy,
    LogThread,
    follow_logs,
    job_exit_code,
    look,
    read_events,
    wait_for_job,
)
from dray.cli.follow.progress import ArrayProgress, StatusLine
from dray.cli.follow.waiting import WaitedLong, Waiting
from dray.cli.jobs.jobs import ask_named, find_task, request_cancel, split_id
from dray.errors import DrayError, HubUnavailable

_REFRESH_S = 1.0
_REST_OF_OUTPUT_S = 60.0


@click.command("run", cls=SubmitCommand)
@template_options
@job_options
@click.option(
    "-it",
    "--interactive",
    is_flag=True,
    default=None,
    help="Run it in a terminal, which this one becomes; Enter ~ . leaves, `dray attach` comes back.",
)
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="FILE.yaml | SCRIPT [ARGS]... | -- COMMAND [ARGS]..."
)
@pass_session
def run(session: Session, words: tuple[str, ...], **flags: Any) -> int:
    """Submit a command, show its output, and exit with its exit code; Ctrl-C cancels it.

    With -it what is typed goes to the command, Ctrl-C included.

    \b
    Exit codes: the command's own; 124 time limit; 125 dray could not run it;
    126 not executable; 127 not found; 128+n ended by signal n; 130 after Ctrl-C.
    """
    submission = prepare(click.get_current_context(), words, flags)
    if len(submission.specs) != 1:
        raise click.UsageError(
            f"run takes one job, this file holds {len(submission.specs)}: use submit, then wait"
        )
    # Who waits for its end wants to see it: a service, also one that a template makes, is started once.
    submission.specs[0].setdefault("restart", "never")
    if submission.specs[0].get("interactive"):
        if {"array", "node_count"} & submission.specs[0].keys():
            raise click.UsageError("-it is for one task: submit the others, then `dray attach ID/INDEX`")
        env = submission.specs[0].setdefault("env", {})
        env.setdefault("TERM", os.environ.get("TERM", "xterm"))
    outage = Outage(session.config.away_s, "the job goes on if it was submitted", needs_process=True)
    try:
        job = send(session.hub, submission, outage)[0]
    except KeyboardInterrupt:
        say("interrupted while submitting: the job may have been taken, look with `dray ps`")
        return INTERRUPTED
    except DrayError as error:
        return session.report(error, NOT_RUN)
    outage.goes_on = f"job {job['id']} goes on: `dray wait {job['id']}` takes it up again"
    follower = _Run(session, outage, job)
    return follower.attend() if (job.get("spec") or {}).get("interactive") else follower.follow()


class _Run:
    """One `run` after its job was accepted."""

    def __init__(self, session: Session, outage: Outage, job: Mapping[str, Any]) -> None:
        self._session = session
        self._outage = outage
        self._job = job
        self._id = str(job["id"])
        self._status = StatusLine()
        self._bar = (
            ArrayProgress(self._id) if (job.get("spec") or {}).get("array") and is_numbered(job) else None
        )
        self._logs: LogThread | None = None

    def follow(self) -> int:
        self._start_logs()
        try:
            job = wait_for_job(self._session.hub, self._outage, self._id, self._watch)
            self._finish_output()
            return self._conclude(job)
        except KeyboardInterrupt:
            return self._cancel()
        finally:
            self._status.clear()
            if self._bar is not None:
                self._bar.close()

    def attend(self) -> int:
        """The same at its terminal: there Ctrl-C is for the command, once that has begun."""
        # Here, since others need none of what terminals take.
        from dray.cli.follow.attending import attend

        try:
            return attend(self._session, self._outage, self._id, -1)
        except KeyboardInterrupt:
            return self._cancel()

    def _start_logs(self) -> None:
        if self._bar is not None:
            return
        sink = sys.stderr.buffer if self._session.json else sys.stdout.buffer

        def write(data: bytes) -> None:
            self._status.clear()
            try:
                sink.write(data)
                sink.flush()
            except BrokenPipeError:
                abandon_stdout()
                raise

        # Of a gang the first task is shown: the others' output is there with `dray logs ID/INDEX`.
        query = {"task": 0} if is_numbered(self._job) else {}
        self._logs = LogThread(LogCopy(self._session.hub, self._id, query, write))
        self._logs.start()

    def _watch(self, job: Mapping[str, Any]) -> float:
        if self._bar is not None:
            self._bar.note(job)
            return _REFRESH_S
        self._status.note(job)
        return _REFRESH_S if job.get("state") == "pending" else LONG_POLL_S

    def _finish_output(self) -> None:
        if self._logs is None:
            return
        self._logs.finish(_REST_OF_OUTPUT_S)
        if self._logs.refusal is not None:
            say(f"the output cannot be shown: {self._logs.refusal.message} ({self._logs.refusal.code})")
        elif self._logs.is_alive():
            say(f"the rest of the output did not come: `dray logs {self._id}` has it")

    def _conclude(self, job: Mapping[str, Any]) -> int:
        code = job_exit_code(self._session.hub, self._outage, job)
        if self._bar is not None:
            self._bar.close()
        if self._session.json:
            self._session.print_json(job)
        elif code and (job.get("exit_class") != "code" or is_numbered(job)):
            # A plain exit code speaks for itself, as in a shell.
            end = describe_end(job)
            say(f"{self._id} {str(job.get('state')).replace('_', ' ')}{f': {end}' if end else ''}")
        return code

    def _cancel(self) -> int:
        self._status.clear()
        if self._outage.is_away:
            say(
                f"the hub is away, so {self._id} could not be cancelled and may still run: `dray cancel {self._id}`"
            )
            return INTERRUPTED
        say(f"cancelling {self._id}; Ctrl-C again leaves at once")
        try:
            request_cancel(self._session.hub, self._id)
            wait_for_job(self._session.hub, self._outage, self._id)
            self._finish_output()
            say(f"{self._id} has ended")
        except KeyboardInterrupt:
            say(f"left: {self._id} may still run, `dray show {self._id}` tells")
        except DrayError as error:
            say(f"{error.message}: {self._id} may still run, `dray cancel {self._id}`")
        return INTERRUPTED


@click.command("wait", cls=HubCommand)
@click.argument("jobs", nargs=-1, required=True, shell_complete=complete_job)
@click.option(
    "--any/--all", "first", default=False, help="Until one of them has ended, or all.  [default: all]"
)
@click.option("--timeout", metavar="TIME", help="Give up after so long, and exit with 124; the jobs go on.")
@pass_session
def wait(session: Session, jobs: tuple[str, ...], first: bool, timeout: str | None) -> int:
    """Wait for jobs or tasks (ID/INDEX) to end, and exit as the first of them did that did not succeed.

    With --any it exits as the one that ended first. 124 also means that --timeout has passed.
    """
    from dray.core.model.units import parse_seconds

    limit_s = None if timeout is None else parse_seconds(timeout)
    wanted = [(text, *split_id(text)) for text in jobs]
    outage = Outage(session.config.away_s, "what was waited for goes on")
    waiting = Waiting(session, outage, limit_s)
    documents: list[dict[str, Any]] = []
    code = 0
    try:
        for text, document, own_code in waiting.for_first(wanted) if first else waiting.for_all(wanted):
            documents.append(document)
            code = code or own_code
            if not session.json:
                end = describe_end(document)
                print(f"{text}: {document['state']}{f' ({end})' if end else ''}", flush=True)
    except KeyboardInterrupt:
        say(f"no longer waiting: {'the jobs go' if len(jobs) > 1 else 'the job goes'} on")
        return INTERRUPTED
    except WaitedLong:
        left = len(wanted) - len(documents)
        say(f"{left} of {len(wanted)} not ended after {timeout}: {'they go' if left > 1 else 'it goes'} on")
        code = TIME_LIMIT
    except HubUnavailable as error:
        return session.report(error, NOT_RUN)
    if session.json:
        session.print_json(documents[0] if len(jobs) == 1 and documents else {"jobs": documents})
    return code


@click.command("logs", cls=HubCommand)
@click.argument("job", shell_complete=complete_job)
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option(
    "--attempt", type=click.IntRange(1), metavar="NO", help="Of this attempt.  [default: the newest]"
)
@click.option(
    "--stream", type=click.Choice(["stdout", "stderr", "both"]), help="Only this stream.  [default: both]"
)
@click.option(
    "--failed", is_flag=True, help="Of a job with several tasks: only of those that did not succeed."
)
@pass_session
def logs(session: Session, job: str, follow: bool, failed: bool, **options: Any) -> int:
    """Print the output of a job or of one task (ID/INDEX), byte for byte.

    Of a job with several tasks that of all of them, each line under the number of its task. A service goes by its name
    as well.
    """
    _, index = split_id(job)
    query = {name: value for name, value in options.items() if value is not None}
    if index >= 0:
        query["task"] = index

    def show(job_id: str) -> int:
        if not follow:
            return _print_logs(session, job_id, index, query, failed, None)
        return follow_output(session, job_id, index, dict(query), failed)

    return ask_named(session.hub, job, show)[1]


def follow_output(
    session: Session, job_id: str, index: int, query: dict[str, Any] | None = None, failed: bool = False
) -> int:
    """Print what there is and what comes, until what is meant has ended."""
    query = {"task": index} if query is None and index >= 0 else query or {}
    try:
        return _print_logs(
            session, job_id, index, query, failed, Outage(session.config.away_s, "the job goes on")
        )
    except KeyboardInterrupt:
        return INTERRUPTED
    except HubUnavailable as error:
        return session.report(error, NOT_RUN)


def _print_logs(
    session: Session, job_id: str, index: int, query: dict[str, Any], failed: bool, outage: Outage | None
) -> int:
    """Print what there is; with an outage to ride out, also what comes."""
    if index < 0:
        job = session.hub.get(job_path(job_id)) if outage is None else look(session.hub, outage, job_id)
        if is_numbered(job):
            _print_array(session, job, query, failed, outage)
            return 0
    if failed:
        raise click.UsageError("--failed chooses among the tasks of a job, and this is one task")
    write = _print_json_text if session.json else _print_bytes
    if outage is None:
        LogCopy(session.hub, job_id, query, write).copy(follow=False)
        return 0
    shown = outage

    def ended() -> bool:
        return has_ended(
            find_task(session.hub, job_id, index) if index >= 0 else look(session.hub, shown, job_id)
        )

    position = _print_end(session, outage, job_id, query, write) if "tail" in query else 0
    follow_logs(LogCopy(session.hub, job_id, query, write, position), outage, ended)
    return 0


def _print_array(
    session: Session, job: Mapping[str, Any], query: dict[str, Any], failed: bool, outage: Outage | None
) -> None:
    if "tail" in query and outage is not None:
        raise click.UsageError(
            "-f shows several tasks from their beginning: leave --tail out, or name one task"
        )
    job_id, total = str(job["id"]), int(job["tasks"]["total"])
    give = _print_json_task(job_id) if session.json else under_numbers(total, _print_bytes)
    output = ArrayLogs(session.hub, job_id, query, give, failed, again=bool(job.get("service")))
    if outage is None:
        output.copy()
    else:
        output.follow(outage)


def _print_end(
    session: Session, outage: Outage, job_id: str, query: dict[str, Any], write: Callable[[bytes], None]
) -> int:
    """Print the last lines of what is there; the position behind them is where following begins."""
    last = LastLines(query.pop("tail"))
    copy = LogCopy(session.hub, job_id, query, last.add)
    outage.ride_out(lambda: copy.copy(follow=False))
    if last.text:
        write(last.text)
    return copy.position


def _print_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _print_json_task(job_id: str) -> Callable[[int, bytes], None]:
    def give(index: int, data: bytes) -> None:
        document = {"task": f"{job_id}/{index}", "text": data.decode("utf-8", "replace")}
        print(json.dumps(document, ensure_ascii=False), flush=True)

    return give


def _print_json_text(data: bytes) -> None:
    print(json.dumps({"text": data.decode("utf-8", "replace")}, ensure_ascii=False), flush=True)


@click.command("events", cls=HubCommand)
@click.argument("job", required=False, shell_complete=complete_job)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now.")
@click.option("--since", metavar="SEQ.N", help="With -f: start after this event.")
@pass_session
def events(session: Session, job: str | None, follow: bool, since: str | None) -> int:
    """Print the history of a job, or with -f what happens now, to all jobs or to one."""
    from dray.cli.jobs.job_views import draw_event

    job_id = split_id(job)[0] if job else None
    if not follow:
        if job_id is None:
            raise click.UsageError("name a job to see its history, or use -f to see what happens now")
        answer = session.hub.get(job_path(job_id, "/events"))
        if session.json:
            session.print_json(answer)
        else:
            for event in answer.get("events") or []:
                print(draw_event({"job_id": "", **event}))
        return 0
    return _follow_events(session, job_id, since)


def _follow_events(session: Session, job_id: str | None, since: str | None) -> int:
    import time

    from dray.cli.jobs.job_views import draw_event

    outage = Outage(session.config.away_s)
    last = since or ""

    def read() -> None:
        nonlocal last
        # The query goes with the first question only: on later ones the header must not be contradicted by it.
        headers = {"Last-Event-ID": last} if last else {}
        with session.hub.stream("/events", None, headers) as stream:
            outage.note_presence()
            for event_id, data in read_events(stream.chunks()):
                last = event_id or last
                event = json.loads(data)
                if event.get("type") == "reset":
                    print(event["why"], file=sys.stderr)
                elif job_id is None or event.get("job_id") == job_id:
                    print(data if session.json else draw_event(event), flush=True)

    try:
        while True:
            outage.ride_out(read)
            time.sleep(0.2)
    except KeyboardInterrupt:
        return INTERRUPTED
    except HubUnavailable as error:
        return session.report(error, NOT_RUN)
