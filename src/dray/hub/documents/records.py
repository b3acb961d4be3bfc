"""Records as the documents that people and programs read. Pure: state or rows in, plain dicts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from dray.core.lifecycle.holding.rollouts import is_moving
from dray.core.lifecycle.providers.prices import spell_money, spent_by
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.waiting.marks import LEAST_MS
from dray.core.model.ids import is_fake, task_id
from dray.core.model.records.records import Attempt, Job, JobState, Task
from dray.core.model.records.waits import REASONS, WORDS
from dray.core.model.records.worker import Progress, Use, Worker, why_not_ready
from dray.core.model.specs.larger import ask_beyond, tell_outgrown
from dray.core.model.specs.ports import name_ports
from dray.core.model.specs.spec import spec_document, unpack_spec
from dray.core.model.units import format_seconds
from dray.core.model.verdicts import KINDS, Verdict, judge, judge_attempt
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.explain.services import tell_rollout

Document = dict[str, Any]
_NOTHING_SAID: Mapping[str, Progress] = MappingProxyType({})
_NOTHING_SEEN: Mapping[str, Use] = MappingProxyType({})


def moment(at_ms: int) -> str | None:
    """Spell a wall time; None for "not yet"."""
    if not at_ms:
        return None
    # Lists hold thousands of them: days are spelled once.
    seconds, millis = divmod(at_ms, 1000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{_day(days)}T{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}Z"


@lru_cache(maxsize=512)
def _day(days: int) -> str:
    return f"{datetime.fromtimestamp(days * 86_400, UTC):%Y-%m-%d}"


def usage_document(attempt: Attempt, use: Use | None = None) -> Document:
    """What an attempt used, or `use` so far where it runs; of its cards None where nobody could look."""
    told = attempt if use is None else use
    return {
        "wall_s": attempt.wall_s,
        "cpu_s": told.cpu_s,
        "max_rss_bytes": told.max_rss_bytes,
        "gpu_s": told.gpu_s if told.gpu_seen_s else None,
        "gpu_seen_s": told.gpu_seen_s,
        "max_gpu_bytes": told.max_gpu_bytes if told.gpu_seen_s else None,
    }


def attempt_document(attempt: Attempt, job: Job, use: Use | None = None) -> Document:
    """One try of a task; `use` is what it has used so far, where it runs."""
    spec = unpack_spec(job.spec)
    # By another revision there may have been others.
    variants = spec.variants if attempt.revision == job.revision else []
    return {
        "no": attempt.no,
        "uid": attempt.uid,
        "fence": attempt.fence,
        "task_id": task_id(attempt.job_id, job.spelled(attempt.index)),
        "worker": attempt.worker,
        "fake": is_fake(attempt.worker),
        "phase": attempt.phase.value,
        "devices": list(attempt.devices),
        "address": attempt.address,
        "ports": name_ports(spec.ports, attempt.ports),
        "variant": (variants[attempt.variant].name or str(attempt.variant)) if variants else "",
        "assigned_at": moment(attempt.assigned_at_ms),
        "accepted_at": moment(attempt.accepted_at_ms),
        "started_at": moment(attempt.started_at_ms),
        "ended_at": moment(attempt.ended_at_ms),
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "exit_class": attempt.exit_class,
        "error": attempt.error,
        "verdict": verdict_document(judge_attempt(attempt), job, attempt),
        "usage": usage_document(attempt, use),
        "price_per_hour": spell_money(attempt.rate),
        "money": spell_money(spent_by(attempt)) if attempt.ended_at_ms else None,
        "cancel_reason": attempt.cancel,
        "idling": attempt.idling,
        "saved_step": attempt.saved_step if attempt.saved_ms else None,
        "saved_run_s": attempt.saved_ms / 1000,
    }


def verdict_document(verdict: Verdict | None, job: Job, attempt: Attempt | None = None) -> Document | None:
    """Why something did not succeed, with what it rests on and what to do next."""
    if verdict is None:
        return None
    index = job.spelled(attempt.index) if attempt is not None else -1
    # Of an array most tasks went well, as a rule: what failed is enough.
    again = "requeue --failed" if job.numbered and not job.gang else "submit --from"
    names = {
        "job": job.id,
        "task": task_id(job.id, index),
        "worker": attempt.worker if attempt else "",
        # A function is not in the record as something that could be submitted: its program has it.
        "again": "call it again" if job.calls else f"dray {again} {job.id}",
        "larger": "call it again with vram=SIZE" if job.calls else f"dray submit --from {job.id} --vram SIZE",
    }
    return {
        "kind": verdict.kind,
        "title": KINDS[verdict.kind].title,
        "evidence": list(verdict.evidence),
        "step": verdict.step.format_map(names),
    }


def end_verdict(job: Job, state: JobState, end: Document, newest: Attempt | None) -> Document | None:
    """The verdict on a task, or on a job of one, that has ended so: its last attempt's, where it ended as that did."""
    if not state.final or state is JobState.SUCCEEDED:
        return None
    exit_class = end["exit_class"] or ("cancelled" if state is JobState.KILLED else state.value)
    ended = judge(exit_class, end["error"], exit_code=end["exit_code"])
    if newest is None or state is JobState.KILLED:
        return verdict_document(ended, job, newest)
    own = judge_attempt(newest)
    # A fault of the machine may be charged as a loss: then the attempt says which, and the end why that was the last.
    if newest.exit_class != end["exit_class"] and (own is None or own.kind != ended.kind):
        return verdict_document(ended, job, newest)
    if own is not None and end["error"] not in ("", newest.error):
        own = own._replace(evidence=(*own.evidence, end["error"]))
    return verdict_document(own, job, newest)


