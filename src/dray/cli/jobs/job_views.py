"""How jobs, tasks, attempts and reasons look to a person; reads documents of the API and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dray.cli.base.exit_codes import describe_end, is_numbered
from dray.cli.base.render import (
    Column,
    clean,
    draw_pairs,
    draw_table,
    has_colour,
    local_time,
    paint,
    seconds_between,
    short_span,
    span_between,
    tell_money,
    terminal_width,
)
from dray.cli.jobs.preemption_views import tell_note
from dray.core.model.ids import EVERYBODY
from dray.core.model.units import DEFAULT_RUNTIME_S, MAX_RUNTIME_S, format_bytes, format_seconds, format_vram

Document = Mapping[str, Any]
JOB_COLUMNS = (
    Column("ID"),
    Column("NAME", least=6, drop=3, cosy=16),
    Column("STATE"),
    Column("USER", least=5, drop=5, cosy=8),
    Column("QUEUE", least=5, drop=7, cosy=8, dull="default"),
    Column("PRIO", drop=6, right=True, dull="0"),
    Column("AGE", drop=2, right=True),
    Column("RUN", drop=1, right=True),
    Column("TASKS", drop=4, right=True),
    Column("WORKER", least=6, drop=3, cosy=12),
    Column("REASON", least=14, cosy=24),
)
ATTEMPT_COLUMNS = (
    Column("TRY", right=True),
    Column("WORKER", least=8),
    Column("PHASE"),
    Column("GPUS", drop=2),
    Column("STARTED", drop=1),
    Column("RUN", right=True),
    Column("END", least=12),
)


TASK_COLUMNS = (
    Column("TASK"),
    Column("STATE"),
    Column("END", least=8, drop=1, cosy=12),
    Column("WORKER", least=6, drop=3, cosy=12),
    Column("TRIES", drop=4, right=True, dull="1"),
    Column("RUN", drop=2, right=True),
    Column("DETAIL", least=14, cosy=24),
)


def draw_jobs(
    jobs: Sequence[Document], width: int | None = None, now: datetime | None = None, times: bool = False
) -> str:
    """The table of `ps`; `times`: when each was submitted instead of how long ago."""
    rows = [_job_row(job, now, times) for job in jobs]
    columns = [
        column._replace(title="SUBMITTED") if times and column.title == "AGE" else column
        for column in JOB_COLUMNS
    ]
    return draw_table(columns, rows, width or terminal_width(), has_colour())


def draw_tasks(tasks: Sequence[Document], width: int | None = None, now: datetime | None = None) -> str:
    """The table of `tasks`."""
    rows = [_task_row(task, now) for task in tasks]
    return draw_table(TASK_COLUMNS, rows, width or terminal_width(), has_colour())


def _task_row(task: Document, now: datetime | None) -> list[str]:
    ended = bool(task.get("ended_at"))
    last = str(task.get("error") or "").strip().rpartition("\n")[2]
    verdict: Document = task.get("verdict") or {}
    end = str(task.get("exit_class") or "") if ended and task.get("state") != "succeeded" else ""
    if verdict.get("kind") not in (None, "code", end):
        # What it said itself tells more than its exit code.
        end, last = str(verdict["title"]), str((verdict.get("evidence") or [last])[0])
    elif len(verdict.get("evidence") or ()) > 1:
        # The last line that it printed: the column before says how it exited.
        last = str(verdict["evidence"][-1])
    code = task.get("exit_code")
    return [
        str(task.get("id", "")),
        str(task.get("state", "")),
        f"{end} {code}" if end == "code" and code is not None else end or "-",
        str(task.get("worker") or "-"),
        str(len(_find_tries(task))),
        _tell_run(task, now) or "-",
        last if ended else tell_progress(task),
    ]


def _job_row(job: Document, now: datetime | None, times: bool) -> list[str]:
    return [
        str(job.get("id", "")),
        str(job.get("name") or "-"),
        str(job.get("state", "")),
        str(job.get("user") or "-"),
        str(job.get("queue") or "-"),
        str(job.get("priority", 0)),
        local_time(job.get("submitted_at")) if times else span_between(job.get("submitted_at"), None, now),
        _tell_run(job, now) or "-",
        _count_tasks(job),
        str(job.get("worker") or "-"),
        tell_detail(job),
    ]


def _count_tasks(job: Document) -> str:
    if not is_numbered(job):
        return "-"
    tasks = job.get("tasks") or {}
    done = sum(
        tasks.get(name, 0) for name in ("succeeded", "failed", "killed", "worker_failed", "unschedulable")
    )
    return f"{done}/{tasks.get('total', 0)}"


def tell_detail(job: Document) -> str:
    """The one thing worth knowing now: why it waits, what it is up to, or how it ended."""
    state, phase = job.get("state"), str(job.get("phase") or "")
    if job.get("service"):
        told = (
            tell_ready(job["service"]),
            str(job["service"].get("update") or ""),
            str(job.get("reason") or ""),
        )
        return "; ".join(filter(None, told))
    if state == "pending":
        reason = str(job.get("reason") or "")
        estimate = str((job.get("estimate") or {}).get("message") or "")
        return "; ".join(filter(None, (estimate, reason))) or (phase if phase != "queued" else "")
    if state == "running":
        asked = "cancel requested" if job.get("cancel_requested") else str(job.get("reason") or "")
        return asked or (phase if phase not in ("", "running") else tell_progress(job) or _tell_failures(job))
    return describe_end(job) or _tell_failures(job)


def tell_share(users: Sequence[str]) -> str:
    """Who else may reach a service, in words."""
    return ", ".join("everybody" if user == EVERYBODY else user for user in users)


def tell_ready(service: Document) -> str:
    """How many of a service's replicas are ready: `2/3 ready`."""
    looping = service.get("crash_looping") or 0
    return f"{service['ready']}/{service['replicas']} ready{f', {looping} crash-looping' if looping else ''}"


