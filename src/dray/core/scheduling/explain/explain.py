"""Why a job waits: every rule asked of every worker, every gate, and everybody who comes first.

Asks the very filters, gates and keepers that a pass uses, on an overlay that is thrown away. "Cannot now" and "cannot
ever on any known worker" are different answers. `explain` gives everything; `headline` only the words for lists, and
many of them share one `View`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.dependency import read_need
from dray.core.model.specs.resources import Ask, Rejection
from dray.core.scheduling.capacity.survey import Kind, Scan, Survey
from dray.core.scheduling.explain.gate_reasons import gate_blockers
from dray.core.scheduling.explain.holders import find_holders, find_moved, find_start, find_underway
from dray.core.scheduling.explain.place_in_line import find_place
from dray.core.scheduling.explain.reason import (
    START_CARDS,
    Blocker,
    Reason,
    advise,
    count,
    message_of,
    span,
    tell_start,
    tell_underway,
    word_blocker,
)
from dray.core.scheduling.explain.services import replica_blockers, tell_service, use_blockers
from dray.core.scheduling.explain.withheld import find_withheld
from dray.core.scheduling.explain.worker_classes import sort_by_class
from dray.core.scheduling.passes.overlay import Overlay, look_through
from dray.core.scheduling.turns.reservation_rights import kept_for

MOST_WORKERS = 50
MOST_VARIANTS = 8
__all__ = ["View", "explain", "headline", "look_ahead", "message_of"]


class View:
    """One moment, for as many questions as are asked of it: nothing in it may outlive the turn."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.overlay: Overlay = look_through(state)
        self.survey = Survey(state, self.overlay.rooms)
        self.told: dict[tuple[object, ...], str] = {}

    def scans(self, job: Job) -> list[Scan]:
        """A job's alternatives held against all workers."""
        self.overlay.look_for(job)
        asks = self.state.asks(job.shape)[:MOST_VARIANTS]
        return [Scan(self.survey, ask, job.id) for ask in asks]


class Verdict:
    """What the workers say to a job: the alternative that comes closest, and whether it fits now or ever."""

    def __init__(self, state: State, scans: Sequence[Scan]) -> None:
        self.scans, self.best = scans, 0
        if len(scans) > 1:
            self.best = max(
                range(len(scans)), key=lambda number: (*_closeness(state, scans[number]), -number)
            )
        scan = scans[self.best]
        self.able, self.ready = count_members(state, scan.ask, scan)
        self.nodes = scan.ask.nodes
        self.fits = self.ready >= self.nodes
        self.ever = self.able < self.nodes
        self.short: list[Blocker] = []
        if self.nodes > 1 and not self.fits:
            self.short.append(self._shortage(scan, int(scan.survey.known.sum())))

    def blockers(self) -> list[Blocker]:
        """Every rule that refuses somebody, of every alternative."""
        return [
            word_rule(each, kind, number)
            for number, each in enumerate(self.scans)
            for kind in rank_rules(each, list(each.refused))
        ]

    def words(self) -> str:
        """The workers' part of the one line."""
        scan, lead = self.scans[self.best], [blocker.message for blocker in self.short]
        if self.fits:
            return "it fits now and is about to start"
        if self.ever:
            known = "the known workers" if lead else "any known worker"
            if not lead:
                kinds = rank_rules(scan, [kind for kind in scan.refused if kind[1]])
                lead = [word_rule(scan, kind, self.best).message for kind in kinds[:1]]
            return f"cannot ever start on {known}: {lead[0] if lead else 'nothing fits'}"
        near = [
            kind for kind, mask in scan.refused.items() if not kind[1] and bool((mask & scan.possible).any())
        ]
        told = [word_rule(scan, kind, self.best).message for kind in rank_rules(scan, near)[:3]]
        return f"cannot start now: {'; '.join([*lead, *told])}"

    def _shortage(self, scan: Scan, known: int) -> Blocker:
        alike = "" if scan.ask.mixed_backends else " of one backend"
        if self.ever:
            have = str(self.able)
            text = f"needs {self.nodes} workers{alike} at once, {have} of {known} could ever run a task of it"
            return Blocker("nodes", str(self.nodes), have, known - self.able, True, text, self.best)
        text = f"needs {self.nodes} workers at once, {self.ready} of {known} have room now"
        return Blocker("nodes", str(self.nodes), str(self.ready), known - self.ready, False, text, self.best)