def group_failures(tasks: Sequence[Document]) -> list[Document]:
    """The verdicts on some tasks, the most frequent first: how many share each, and what the first one shows."""
    groups: dict[str, Document] = {}
    for task in tasks:
        if task["verdict"] is not None:
            fresh = task["verdict"] | {"tasks": 0, "task_id": task["id"]}
            groups.setdefault(task["verdict"]["kind"], fresh)["tasks"] += 1
    return sorted(groups.values(), key=lambda group: -group["tasks"])


def progress_document(progress: Progress | None) -> Document | None:
    """The last a running task said of itself; None where it said nothing, or nothing runs."""
    if progress is None:
        return None
    return {
        "step": progress.step,
        "fraction": progress.fraction,
        "note": progress.note,
        "at": moment(progress.at_ms),
    }


def job_document(
    job: Job,
    task: Task | None,
    attempts: Sequence[Attempt],
    reason: str = "",
    progress: Mapping[str, Progress] = _NOTHING_SAID,
    uses: Mapping[str, Use] = _NOTHING_SEEN,
) -> Document:
    """One job; `task` and `attempts` are those of its only task, None and empty for an array."""
    spec = unpack_spec(job.spec)
    shown = spec_document(spec)
    shown["id"] = job.id
    # Nobody reads it, and it may be large: that there is one is said by `calls`.
    shown.pop("function", None)
    newest = max(attempts, key=lambda attempt: attempt.no, default=None)
    document: Document = {
        "id": job.id,
        "name": job.name,
        "type": spec.type,
        "state": job.state.value,
        "phase": _phase(job, newest),
        "reason": reason,
        "user": job.user,
        "queue": job.queue,
        "priority": job.priority,
        "tier": job.tier,
        "labels": spec.labels,
        "workload": spec.workload,
        "submitted_at": moment(job.submitted_at_ms),
        "started_at": moment(task.started_at_ms if task else job.started_at_ms),
        "ended_at": moment(job.ended_at_ms),
        "worker": newest.worker if newest else "",
        "tasks": task_counts(job),
        "attempts": [attempt_document(attempt, job, uses.get(attempt.uid)) for attempt in attempts],
        "attempt_count": task.attempts if task else len(attempts),
        "cancel_requested": job.cancelled,
        "progress": progress_document(progress.get(newest.uid)) if newest else None,
        "held": job.held,
        "held_by": job.held_by,
        "after": list(job.after),
        "edited": _was_edited(job),
        "learned": tell_outgrown(job.outgrown_bytes, job.outgrown_by, job.id),
        "calls": job.calls,
        "money": spell_money(job.money),
        "spec": shown,
    }
    end = _ending(job, task)
    # Each task of several has its own.
    whole = job.gang or not job.numbered or not job.cursor
    verdict = end_verdict(job, job.state, end, newest) if whole else None
    return document | end | {"verdict": verdict}


def waits_document(ledger: Sequence[int]) -> Document | None:
    """For how long a job has waited for what, the longest first; None where it hardly waited."""
    spans = sorted(((ms / 1000, name) for ms, name in zip(ledger, REASONS, strict=False) if ms), reverse=True)
    total_s = sum(seconds for seconds, _ in spans)
    if total_s * 1000 < LEAST_MS:
        return None
    # What is no hundredth of it is left out of the sentence.
    told = [f"{format_seconds(seconds)} {WORDS[name]}" for seconds, name in spans if seconds * 100 >= total_s]
    return {
        "seconds": total_s,
        "parts": [{"reason": name, "words": WORDS[name], "seconds": seconds} for seconds, name in spans],
        "message": f"waited {format_seconds(total_s)}: {', '.join(told)}",
    }