def tell_progress(document: Document) -> str:
    """How far a task has come, by its own word: `45%, step 1200, epoch 3`."""
    progress: Document = document.get("progress") or {}
    fraction, step = progress.get("fraction"), progress.get("step")
    parts = [
        "" if fraction is None else f"{100 * fraction:.0f}%",
        "" if step is None else f"step {step}",
        str(progress.get("note") or ""),
    ]
    return clean(", ".join(filter(None, parts)))


def _tell_failures(job: Document) -> str:
    tasks = job.get("tasks") or {}
    if not is_numbered(job):
        return ""
    bad = [(name, tasks.get(name, 0)) for name in ("failed", "killed", "worker_failed", "unschedulable")]
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in bad if count)


def draw_job(job: Document, preempted: str = "") -> str:
    """All that `show` tells of a job; `preempted`: a line about preemptions that had to do with it."""
    spec: Document = job.get("spec") or {}
    blocks = [draw_pairs([*_job_pairs(job, spec), ("preemption", clean(preempted))])]
    if job.get("attempts"):
        blocks.append(draw_attempts(job["attempts"]))
    return "\n\n".join(blocks)


def _job_pairs(job: Document, spec: Document) -> list[tuple[str, str]]:
    end = describe_end(job)
    state = paint(str(job.get("state", "")))
    phase = "" if job.get("ended_at") else str(job.get("phase") or "")
    counts = (job.get("tasks") or {}) if is_numbered(job) else {}
    return [
        ("job", str(job.get("id", ""))),
        ("name", clean(str(job.get("name") or ""))),
        ("state", f"{state}{f' ({phase})' if phase and phase not in (job.get('state'), 'queued') else ''}"),
        ("reason", clean(str(job.get("reason") or ""))),
        ("service", tell_ready(job["service"]) if job.get("service") else ""),
        ("progress", tell_progress(job)),
        ("ended as", clean(end)),
        *_tell_verdict(job),
        ("held", f"by {job['held_by']}" if job.get("held") else ""),
        ("waits for", ", ".join(map(str, job.get("after") or []))),
        ("deadline", local_time(spec.get("deadline"))),
        ("asked to stop", "yes" if job.get("cancel_requested") and not job.get("ended_at") else ""),
        ("tasks", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)),
        ("user", str(job.get("user") or "")),
        (
            "queue",
            f"{job.get('queue') or '-'}, priority {job.get('priority', 0)}, tier {job.get('tier') or '-'}",
        ),
        ("labels", clean(_join(job.get("labels") or {}))),
        ("workload", str(job.get("workload") or "")),
        ("submitted", local_time(job.get("submitted_at"))),
        ("started", _tell_time(job.get("started_at"), job.get("submitted_at"), "waited")),
        ("waited", clean(str((job.get("waits") or {}).get("message", "")).removeprefix("waited "))),
        ("ended", _tell_end(job)),
        ("worker", str(job.get("worker") or "")),
        ("ports", _tell_ports(job)),
        ("tried again", _tell_retries(job)),
        ("learned", clean(str(job.get("learned") or ""))),
        ("money", tell_money(job["money"]) if job.get("money") else ""),
        ("asks for", ", ".join(filter(None, (_tell_ask(spec), _tell_limit(spec))))),
        ("used", _tell_peaks(job, spec)),
        ("either", _tell_variants(spec)),
        ("edited", "yes: this is no longer what was submitted" if job.get("edited") else ""),
        ("template", clean(_tell_template(spec))),
        ("command", clean(_tell_command(spec.get("command") or []))),
        ("in", clean(str(spec.get("workdir") or ""))),
    ]