def explain(state: State, job: Job, view: View | None = None) -> Reason:
    """Everything that stands in a job's way; `look_ahead` adds when that may end."""
    settled, moved = _settled(state, job), find_moved(state, job)
    if settled:
        words = "; ".join(blocker.message for blocker in moved) or settled
        return Reason(state=job.state.value, summary=words, blockers=[*moved, *replica_blockers(state, job)])
    view = view or View(state)
    barriers = [*_barred(state, job), *_own_cap(job), *gate_blockers(state, job, view.overlay.gates)]
    if len(moved) >= job.waiting:
        barriers += moved  # nothing else of it waits
    reason = Reason(state=job.state.value, summary="", known=len(state.workers))
    reason.place = find_place(state, job)
    if not state.workers:
        reason.fix = _release(job) or "start one: dray worker start"
        reason.blockers = barriers
        reason.summary = _summary(barriers, "no worker has joined yet", None)
        return reason
    scans = view.scans(job)
    verdict = Verdict(state, scans)
    reason.fits, reason.ever = verdict.fits and not _stopping(barriers), verdict.ever
    if verdict.ever:
        reason.place = None  # whoever is first in line for what is not there is no closer to it
    blockers = verdict.blockers()
    reason.blockers = [*barriers, *verdict.short, *blockers, *replica_blockers(state, job)]
    reason.classes = [group for number, scan in enumerate(scans) for group in sort_by_class(scan, number)]
    reason.workers = _closest_workers(scans[verdict.best])
    reason.underway = find_underway(state, job)
    reason.start = find_start(state, job, view.overlay.rooms, ())
    reason.fix = _fix(job, verdict, _stopping(barriers))
    reason.summary = _summary(barriers, verdict.words(), reason)
    return reason


def look_ahead(state: State, job: Job, reason: Reason, view: View | None = None) -> None:
    """Add who holds what is missing, and when it starts at the latest by the time limits of what runs."""
    if reason.ever or not reason.known or not job.waiting:
        return
    view = view or View(state)
    scans = view.scans(job)
    verdict = Verdict(state, scans)
    if not verdict.fits:
        reason.start = find_start(state, job, view.overlay.rooms, scans)
        reason.holders = find_holders(state, view.overlay.rooms, scans[verdict.best])
        if reason.underway is None and (withheld := find_withheld(state, job, view.overlay.gates)):
            reason.blockers.insert(0, withheld)


def headline(state: State, job: Job, view: View) -> str:
    """One line for lists: the same words as the summary of `explain`, found once for all jobs that are alike."""
    settled = _settled(state, job)
    if settled:
        return settled
    barriers = [*_barred(state, job), *_own_cap(job), *gate_blockers(state, job, view.overlay.gates)]
    if _stopping(barriers):
        return _summary(barriers, "", None)
    if not state.workers:
        return "no worker has joined yet"
    underway = find_underway(state, job)
    if underway is not None:
        return tell_underway(underway)
    if kept_for(state, job) is not None:
        start = find_start(state, job, view.overlay.rooms, ())
        if start is not None:
            return tell_start(start)
    key = (job.shape, job.limit_ms if view.overlay.watch.of_row else 0)
    words = view.told.get(key)
    if words is None:
        words = view.told[key] = Verdict(state, view.scans(job)).words()
    return words


def count_members(state: State, ask: Ask, scan: Scan) -> tuple[int, int]:
    """How many workers could ever take a task, and how many could now: of one backend, where a gang must be alike."""
    if ask.nodes == 1 or ask.mixed_backends:
        return int(np.count_nonzero(scan.possible)), int(np.count_nonzero(scan.fits))
    columns = state.columns
    names: dict[str, int] = {}
    kinds = np.array([names.setdefault(offer.backend, len(names)) for offer in columns.offers], dtype=np.intp)
    of_row = kinds[columns.view["offer"][: columns.count]]
    able, ready = (
        np.bincount(of_row[mask], minlength=len(names) or 1) for mask in (scan.possible, scan.fits)
    )
    best = max(range(len(able)), key=lambda number: (int(ready[number]) >= ask.nodes, int(able[number])))
    return int(able[best]), int(ready[best])


def rank_rules(scan: Scan, kinds: list[Kind]) -> list[Kind]:
    """Rules in the order in which they are told: what would have to change for it to start comes first.

    Where some worker could ever do, that is what keeps those back; where none could, what rules the most of them out
    for ever. Workers that are not there are told last, unless all that could ever do are not.
    """
    possible = bool(scan.possible.any())
    here = scan.possible & ~scan.refused.get(("offline", False), np.zeros_like(scan.possible))
    alive = bool(here.any())
    looked_at = here if alive else scan.possible

    def place(kind: Kind) -> tuple[bool, bool, int, str]:
        mask = scan.refused[kind]
        dead = kind[0] == "offline" and (alive or not possible)
        matters = bool((mask & looked_at).any()) if possible else kind[1]
        return dead, not matters, -int(np.count_nonzero(mask)), kind[0]

    return sorted(kinds, key=place)