def _was_edited(job: Job) -> bool:
    """Whether somebody changed it since the submit: what it has learned is told apart."""
    if not job.original or not job.outgrown_bytes:
        return bool(job.original)
    return job.spec != ask_beyond(job.original, job.outgrown_bytes)


def task_counts(job: Job) -> dict[str, int]:
    """How many of a job's tasks are in which state."""
    return {
        "total": job.total,
        "pending": job.total - job.ended - job.running,
        "running": job.running,
        "succeeded": job.succeeded,
        "failed": job.failed,
        "killed": job.killed,
        "worker_failed": job.worker_failed,
        "unschedulable": job.unschedulable,
    }


def _ending(job: Job, task: Task | None) -> Document:
    if task is None:
        empty = {
            "exit_code": None,
            "signal": 0,
            "exit_class": "",
            "failures": 0,
            "losses": 0,
            "preemptions": 0,
            "outgrown": 0,
        }
        if job.rest.final and not job.numbered:
            usual = "cancelled" if job.rest is JobState.KILLED else job.rest.value
            empty["exit_class"] = job.rest_class or usual
        return {**empty, "error": job.error}
    return {
        "exit_code": task.exit_code,
        "signal": task.signal,
        "exit_class": task.exit_class,
        "error": task.error or job.error,
        "failures": task.failures,
        "losses": task.losses,
        "preemptions": task.preemptions,
        "outgrown": task.outgrown,
    }


def _phase(job: Job, newest: Attempt | None) -> str:
    if newest is not None and newest.phase.live:
        return newest.phase.value
    return "queued" if job.waiting and not job.state.final else ""


def task_document(
    job: Job,
    index: int,
    task: Task | None,
    attempts: Sequence[Attempt],
    progress: Mapping[str, Progress] = _NOTHING_SAID,
    uses: Mapping[str, Use] = _NOTHING_SEEN,
) -> Document:
    """One task; one that was never placed has no record and shares the state of the job's rest."""
    task = task or Task(
        job_id=job.id,
        index=index,
        state=job.rest,
        exit_class=job.rest_class,
        error=job.error if job.rest.final else "",
    )
    array = unpack_spec(job.spec).array
    newest = max(attempts, key=lambda attempt: attempt.no, default=None)
    waiting = not task.state.final and not task.current
    end = {"exit_class": task.exit_class, "error": task.error, "exit_code": task.exit_code}
    return {
        "verdict": end_verdict(job, task.state, end, newest),
        "id": task_id(job.id, job.spelled(index)),
        "index": job.spelled(index),
        "array_index": array.index_of(index) if array else None,
        "state": task.state.value,
        "phase": newest.phase.value if newest and newest.phase.live else "queued" if waiting else "",
        "worker": newest.worker if newest else "",
        "attempts": [attempt_document(attempt, job, uses.get(attempt.uid)) for attempt in attempts],
        "failures": task.failures,
        "losses": task.losses,
        "preemptions": task.preemptions,
        "outgrown": task.outgrown,
        "exit_code": task.exit_code,
        "signal": task.signal,
        "exit_class": task.exit_class,
        "error": task.error,
        "started_at": moment(task.started_at_ms),
        "ended_at": moment(task.ended_at_ms),
        "progress": progress_document(progress.get(newest.uid)) if newest else None,
    }


def is_cut_off(state: State, worker_id: str) -> bool:
    """Whether a worker went away without a goodbye: what runs there may go on, and nobody knows."""
    worker, presence = state.workers[worker_id], state.presence[worker_id]
    return not presence.session and not worker.left and presence.seen_at_ms > 0


def tell_silence(state: State, attempts: Sequence[Attempt]) -> str:
    """What is to be known of something that runs, as far as anybody knows, on a worker that is not heard."""
    for attempt in attempts:
        if attempt.phase.live and attempt.worker in state.workers and is_cut_off(state, attempt.worker):
            return f"its worker {attempt.worker} is silent since {moment(state.presence[attempt.worker].seen_at_ms)}"
    return ""


def worker_line(state: State, worker_id: str) -> Document:
    """A worker in the words of `worker_list_response`."""
    worker, presence = state.workers[worker_id], state.presence[worker_id]
    capability, slots = worker.capability, presence.slots if presence.session else worker.slots
    active = len(state.held.get(worker_id, ()))
    total = slots.batch_total + slots.service_total
    online = bool(presence.session) and not worker.silent
    able = not (worker.draining or presence.suspect or why_not_ready(presence, state.now_ms))
    room = online and able and active < max(total, 1)
    return {
        "id": worker_id,
        "backend": capability.gpu_backend or "cpu",
        "gpu_count": capability.gpu_count,
        "vram_gb": capability.vram_gb,
        "cpu_count": capability.cpu_count,
        "status": "ready" if room else "busy" if online else "offline",
        "active_jobs": active,
        "total_slots": total,
        "last_heartbeat": moment(presence.seen_at_ms),
    }