def _tell_verdict(document: Document) -> list[tuple[str, str]]:
    verdict: Document = document.get("verdict") or {}
    if not verdict:
        return []
    # How it ended is told above already.
    shown = [line for line in verdict.get("evidence") or [] if str(document.get("error") or "?") not in line]
    because = f"{verdict.get('title')}{': ' + shown[0] if shown else ''}"
    return [("because", clean(because)), ("next", clean(str(verdict.get("step") or "")))]


def _tell_time(at: str | None, since: str | None, word: str) -> str:
    if not at:
        return ""
    span = span_between(since, at)
    return f"{local_time(at)}{f' ({word} {span})' if span else ''}"


def _tell_end(job: Document) -> str:
    span = _tell_run(job)
    return f"{local_time(job['ended_at'])}{f' (ran {span})' if span else ''}" if job.get("ended_at") else ""


def _find_tries(document: Document) -> list[Document]:
    """The attempts that began, or may have: a task that was given back unstarted was not tried."""
    return [one for one in document.get("attempts") or () if not _never_began(one)]


def _never_began(attempt: Document) -> bool:
    return attempt.get("phase") == "revoked" or _was_given_back(attempt)


def _was_given_back(attempt: Document) -> bool:
    """Whether its worker never began with it; `lost` would say that the worker was."""
    return attempt.get("exit_class") == "lost_unstarted"


def _tell_run(document: Document, now: datetime | None = None) -> str:
    """How long a job or task ran: what had one try, as its process did, whose end may have been heard of much later."""
    tries = _find_tries(document)
    if len(tries) == 1 and document.get("ended_at") and (tries[0].get("usage") or {}).get("wall_s"):
        return short_span(_ran_s(tries[0]))
    return span_between(document.get("started_at"), document.get("ended_at"), now)


def _tell_retries(document: Document) -> str:
    """How often something was tried again: the failure or loss that ended it was not followed by another try."""
    ends: Document = document.get("tasks") or {str(document.get("state")): 1}
    kinds = (
        ("failures", "failed", "after a failure"),
        ("losses", "worker_failed", _word_losses(document)),
        ("outgrown", "", "on a larger card"),
        ("preemptions", "", "after preemption"),
    )
    counts = [((document.get(name) or 0) - ends.get(end, 0), words) for name, end, words in kinds]
    return ", ".join(f"{count} {words}" for count, words in counts if count > 0)


def _word_losses(document: Document) -> str:
    """What was charged as a loss: workers that were lost, or by a rule of the job also faults of the machine."""
    tries = _find_tries(document)
    lost = sum(1 for one in tries if one.get("phase") == "lost")
    faults = sum(1 for one in tries if one.get("phase") == "failed" and _kind_of(one) == "node")
    words = ["a lost worker"] if lost or not faults else []
    if faults and (document.get("losses") or 0) > lost:
        words.append("a fault of its machine")
    return f"after {' or '.join(words or ['a lost worker'])}"


def _kind_of(attempt: Document) -> str:
    return str((attempt.get("verdict") or {}).get("kind") or "")


def _tell_template(spec: Document) -> str:
    if not spec.get("template"):
        return ""
    digest = str((spec.get("rendered") or {}).get("digest", ""))[:19]
    values = ", ".join(f"{name}={value}" for name, value in (spec.get("params") or {}).items())
    return f"{spec['template']} ({digest}){f': {values}' if values else ''}"


def _tell_limit(spec: Document) -> str:
    """How long each task may run: what holds, and where that is not what was asked for, why."""
    asked_s = spec.get("max_runtime_s") or (spec.get("max_runtime_hours") or 0) * 3600
    if asked_s > MAX_RUNTIME_S:
        return (
            f"{format_seconds(MAX_RUNTIME_S)} at most (the longest; {format_seconds(asked_s)} was asked for)"
        )
    if asked_s or spec.get("type") == "service":
        return f"{format_seconds(asked_s)} at most" if asked_s else ""
    return f"{format_seconds(DEFAULT_RUNTIME_S)} at most (the default)"