def word_rule(scan: Scan, kind: Kind, variant: int) -> Blocker:
    """One rule with the worker that comes closest and how many it refuses."""
    rejection = scan.rejection(scan.closest(kind), kind)
    refused = int(np.count_nonzero(scan.refused[kind]))
    blocker = word_blocker(rejection, _have(scan, kind, rejection), refused, variant)
    return _name_keeper(scan, kind, blocker) if kind[0] == "reserved" else blocker


def _name_keeper(scan: Scan, kind: Kind, blocker: Blocker) -> Blocker:
    """For whom the room is kept that it would take, and from when on."""
    state, row = scan.survey.state, scan.closest(kind)
    for kept in state.reservations.values():
        if row in [spot[1] for spot in kept.spots]:
            in_ms = max(0, kept.start_ms - state.now_ms)
            text = f"{blocker.message}: that one starts in {span(in_ms)} at the latest"
            return blocker._replace(who=kept.job_id, in_ms=in_ms, message=text)
    name = state.columns.worker_of[row]
    who = next((receipt.job_id for receipt in state.receipts.values() if name in receipt.workers), "")
    return blocker._replace(who=who)


def _have(scan: Scan, kind: Kind, rejection: Rejection) -> str:
    """What is there: the closest worker's, or a few of what is seen where none is closer than another."""
    if rejection.amount:
        return rejection.have
    columns = scan.survey.state.columns
    rows = np.flatnonzero(scan.refused[kind])
    _, firsts = np.unique(columns.view["offer"][rows], return_index=True)
    seen = dict.fromkeys(scan.rejection(int(rows[first]), kind).have for first in sorted(firsts[:8].tolist()))
    return ", ".join(list(seen)[:4])


def _closest_workers(scan: Scan) -> list[tuple[str, list[Rejection]]]:
    """Some workers with all their "no": those that could ever do first, those with the fewest of them before others."""
    columns = scan.survey.state.columns
    penalty = np.zeros(columns.count, dtype=np.int64)
    for (_, ever), mask in scan.refused.items():
        penalty += mask * (100 if ever else 1)
    penalty[~scan.survey.known] = 1 << 40
    rows = np.argsort(penalty, kind="stable")[: min(MOST_WORKERS, int(scan.survey.known.sum()))]
    listed = [(columns.worker_of[row], scan.rejections(row)) for row in rows.tolist()]
    return sorted(listed, key=lambda one: (any(no.kind == "offline" for no in one[1]), one[0]))


def _closeness(state: State, scan: Scan) -> tuple[bool, bool, int]:
    able, ready = count_members(state, scan.ask, scan)
    return ready >= scan.ask.nodes, able >= scan.ask.nodes, -sum(ever for _, ever in scan.refused)


def _settled(state: State, job: Job) -> str:
    if job.state.final:
        return f"the job has ended: {job.state}"
    if job.waiting:
        return ""
    if job.service:
        return tell_service(state, job)
    asked = [state.attempts[uid] for uid in state.live_of.get(job.id, ())]
    asked = [attempt for attempt in asked if attempt.phase is Phase.ASSIGNED and not attempt.lane]
    if asked:
        return _tell_asked(state, asked)
    return f"nothing waits: the job is {job.state}"


def _tell_asked(state: State, asked: Sequence[Attempt]) -> str:
    """That workers were asked and have not answered yet, and for how much longer they may take."""
    first = min(asked, key=lambda attempt: attempt.assigned_ms)
    waits_ms = state.now_ms - max(first.assigned_ms, state.started_ms)
    left_ms = max(0, state.rules.accept_ms - waits_ms)
    others = f" and {len(asked) - 1} more" if len(asked) > 1 else ""
    return (
        f"given to {first.worker}{others} {span(waits_ms)} ago, which has not accepted it yet: "
        f"it is taken back and goes elsewhere in {span(left_ms)} at the latest"
    )


def _barred(state: State, job: Job) -> list[Blocker]:
    """A job in no line."""
    blockers = []
    if job.held:
        who = f"held by {job.held_by}" if job.held_by else "held"
        blockers.append(Blocker("held", "a release", who, message=who))
    if job.after:
        needs = [read_need(text) for text in job.after]
        more = f" and {len(needs) - 3} more" if len(needs) > 3 else ""
        text = f"waits for {', '.join(need.words for need in needs[:3])}{more}"
        blockers.append(Blocker("dependency", ", ".join(job.after[:3]), "not ended", message=text))
    if job.unserved:
        blockers += use_blockers(state, job)
    return blockers


