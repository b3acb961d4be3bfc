"""The smallest single change to a job that would let it start now, found by asking the planner itself.

Each kind of change proposes at most a few values, read off the columns; the pass's own way decides whether one works.
Work is bounded by counts. The surprising rule: `seek_change` is a generator that stops after each few tries, so that
whoever runs it can let others in between; it looks at the state afresh after every stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from dray.core.lifecycle.state.parties import QuotaGate
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.model.specs.ports import LEASED, is_port
from dray.core.model.specs.resources import WHOLE, Ask, Asks
from dray.core.model.units import GB, format_bytes
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.capacity.survey import Scan, Survey
from dray.core.scheduling.explain.reason import Change, count, span
from dray.core.scheduling.explain.trial import Guest, fits_now
from dray.core.scheduling.passes.overlay import look_through
from dray.core.scheduling.turns.victim_rules import rule_for, scarce_kind

GIB, MIB, MINUTE_MS = 1 << 30, 1 << 20, 60_000
MOST_VARIANTS, TRIES = 4, 4
# Whatever takes nothing away but a wish counts as half; what costs others their work comes last.
WISH, OTHERS_WORK = 0.5, 2.0
TOP_PRIORITY = (1 << 31) - 1


class Proposal(NamedTuple):
    """One value of one kind of change, not yet tried. `size`: how much of the ask it takes away, 0 to 1."""

    kind: str
    flag: str
    value: str
    was: str
    size: float
    asks: Asks
    limit_ms: int = -1
    assign: str = ""


def seek_change(state: State, job_id: str) -> Iterator[Change | None]:
    """Try changes to a job that waits, kind by kind; stops after each with the smallest that works so far."""

    def find() -> Job | None:
        job = state.jobs.get(job_id)
        return job if job is not None and job.waiting else None

    return seek_change_for(state, find)


def seek_change_for(
    state: State, find: Callable[[], Job | None], asks: Asks | None = None
) -> Iterator[Change | None]:
    """The same for a job that is found anew after each stop, or one that nobody has submitted, with its asks."""
    best: Change | None = None
    for number in range(MOST_VARIANTS):
        for kind in _KINDS:
            job = find()
            if job is None or job.barred or (job.limit and job.live >= job.limit):
                return
            known = asks or state.asks(job.shape)
            if number >= len(known):
                break
            with Guest(state, job, known) as tried:
                best = _try_kind(state, tried, number, kind, best.size if best else OTHERS_WORK) or best
            yield best
    job = find()
    if best is None and job is not None:
        with Guest(state, job, asks or state.asks(job.shape)) as tried:
            best = _raise_priority(state, tried)
        yield best


def _try_kind(state: State, job: Job, number: int, kind: _Kind, below: float) -> Change | None:
    """The first proposal of a kind that works, if it is smaller than what is known already."""
    survey = Survey(state, Rooms(state))
    for tried, proposal in enumerate(kind(state, survey, job, number)):
        if tried >= TRIES:
            return None
        if proposal.size >= below:
            continue
        worker = _works(state, job, proposal)
        if worker:
            words = f"would start now with {proposal.flag} {proposal.value}".rstrip()
            if not proposal.value:
                words = f"would start now without {proposal.flag} {proposal.was}"
            if len(proposal.asks) > 1:
                words += f" in alternative {number}"
            return Change(
                proposal.kind,
                proposal.flag,
                proposal.value,
                proposal.was,
                words,
                proposal.size,
                worker,
                assign=proposal.assign if len(proposal.asks) == 1 else "",
            )
    return None


def _works(state: State, job: Job, proposal: Proposal) -> str:
    """The worker on which it would start, by the pass's own way; empty where it would still wait."""
    nodes = proposal.asks[0].nodes
    changed = job
    if job.gang:
        changed = msgspec.structs.replace(job, total=nodes, nodes=nodes, gang=nodes > 1)
    if proposal.limit_ms >= 0:
        changed = msgspec.structs.replace(changed, limit_ms=proposal.limit_ms)
    with Guest(state, changed, proposal.asks) as tried:
        spot = fits_now(look_through(state), tried)
        return state.columns.worker_of[spot.row] if spot is not None else ""


_Kind = Callable[[State, Survey, Job, int], Iterator[Proposal]]


def _with(asks: Asks, number: int, ask: Ask) -> Asks:
    return (*asks[:number], ask, *asks[number + 1 :])