def _tell_preference(condition: str, spec: Document) -> str:
    in_order = condition == "order" and spec.get("variants")
    return "the first alternative that fits" if in_order else f"{condition} preferred"


def _tell_command(words: Sequence[Any]) -> str:
    """The command as it would be typed; of a whole script inside it only how long that is."""
    lines = [str(word).count("\n") for word in words]
    told = [
        f"'… {count + 1} lines …'" if count else shlex.quote(str(word))
        for word, count in zip(words, lines, strict=True)
    ]
    return " ".join(told)


def _tell_ask(spec: Document) -> str:
    nodes = spec.get("node_count") or 1
    array: Document = spec.get("array") or {}
    cores = (spec.get("cpu_milli") or 0) / 1000 or spec.get("min_cpu_cores") or 0
    parts = [
        f"{nodes} nodes" if nodes > 1 else "",
        _tell_array(array) if array else "",
        f"{cores:g} core{'s' if cores != 1 else ''}" if cores else "",
        f"{format_bytes(spec['memory_bytes'])} memory" if spec.get("memory_bytes") else "",
        _tell_gpus(spec),
        *(f"port {text}" for text in spec.get("ports") or []),
        *(f"{condition} needed" for condition in spec.get("require") or []),
        *(_tell_preference(condition, spec) for condition in spec.get("prefer") or []),
    ]
    return clean(", ".join(filter(None, parts)))


def _tell_ports(job: Document) -> str:
    """Where its newest try is reached, by the names that the job gave to its ports."""
    newest: Document = next(reversed(job.get("attempts") or []), {})
    if newest.get("phase") not in ("accepted", "running") or not newest.get("ports"):
        return ""
    host = str(newest.get("address") or "")
    host = f"[{host}]" if ":" in host else host
    return clean(", ".join(f"{name} {host}:{number}" for name, number in newest["ports"].items()))


def _tell_peaks(job: Document, spec: Document) -> str:
    """What it asked for beside the most that any try of it used, where both are known."""
    tries = job.get("attempts") or []
    told = [_tell_memory(tries, spec), _tell_cores(tries, spec), _tell_cards(tries)]
    return "; ".join(filter(None, told))


def _tell_memory(tries: Sequence[Document], spec: Document) -> str:
    peak = max((int((one.get("usage") or {}).get("max_rss_bytes") or 0) for one in tries), default=0)
    asked = int(spec.get("memory_bytes") or 0)
    return f"you asked {format_bytes(asked)} of memory, used {format_bytes(peak)}" if asked and peak else ""


def _tell_cores(tries: Sequence[Document], spec: Document) -> str:
    """The most cores that a try kept busy in the mean; a moment is too short to mean anything."""
    asked = (spec.get("cpu_milli") or 0) / 1000 or spec.get("min_cpu_cores") or 0
    means = [
        cpu_s / span_s
        for one in tries
        if (cpu_s := (one.get("usage") or {}).get("cpu_s")) and (span_s := _ran_s(one)) >= 1
    ]
    if not asked or not means:
        return ""
    return f"you asked {asked:g} core{'s' if asked != 1 else ''}, used {max(means):.2f} in the mean"


def _ran_s(attempt: Document) -> float:
    """How long an attempt has run, up to its end or now."""
    wall_s = (attempt.get("usage") or {}).get("wall_s") or 0
    return float(wall_s) or seconds_between(attempt.get("started_at"), attempt.get("ended_at")) or 0.0


def _tell_cards(tries: Sequence[Document]) -> str:
    """How busy its cards were, in the try that kept them busiest; where nobody could look, that."""
    holding = [one for one in tries if one.get("devices")]
    seen = [use for one in holding if (use := one.get("usage") or {}).get("gpu_seen_s")]
    if not seen:
        return "how busy its GPUs were is not known" if holding else ""
    busiest = max(seen, key=lambda use: use["gpu_s"] / use["gpu_seen_s"])
    share = busiest["gpu_s"] / busiest["gpu_seen_s"]
    peak = max(use.get("max_gpu_bytes") or 0 for use in seen)
    return f"its GPUs were busy for {share:.0%} of the time, with at most {format_vram(peak)} of their memory"


def _tell_variants(spec: Document) -> str:
    """What each alternative asks for where it differs from the job, in order."""
    told = []
    for number, variant in enumerate(spec.get("variants") or []):
        # An alternative keeps only what differs: where it asks for nothing else, it asks for what the job does.
        words = _tell_ask(variant) or clean(str(variant.get("gpu_backend") or "")) or "as the job"
        told.append(f"{variant.get('name') or number}: {words}")
    return "; ".join(told)