def _own_cap(job: Job) -> list[Blocker]:
    if not job.limit or job.live < job.limit:
        return []
    text = f"{job.live} of its tasks run already, its own cap is {job.limit}"
    return [Blocker("array_limit", f"fewer than {job.limit}", str(job.live), message=text)]


def _summary(barriers: Sequence[Blocker], words: str, reason: Reason | None) -> str:
    """What holds it back first, in one line."""
    stopping = _stopping(barriers)
    if stopping:
        return "; ".join(blocker.message for blocker in stopping)
    if reason is not None and reason.underway is not None:
        return tell_underway(reason.underway)
    if reason is not None and reason.start is not None and reason.start.reserved:
        return tell_start(reason.start)
    return words


def _stopping(barriers: Sequence[Blocker]) -> list[Blocker]:
    """Those that let nothing through; a soft budget only puts work behind that of others."""
    return [blocker for blocker in barriers if blocker.kind != "soft_budget"]


def _release(job: Job) -> str:
    """What a person does about a job that stands in no line."""
    if job.held:
        return f"release it: dray release {job.id}"
    if job.after:
        return f"wait for them, or drop the condition: dray set {job.id} after="
    return f"see to the service, or do without it: dray set {job.id} uses=" if job.unserved else ""


def _fix(job: Job, verdict: Verdict, barriers: Sequence[Blocker]) -> str:
    """What a person does about it: all that is needed for it to start, one step after the other."""
    steps = [_release(job)] if job.barred else []
    scan = verdict.scans[verdict.best]
    if verdict.ever and verdict.short and verdict.able:
        more = verdict.nodes - verdict.able
        steps.append(f"ask for {count(verdict.able, 'node')} or fewer, or start {more} more such workers")
    elif verdict.ever:
        steps += _make_possible(scan, verdict.best)
    elif not verdict.fits and (drained := _only_drained(scan)):
        steps.append(f"give it work again: dray worker resume {drained}")
    elif not verdict.fits and steps:
        steps.append("it waits for room")
    gates = [blocker for blocker in barriers if blocker.kind in _GATES]
    if any(gate.ever and gate.kind != "workload" for gate in gates):
        steps.append("ask for no more than its quota has")
    elif steps and gates:
        steps.append(f"it waits for its {_GATES[gates[0].kind]}")
    return ", and then ".join(filter(None, steps))


_OF_CARDS = ("gpu", "vram", "gpu_type", "device", "backend")
_GATES = {
    "quota": "quota",
    "pace": "pace",
    "cap": "cap",
    "array_limit": "own cap",
    "workload": "workload",
    "distribution": "turn",
}


def _make_possible(scan: Scan, variant: int) -> list[str]:
    """What would let the worker that comes closest run it, and whether it would still wait there."""
    known = np.flatnonzero(scan.survey.known)
    misses = np.zeros(len(known), dtype=np.int64)
    for (kind, ever), mask in scan.refused.items():
        misses += mask[known] * ((1000 if kind == "offline" else 1) if not ever else 100)
    row = int(known[misses.argmin()])
    kinds = [kind for kind in rank_rules(scan, list(scan.refused)) if scan.refused[kind][row]]
    told = {kind[0]: advise(word_rule(scan, kind, variant)) for kind in kinds if kind[1]}
    if START_CARDS in told.values():
        # Whoever starts one chooses cards that will do.
        told = {kind: words for kind, words in told.items() if kind not in _OF_CARDS} | {"gpu": START_CARDS}
    steps = list(told.values())
    settled = {kind[0] for kind in kinds if kind[1]}
    busy = any(not kind[1] and kind[0] not in (*settled, "vram") for kind in kinds)
    # Who asks for all that a worker has waits until nobody has any of it.
    columns = scan.survey.state.columns
    busy |= "gpu" in settled and columns.get("free_gpu", row) < columns.get("total_gpu", row)
    busy |= "cpu" in settled and columns.get("used_cpu", row) > 0
    busy |= "memory" in settled and columns.get("used_mem", row) > 0
    return [*steps, "it waits for room"] if busy else steps


def _only_drained(scan: Scan) -> str:
    """A worker that would take it if it were not drained; empty where there is none."""
    drained = scan.refused.get(("draining", False))
    if drained is None:
        return ""
    others = np.zeros_like(drained)
    for kind, mask in scan.refused.items():
        if kind[0] != "draining":
            others |= mask
    rows = np.flatnonzero(drained & ~others)
    return scan.survey.state.columns.worker_of[int(rows[0])] if len(rows) else ""