def _fitting(survey: Survey, job: Job, ask: Ask) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The workers that have room for an ask, whoever it may be kept for."""
    return np.flatnonzero(Scan(survey, ask, job.id).fits)


def _fewer_gpus(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    asks = state.asks(job.shape)
    ask = asks[number]
    if ask.gpus < 2 or ask.gpu_milli != WHOLE:
        return
    rows = _fitting(survey, job, _replace(ask, gpus=1))
    if not len(rows):
        return
    most = min(ask.gpus - 1, int(state.columns.view["free_gpu"][rows].max()))
    for gate in state.parties.all[job.party].gates:
        if isinstance(gate, QuotaGate):
            most = min(most, max(0, gate.limit_milli - gate.gpu_milli) // WHOLE // max(1, ask.nodes))
    flag, key = ("--gpus", "gpus") if ask.nodes == 1 else ("--gpus-per-node", "gpus_per_node")
    for gpus in range(most, 0, -1):
        asked = _with(asks, number, _replace(ask, gpus=gpus))
        yield Proposal(
            "gpu", flag, str(gpus), str(ask.gpus), 1 - gpus / ask.gpus, asked, assign=f"{key}={gpus}"
        )


def _smaller_share(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    """A share of a card that is free now."""
    asks = state.asks(job.shape)
    ask = asks[number]
    if not ask.gpus or ask.gpu_milli == WHOLE:
        return
    rows = _fitting(survey, job, _replace(ask, gpu_milli=1))
    most = int(state.columns.view["best_milli"][rows].max()) if len(rows) else 0
    milli = min(most, ask.gpu_milli - 1)
    if milli > 0:
        value = f"{milli / WHOLE:g}"
        asked = _with(asks, number, _replace(ask, gpu_milli=milli))
        share = 1 - milli / ask.gpu_milli
        yield Proposal(
            "gpu", "--gpus", value, f"{ask.gpu_milli / WHOLE:g}", share, asked, assign=f"gpus={value}"
        )


def _less_vram(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    asks = state.asks(job.shape)
    ask, columns = asks[number], state.columns
    if ask.vram_each_bytes:
        sizes = np.unique(columns.device_vram[: columns.count] // GB * GB)[::-1]
        for size in [int(size) for size in sizes if 0 < size < ask.vram_each_bytes]:
            asked = _with(asks, number, _replace(ask, vram_each_bytes=size))
            share, value = 1 - size / ask.vram_each_bytes, f"{size // GB}G"
            yield Proposal(
                "vram",
                "--vram",
                value,
                f"{ask.vram_each_bytes / GB:g}G",
                share,
                asked,
                assign=f"vram={value}",
            )
    elif ask.vram_total_bytes:
        rows = _fitting(survey, job, _replace(ask, vram_total_bytes=0))
        if len(rows):
            free = columns.device_free[rows] >= ask.gpu_milli
            best = -np.sort(-np.where(free, columns.device_vram[rows], 0), axis=1)[:, : ask.gpus]
            total = int(best.sum(axis=1).max()) // GB * GB
            asked = _with(asks, number, _replace(ask, vram_total_bytes=total))
            share, was = 1 - total / ask.vram_total_bytes, f"{ask.vram_total_bytes / GB:g}"
            yield Proposal(
                "vram",
                "min_vram_gb",
                f"{total // GB}",
                was,
                share,
                asked,
                assign=f"min_vram_gb={total // GB}",
            )


def _less_memory(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    asks = state.asks(job.shape)
    ask = asks[number]
    rows = _fitting(survey, job, _replace(ask, memory_bytes=0)) if ask.memory_bytes else ()
    if len(rows):
        most = int(survey.rooms.free("mem")[rows].max())
        unit = GIB if most >= GIB else MIB
        if 0 < (least := most // unit * unit) < ask.memory_bytes:
            value = f"{least // GIB}g" if unit == GIB else f"{least // MIB}m"
            asked = _with(asks, number, _replace(ask, memory_bytes=least))
            share, was = 1 - least / ask.memory_bytes, format_bytes(ask.memory_bytes)
            yield Proposal("memory", "--mem", value, was, share, asked, assign=f"mem={value}")


def _fewer_cores(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    asks = state.asks(job.shape)
    ask = asks[number]
    rows = _fitting(survey, job, _replace(ask, cpu_milli=0)) if ask.cpu_milli else ()
    if len(rows):
        most = int(survey.rooms.free("cpu")[rows].max())
        unit = 1000 if most >= 1000 else 100
        if 0 < (milli := most // unit * unit) < ask.cpu_milli:
            asked = _with(asks, number, _replace(ask, cpu_milli=milli))
            share, was = 1 - milli / ask.cpu_milli, f"{ask.cpu_milli / 1000:g}"
            yield Proposal(
                "cpu", "--cpus", f"{milli / 1000:g}", was, share, asked, assign=f"cpus={milli / 1000:g}"
            )


def _any_type(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    asks = state.asks(job.shape)
    ask = asks[number]
    if ask.gpu_type:
        asked = _with(asks, number, _replace(ask, gpu_type=""))
        yield Proposal("gpu_type", "--gpu-type", "", ask.gpu_type, WISH, asked, assign="gpu_type=")
    if ask.device_variant:
        asked = _with(asks, number, _replace(ask, device_variant=""))
        yield Proposal(
            "device",
            "--device",
            ask.device_kind,
            ask.device_variant,
            WISH,
            asked,
            assign=f"device={ask.device_kind}",
        )


def _other_backend(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    asks = state.asks(job.shape)
    ask = asks[number]
    if ask.backend:
        for backend in dict.fromkeys(offer.backend for offer in state.columns.offers):
            if backend != ask.backend and (not ask.gpus or backend != "cpu"):
                asked = _with(asks, number, _replace(ask, backend=backend))
                yield Proposal(
                    "backend", "--backend", backend, ask.backend, WISH, asked, assign=f"backend={backend}"
                )


def _fewer_labels(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    asks = state.asks(job.shape)
    ask = asks[number]
    for condition in ask.require:
        kept = tuple(other for other in ask.require if other != condition)
        asked = _with(asks, number, _replace(ask, require=kept))
        yield Proposal("label", "--require", "", condition, WISH, asked, assign=f"require={','.join(kept)}")


def _less_of_named(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    asks = state.asks(job.shape)
    ask = asks[number]
    for name, amount in ask.resources:
        if is_port(name) or name == LEASED:
            continue
        others = tuple((other, much) for other, much in ask.resources if other != name)
        rows = _fitting(survey, job, _replace(ask, resources=others))
        column = state.columns.view.get(f"named {name}")
        if len(rows):
            most = int(column[rows].max()) if column is not None else 0
            if 0 <= most < amount:
                kept = tuple(sorted((*others, (name, most)))) if most else others
                asked = _with(asks, number, _replace(ask, resources=kept))
                value = f"{name}={most}"
                told = ",".join(f"{other}={much}" for other, much in kept)
                yield Proposal(
                    "resource",
                    "resources",
                    value,
                    f"{name}={amount}",
                    1 - most / amount,
                    asked,
                    assign=f"resources={told}",
                )


def _fewer_nodes(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    asks = state.asks(job.shape)
    ask = asks[number]
    if ask.nodes < 2:
        return
    most = min(ask.nodes - 1, len(_fitting(survey, job, ask)))
    for nodes in range(most, 0, -1):
        asked = tuple(_replace(one, nodes=nodes) for one in asks)
        yield Proposal("nodes", "--nodes", str(nodes), str(ask.nodes), 1 - nodes / ask.nodes, asked)


def _less_time(state: State, survey: Survey, job: Job, number: int) -> Iterator[Proposal]:
    """Work that ends before a reservation begins may pass it."""
    asks = state.asks(job.shape)
    starts = sorted({kept.start_ms - state.now_ms for kept in state.reservations.values()}, reverse=True)
    for left_ms in starts:
        limit_ms = left_ms // MINUTE_MS * MINUTE_MS
        if 0 < limit_ms < job.limit_ms:
            share = 1 - limit_ms / job.limit_ms
            value = f"{limit_ms // MINUTE_MS}m"
            yield Proposal(
                "time", "--time", value, span(job.limit_ms), share, asks, limit_ms, f"time={value}"
            )


_KINDS: tuple[_Kind, ...] = (
    _less_time,
    _fewer_gpus,
    _smaller_share,
    _less_vram,
    _less_memory,
    _fewer_cores,
    _fewer_nodes,
    _less_of_named,
    _any_type,
    _other_backend,
    _fewer_labels,
)


def _raise_priority(state: State, job: Job) -> Change | None:
    """The least priority with which others would be stopped for it, where the rules allow that."""
    ask = state.asks(job.shape)[0]
    top = msgspec.structs.replace(job, priority=TOP_PRIORITY, ranked=True)
    if rule_for(state, top, scarce_kind(ask)) not in ("priority", "pressure"):
        return None
    overlay = look_through(state)
    if overlay.gates.room_for(top)[0] <= 0:
        return None  # whoever is stopped, its quota or pace lets it in no sooner
    found, _ = overlay.search.seek(top, 0)
    if found is None:
        return None
    # Who is only moved aside need not be below it.
    moved = {move.uid for move in found.moves}
    least = max(state.jobs[state.attempts[uid].job_id].priority + (uid not in moved) for uid in found.victims)
    if least <= job.priority or least > TOP_PRIORITY:
        return None
    raised = msgspec.structs.replace(job, priority=least, ranked=True)
    again, _ = look_through(state).search.seek(raised, 0)
    if again is None:
        return None
    words = f"with --priority {least} it would stop {count(len(again.victims), 'task')} and start when gone"
    return Change(
        "priority",
        "--priority",
        str(least),
        str(job.priority),
        words,
        OTHERS_WORK,
        again.workers[0],
        len(again.victims),
        f"priority={least}",
    )


def _replace(ask: Ask, **fields: object) -> Ask:
    return msgspec.structs.replace(ask, **fields)