def _tell_array(array: Document) -> str:
    step, limit = array.get("step", 1), array.get("limit", 0)
    first, last = array.get("first", 0), array.get("last", 0)
    # Of calls there is no last one until somebody closes their array.
    text = f"array {first}-{last}" if last >= first else "a task per call"
    if array.get("indices"):
        text = f"array {array['indices']}"
    return f"{text}{f':{step}' if step != 1 else ''}{f', {limit} at once' if limit else ''}"


def _tell_gpus(spec: Document) -> str:
    count = spec.get("gpu_count") or 0
    if not count:
        return ""
    kind = " ".join(str(spec[name]) for name in ("gpu_backend", "gpu_type") if spec.get(name))
    vram = spec.get("vram_per_gpu_bytes") or 0
    share = spec.get("gpu_milli") or 0
    amount = f"{share / 1000:g} of a" if share else str(count)
    text = f"{amount} {f'{kind} ' if kind else ''}GPU{'s' if count > 1 and not share else ''}"
    return f"{text} with {format_vram(vram)}" if vram else text


def draw_attempts(attempts: Sequence[Document]) -> str:
    rows = [
        [
            str(attempt.get("no", "")),
            str(attempt.get("worker") or "-"),
            "given back" if _was_given_back(attempt) else str(attempt.get("phase") or "-"),
            ",".join(map(str, attempt.get("devices") or [])) or "-",
            local_time(attempt.get("started_at")) or "-",
            short_span(_ran_s(attempt)) if attempt.get("started_at") else "-",
            _tell_attempt_end(attempt),
        ]
        for attempt in attempts
    ]
    return draw_table(ATTEMPT_COLUMNS, rows, terminal_width(), has_colour())


def _tell_attempt_end(attempt: Document) -> str:
    phase = str(attempt.get("phase") or "")
    state = (
        phase
        if phase in ("failed", "killed")
        else "failed"
        if phase in ("lost", "preempted", "revoked")
        else ""
    )
    words = describe_end({**attempt, "state": state})
    usage: Document = attempt.get("usage") or {}
    peak = f"peak {format_bytes(int(usage['max_rss_bytes']))}" if usage.get("max_rss_bytes") else ""
    cancel = str(attempt.get("cancel_reason") or "")
    # Of a preempted one the words say it already.
    reason = f"stopped by {cancel}" if cancel and not (words and cancel == phase) else ""
    step = attempt.get("saved_step")
    saved = (
        "" if step is None else f"saved step {step} after {format_seconds(attempt.get('saved_run_s') or 0)}"
    )
    variant = f"as {attempt['variant']}" if attempt.get("variant") else ""
    idle = f"idle ({attempt['idling']})" if attempt.get("idling") else ""
    return ", ".join(filter(None, (variant, words, reason, idle, saved, peak)))


def draw_task(task: Document, preempted: str = "") -> str:
    """All that `show ID/3` tells of a task."""
    index = task.get("array_index")
    pairs = [
        ("task", str(task.get("id", ""))),
        ("array index", "" if index is None else str(index)),
        ("state", paint(str(task.get("state", "")))),
        ("progress", tell_progress(task)),
        ("ended as", clean(describe_end(task))),
        *_tell_verdict(task),
        ("started", local_time(task.get("started_at"))),
        ("ended", _tell_time(task.get("ended_at"), task.get("started_at"), "ran")),
        ("worker", str(task.get("worker") or "")),
        ("tried again", _tell_retries(task)),
        ("preemption", clean(preempted)),
    ]
    blocks = [draw_pairs(pairs)]
    if task.get("attempts"):
        blocks.append(draw_attempts(task["attempts"]))
    return "\n\n".join(blocks)


def draw_event(event: Document) -> str:
    """One line per event, whatever further fields it has."""
    known = ("at", "type", "job_id", "task_id", "worker", "attempt", "message", "seq", "id")
    told = tell_note(event) if not event.get("message") else ""
    rest = {
        key: value
        for key, value in event.items()
        if not told and key not in known and value not in (None, "", [], {})
    }
    message = str(event.get("message") or told)
    # A message names the worker where that matters.
    where = f"on {event['worker']}" if event.get("worker") and not message else ""
    about = str(event.get("task_id") or event.get("job_id") or "")
    parts = [
        local_time(event.get("at")),
        f"{event.get('type', ''):<18}",
        about,
        where,
        message,
    ]
    return clean(" ".join(part for part in (*parts, _join(rest)) if part).rstrip())


def _join(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())
