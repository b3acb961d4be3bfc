"""Which workers to ask for now, and which of those that are there may go: facts, decided after a pass, folded like all.

Whoever has waited as long as a launcher wants, with no other way open, is laid out on workers that were asked for
already and then on more of the cheapest kind that holds it. What stands behind a gate (quota, pace, pause) is not
helped by a machine, and neither is what has room promised sooner than a machine could be there. The cost is in the
lines that wait, of which it looks at no more than a few hundred, and nothing at all on a site without launchers. The
surprising rule: of workers that idle the one that was asked for last goes first, and none goes that still holds
anything, whatever it costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from dray.core.lifecycle.providers import launches
from dray.core.lifecycle.providers.prices import HOUR_MS, MICRO
from dray.core.lifecycle.state.events import Event, WorkerDrained, WorkerForgotten
from dray.core.lifecycle.state.service_events import LaunchAsked, LaunchersSeen, LaunchForgotten, LaunchMoved
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.launching import Launch
from dray.core.model.records.ledger import LaunchRecord
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import Ask, Asks
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.launches.imagined import Imagined

# Of what waits so much is looked at: more machines than that are asked for the next time.
MOST_LINES, MOST_TASKS, MOST_ASKED = 256, 512, 64
KEPT_MS, MOST_KEPT = launches.DAY_MS, 64


class Want(NamedTuple):
    """Somebody who has waited: since when, and how many of its tasks or groups want room."""

    since_ms: int
    job: Job
    asks: Asks
    units: int


class Maker(NamedTuple):
    """One launcher as it stands now: how many more it may start, and what one of its workers costs an hour."""

    name: str
    launch: Launch
    allowed: int
    price: float


def plan_launches(state: State) -> Iterator[Event]:
    """Facts about launches, and that launchers were looked at. Each is folded in before the next is asked for."""
    idle = _note_idle(state)
    yield from _retire(state, idle)
    number = _Numbers(state)
    makers = [maker for maker in _makers(state) if maker.allowed > 0]
    for maker, job, why in [*_keep_least(state, makers), *_help(state, makers)]:
        yield LaunchAsked(number.draw(maker.name), maker.name, why, job)
    yield from [LaunchForgotten(one) for one in _outlived(state)]
    yield LaunchersSeen(tuple(idle.items()))


class _Numbers:
    """Draws ids: of the launcher, the hub's epoch, and a number that only grows."""

    def __init__(self, state: State) -> None:
        self._state, self._next = state, dict[str, int]()

    def draw(self, name: str) -> str:
        number = max(self._next.get(name, 0), launches.standing_of(self._state, name).next)
        self._next[name] = number + 1
        return f"{name}-{self._state.counters.epoch}-{number}"


def next_id(state: State, name: str) -> str:
    """The id of a launch that is asked for by hand."""
    return _Numbers(state).draw(name)


# --- who is wanted ----------------------------------------------------------------------------------------------------


def _makers(state: State) -> Iterator[Maker]:
    for name, provider in state.policy.providers.items():
        if provider.launch is not None:
            price = launches.rate_of(provider, provider.launch) / MICRO
            yield Maker(name, provider.launch, allowance(state, name, provider.launch), price)


def allowance(state: State, name: str, launch: Launch) -> int:
    """How many more workers a launcher may start now."""
    if why_not(state, name, launch):
        return 0
    room = launch.most - launches.count_live(state, name)
    return max(0, min(room, int(launches.left_of(state, name, launch, state.now_ms)), MOST_ASKED))


def why_not(state: State, name: str, launch: Launch) -> str:
    """Why a launcher starts nobody now, in words; empty where it would."""
    standing = launches.standing_of(state, name)
    if standing.again_ms > state.now_ms:
        return f"its last start failed ({standing.why}): it tries again in {_span(standing.again_ms - state.now_ms)}"
    if launches.count_live(state, name) >= launch.most:
        return f"{launch.most} of its workers are there or coming, which is the most"
    spent = launches.spent_today(state, name, state.at_ms) if launch.budget_per_day else 0
    if launch.budget_per_day and spent >= launch.budget_per_day * MICRO:
        return f"its budget of the day ({launch.budget_per_day:g}) is spent"
    left = launches.left_of(state, name, launch, state.now_ms)
    if left < 1:
        pause_ms = round((1 - left) / launch.per_hour * HOUR_MS)
        return f"it may start another in {_span(pause_ms)} ({launch.per_hour:g} an hour)"
    return ""