def check_readiness(state: State) -> Document:
    """Whether every worker that is there can start work, as a check of the doctor's."""
    unable = [
        f"{worker_id} is not ready: {why}"
        for worker_id, presence in state.presence.items()
        if presence.session and worker_id in state.workers and (why := why_not_ready(presence, state.now_ms))
    ]
    return {"name": "workers ready", "ok": not unable, "detail": "; ".join(unable[:20])}


def worker_tasks(state: State, worker_id: str) -> list[Document]:
    """What runs on a worker, in the words of `worker_show_response`."""
    lines = []
    for uid in state.held.get(worker_id, ()):
        attempt = state.attempts[uid]
        job = state.jobs[attempt.job_id]
        line = {"task_id": state.spell(attempt), "job_name": job.name, "status": attempt.phase.value}
        lines.append({**line, "started_at": moment(attempt.started_at_ms), "user": job.user})
    return lines


def tell_drain(worker: Worker) -> str:
    """That a worker is drained, why, and until when."""
    until = f"until {moment(worker.drain_until_ms)}" if worker.drain_until_ms else ""
    why = ", ".join(filter(None, (worker.drain_reason, until)))
    return f"{worker.drain_word} ({why})" if why else worker.drain_word


def _tell_staying(state: State, worker_id: str) -> str:
    """Which replicas of services are still there and what they wait for: each goes once another is ready elsewhere."""
    held = (state.attempts[uid] for uid in state.held.get(worker_id, ()))
    staying = [one for one in held if state.jobs[one.job_id].service and is_moving(state, one)]
    if not staying:
        return ""
    first = staying[0]
    more = f" and {len(staying) - 1} more" if len(staying) > 1 else ""
    told = tell_rollout(state, state.jobs[first.job_id])
    return f"; {state.spell(first)}{more} of services to move{f' ({told})' if told else ''}"


def worker_document(state: State, worker_id: str) -> Document:
    """A worker with all that is known of it."""
    worker, presence = state.workers[worker_id], state.presence[worker_id]
    row, rooms, columns = state.columns.row_of[worker_id], Rooms(state), state.columns
    batch, service = rooms.room(row, "batch"), rooms.room(row, "service")
    not_ready = why_not_ready(presence, state.now_ms) if presence.session else ""
    details = (
        (tell_drain(worker) + _tell_staying(state, worker_id), worker.draining),
        ("said goodbye", worker.left and not presence.session),
        ("silent", worker.silent or is_cut_off(state, worker_id)),
        ("suspect", presence.suspect),
        (f"not ready: {not_ready}", bool(not_ready)),
        ("on trial after a quarantine", worker.on_trial),
        ("not seen since the hub started", not presence.seen_at_ms),
        ("has not asked for work", bool(presence.session) and not presence.credit),
    )
    return worker_line(state, worker_id) | {
        "fake": is_fake(worker_id),
        "state_detail": next((words for words, holds in details if holds), ""),
        "gpu_type": worker.capability.gpu_type,
        "memory_gb": worker.capability.memory_gb,
        "hostname": worker.capability.hostname,
        "draining": worker.draining,
        "faults": worker.faults,
        "drained_by": worker.drained_by,
        "drain_reason": worker.drain_reason,
        "ends_at": moment(worker.ends_at_ms),
        "version": worker.version,
        "drain_until": moment(worker.drain_until_ms),
        "labels": worker.all_labels,
        "given_labels": worker.given,
        "resources": worker.resources,
        "devices": [
            {
                "index": card.index,
                "uuid": card.uuid,
                "model": card.model,
                "vram_bytes": card.vram_bytes,
                "healthy": card.healthy,
            }
            for card in worker.devices
        ],
        "features": list(worker.features),
        "address": worker.address,
        "slots": {
            "batch_total": presence.slots.batch_total,
            "batch_in_use": presence.slots.batch_in_use,
            "service_total": presence.slots.service_total,
            "service_in_use": presence.slots.service_in_use,
        },
        "free": {
            "cpu_milli": batch.free_cpu,
            "memory_bytes": batch.free_mem,
            "gpus": columns.get("free_gpu", row),
            "batch_slots": max(0, batch.slots_free),
            "service_slots": max(0, service.slots_free),
        },
        "quarantined": list(worker.quarantined),
        "registered_at": moment(worker.registered_at_ms),
    }