def _span(span_ms: int) -> str:
    seconds = max(1, -(-span_ms // 1000))
    return f"{seconds} s" if seconds < 120 else f"{-(-seconds // 60)} min"


def _keep_least(state: State, makers: list[Maker]) -> Iterator[tuple[Maker, str, str]]:
    for maker in makers:
        missing = maker.launch.min - launches.count_live(state, maker.name)
        for _ in range(min(missing, maker.allowed)):
            yield maker, "", f"to keep {maker.launch.min}"


def _help(state: State, makers: list[Maker]) -> list[tuple[Maker, str, str]]:
    """Machines for whoever has waited long enough, the longest first."""
    if not makers:
        return []
    least = {maker.name: len(list(_keep_least(state, [maker]))) for maker in makers}
    left = {maker.name: maker.allowed - least[maker.name] for maker in makers}
    coming = [worker for _, worker in coming_workers(state)]
    coming += [Imagined(maker.name, maker.launch) for maker in makers for _ in range(least[maker.name])]
    patience_ms = min(maker.launch.wait_s for maker in makers) * 1000
    found: list[tuple[Maker, str, str]] = []
    rooms: Rooms | None = None
    for want in sorted(wants(state, patience_ms), key=lambda one: (one.since_ms, one.job.seq)):
        able = [maker for maker in makers if state.now_ms - want.since_ms >= maker.launch.wait_s * 1000]
        able = [maker for maker in able if not _starts_sooner(state, want.job, maker.launch)]
        able = [maker for maker in able if Imagined(maker.name, maker.launch).lasts(want.job)]
        for _ in range(want.units):
            if want.asks[0].nodes > 1:
                rooms = rooms or Rooms(state)
                added = _help_gang(state, want, able, coming, left, rooms)
            else:
                added = _help_task(want, able, coming, left)
            if added is None:
                break
            found += added
    return found


def coming_workers(state: State) -> Iterator[tuple[str, Imagined]]:
    """Whoever was asked for and has not come, with what is promised of it."""
    for name in state.launches:
        launch = launches.launch_of(state, name)
        if launch is not None:
            for launch_id, record in launches.of_launcher(state, name):
                if record.state in launches.COMING:
                    yield launch_id, Imagined(name, launch)


def wants(state: State, patience_ms: float) -> Iterator[Want]:
    """Who waits in vain for so long: the first of each line that found no room and stands before no gate."""
    backlog = state.backlog
    lines = (
        line
        for shape in backlog.parked
        for line in backlog.lines_of(shape)
        if not backlog.is_gated(line) and backlog.buckets[line].waiting
    )
    known: set[str] = set()
    for line in islice(lines, MOST_LINES):
        bucket, count = backlog.buckets[line], 0
        for place in range(bucket.head, min(bucket.head + MOST_TASKS, len(bucket.entries))):
            job = state.jobs.get(bucket.entries[place].job_id)
            if job is None or not job.waiting or job.barred or state.line_of(job) != line:
                continue
            if job.id in known or state.now_ms - job.waiting_since_ms < patience_ms:
                continue
            known.add(job.id)
            asks = state.asks(job.shape)
            if (units := _units(job)) > 0:
                yield Want(job.waiting_since_ms, job, asks, min(units, MOST_TASKS - count))
            count += units
            if count >= MOST_TASKS:
                break


def _units(job: Job) -> int:
    """How many tasks, or whole groups of a gang, could start if there were room."""
    waiting = job.waiting
    if job.limit:
        waiting = min(waiting, job.limit - job.live)
    return waiting // max(1, job.group_size) if job.gang else waiting


def _starts_sooner(state: State, job: Job, launch: Launch) -> bool:
    """Whether room is promised to a job before a machine that is asked for now could be there."""
    kept = state.reservations.get(job.id)
    return kept is not None and kept.start_ms - state.now_ms < launch.wait_s * 1000


def _help_task(
    want: Want, makers: list[Maker], coming: list[Imagined], left: dict[str, int]
) -> list[tuple[Maker, str, str]] | None:
    """Machines to be asked for one task: none where one is coming that holds it; None where nobody can help."""
    ready = [worker for worker in coming if worker.lasts(want.job)]
    if any(worker.take(ask) for worker in ready for ask in want.asks):
        return []
    chosen = _choose(want, makers, left)
    if chosen is None:
        return None
    maker, ask = chosen
    return [_add(maker, ask, want, coming, left)]


def _choose(want: Want, makers: list[Maker], left: dict[str, int]) -> tuple[Maker, Ask] | None:
    """The cheapest launcher whose worker would hold a task: a whole one is paid for, however little is asked for."""
    able: list[tuple[float, str, int, Maker]] = []
    for maker in makers:
        if left[maker.name] <= 0:
            continue
        worker = Imagined(maker.name, maker.launch)
        for variant, ask in enumerate(want.asks):
            if worker.fits(ask):
                able.append((maker.price, maker.name, variant, maker))
    if not able:
        return None
    _, _, variant, maker = min(able, key=lambda one: one[:3])
    return maker, want.asks[variant]


def _add(
    maker: Maker, ask: Ask, want: Want, coming: list[Imagined], left: dict[str, int]
) -> tuple[Maker, str, str]:
    worker = Imagined(maker.name, maker.launch)
    worker.take(ask)
    coming.append(worker)
    left[maker.name] -= 1
    return maker, want.job.id, f"for {want.job.id}"


def _help_gang(
    state: State,
    want: Want,
    makers: list[Maker],
    coming: list[Imagined],
    left: dict[str, int],
    rooms: Rooms,
) -> list[tuple[Maker, str, str]] | None:
    """Machines for one group of a gang: as many as are missing beside those with room, or none."""
    for ask in want.asks:
        here = int(rooms.mask(ask).sum())
        ready = [worker for worker in coming if worker.lasts(want.job) and worker.fits(ask)]
        missing = ask.nodes - here - len(ready)
        if missing <= 0:
            for worker in ready[: ask.nodes - here]:
                worker.take(ask)
            return []
        able = [maker for maker in makers if Imagined(maker.name, maker.launch).fits(ask)]
        able.sort(key=lambda maker: (maker.price, maker.name))
        if sum(max(0, left[maker.name]) for maker in able) < missing:
            continue
        for worker in ready:
            worker.take(ask)
        found: list[tuple[Maker, str, str]] = []
        for maker in able:
            more = min(missing - len(found), max(0, left[maker.name]))
            found += [_add(maker, ask, want, coming, left) for _ in range(more)]
        return found
    return None


# --- who may go -------------------------------------------------------------------------------------------------------


def _note_idle(state: State) -> dict[str, int]:
    """Since when workers of launchers have held nothing."""
    idle: dict[str, int] = {}
    for name in state.launches:
        for launch_id, record in launches.of_launcher(state, name):
            if record.state == launches.JOINED and not state.held.get(launch_id):
                idle[launch_id] = state.launch_idle.get(launch_id, state.now_ms)
    return idle


def _retire(state: State, idle: dict[str, int]) -> Iterator[Event]:
    for name in list(state.launches):
        launch = launches.launch_of(state, name)
        for launch_id, record in list(launches.of_launcher(state, name)):
            yield from _end_one(state, launch_id, record, launch)
        if launch is not None:
            yield from _let_go(state, name, launch, idle)


def _end_one(state: State, launch_id: str, record: LaunchRecord, launch: Launch | None) -> Iterator[Event]:
    """End what never came, what went by itself, and what was drained and holds nothing any more."""
    worker = state.workers.get(launch_id)
    if record.state in launches.COMING:
        start_s = launch.start_s if launch is not None else 0
        if state.now_ms - record.since_ms >= start_s * 1000:
            why = f"its worker did not join within {start_s:g} s" if launch else "its launcher is gone"
            yield LaunchMoved(launch_id, launches.ENDING, why, failed=launch is not None)
    elif record.state in (launches.JOINED, launches.DRAINING) and not state.held.get(launch_id):
        if worker is None or worker.left:
            yield LaunchMoved(launch_id, launches.ENDING, "its worker left")
        elif worker.silent and not state.presence[launch_id].session:
            yield LaunchMoved(launch_id, launches.ENDING, "its worker fell silent")
        elif record.state == launches.DRAINING and worker.draining:
            yield LaunchMoved(launch_id, launches.ENDING)
        elif record.state == launches.DRAINING:
            yield LaunchMoved(launch_id, launches.JOINED, "it was given work again")
        elif launch is None and not worker.draining:
            yield from _drain(launch_id, "its launcher is gone from the policy")
    elif record.state in launches.OVER and worker is not None and _is_gone(state, launch_id):
        yield WorkerForgotten(launch_id)


def _is_gone(state: State, worker_id: str) -> bool:
    return not state.held.get(worker_id) and not state.presence[worker_id].session


def _let_go(state: State, name: str, launch: Launch, idle: dict[str, int]) -> Iterator[Event]:
    """Drain those that have idled for long, newest first, down to as many as are kept; too many go at once."""
    joined = [one for one, record in launches.of_launcher(state, name) if record.state == launches.JOINED]
    spare = len(joined) - launch.min
    for launch_id in reversed(joined):
        if spare <= 0:
            return
        since_ms = idle.get(launch_id)
        worker = state.workers.get(launch_id)
        if since_ms is None or worker is None or worker.draining or state.held.get(launch_id):
            continue
        idled_ms = state.now_ms - since_ms
        if len(joined) > launch.most or idled_ms >= launch.idle_s * 1000:
            spare -= 1
            yield from _drain(launch_id, f"idle for {_span(idled_ms)}")


def _drain(launch_id: str, why: str) -> Iterator[Event]:
    yield LaunchMoved(launch_id, launches.DRAINING, why)
    yield WorkerDrained(launch_id, True, "", f"its launch ends: {why}")


def _outlived(state: State) -> Iterator[str]:
    """Launches that are over and told nobody anything for a day, or of which there are too many."""
    for name in list(state.launches):
        over = [
            (launch_id, record.ended_at_ms)
            for launch_id, record in launches.of_launcher(state, name)
            if record.state in launches.OVER
        ]
        for place, (launch_id, ended_at_ms) in enumerate(over):
            spare = len(over) - place > MOST_KEPT and not _counts_today(state, name)
            if spare or state.at_ms - ended_at_ms > KEPT_MS:
                yield launch_id


def _counts_today(state: State, name: str) -> bool:
    launch = launches.launch_of(state, name)
    return launch is not None and launch.budget_per_day > 0
