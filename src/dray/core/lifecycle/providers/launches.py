"""Workers that were asked for, one record each, and how it goes with their launchers.

Records of the ledger, so that no launch is forgotten when the hub is: facts alone change them. A launch's id is the
name of its worker, by a token for that name alone; so whoever registers under it is the one that was asked for. Decides
nothing: who is wanted and who may go say the passes. The surprising rule: a launch whose command may have run is
`starting`, and nobody runs it again unless the site says that it knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dray.core.lifecycle.providers.prices import HOUR_MS, MICRO, card_price
from dray.core.lifecycle.state.effects import Alarm, Effect, Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.service_events import (
    LaunchAsked,
    LaunchersDue,
    LaunchersSeen,
    LaunchForgotten,
    LaunchMoved,
    LaunchSaid,
)
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.launching import Launch
from dray.core.model.policies.policy import Provider
from dray.core.model.records.ledger import LauncherRecord, LaunchRecord
from dray.core.model.records.worker import Worker

KIND, LAUNCHER = "launch", "launcher"
ASKED, STARTING, JOINED, DRAINING, ENDING, ENDED, FAILED = (
    "asked", "starting", "joined", "draining", "ending", "ended", "failed",
)  # fmt: skip
COMING, OVER = (ASKED, STARTING), (ENDED, FAILED)
# From where each may be reached; what comes too late, or twice, changes nothing.
_FROM = {
    JOINED: (DRAINING,),
    STARTING: (ASKED,),
    DRAINING: (JOINED,),
    ENDING: (ASKED, STARTING, JOINED, DRAINING),
    ENDED: (ENDING,),
    FAILED: (ENDING,),
}
DAY_MS = 86_400_000
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 30_000, 3_600_000


def launch_of(state: State, name: str) -> Launch | None:
    """The launcher of a name, by the policy in force."""
    provider = state.policy.providers.get(name)
    return provider.launch if provider is not None else None


def find(state: State, launch_id: str) -> LaunchRecord | None:
    """The record of a launch."""
    record = state.ledger.get((KIND, launch_id))
    return record if isinstance(record, LaunchRecord) else None


def of_launcher(state: State, name: str) -> Iterator[tuple[str, LaunchRecord]]:
    """All launches of a launcher that are known, oldest first."""
    for launch_id in state.launches.get(name, ()):
        record = find(state, launch_id)
        if record is not None:
            yield launch_id, record


def count_live(state: State, name: str) -> int:
    """How many of its workers are there, come or go: the site may have a machine for each."""
    return sum(record.state not in OVER for _, record in of_launcher(state, name))


def standing_of(state: State, name: str) -> LauncherRecord:
    """How it goes with a launcher."""
    record = state.ledger.get((LAUNCHER, name))
    return record if isinstance(record, LauncherRecord) else LauncherRecord()


def left_of(state: State, name: str, launch: Launch, now_ms: int) -> float:
    """How many workers it may ask for now, of so many within an hour; a new one may ask for all of them."""
    standing = standing_of(state, name)
    burst = max(1.0, min(launch.per_hour, float(launch.most)))
    if not standing.since_ms:
        return burst
    return min(burst, standing.left + max(0, now_ms - standing.since_ms) * launch.per_hour / HOUR_MS)


def rate_of(provider: Provider, launch: Launch) -> int:
    """What one of its workers costs an hour, whether it works or not, in millionths."""
    offers = launch.offers
    price = provider.price_per_hour
    if offers.gpus and provider.price_per_gpu_hour:
        lowered = offers.gpu_type.lower()
        words = (lowered, *lowered.replace("-", " ").replace("_", " ").split())
        price = card_price(provider, words)[0] * offers.gpus
    return round(price * MICRO)


def spent_today(state: State, name: str, at_ms: int) -> int:
    """What its workers have cost since the last midnight (UTC), in millionths: from being asked for to their end."""
    midnight_ms = at_ms - at_ms % DAY_MS
    spent = 0
    for _, record in of_launcher(state, name):
        began_ms = max(midnight_ms, record.started_at_ms or at_ms)
        spent += record.rate * max(0, (record.ended_at_ms or at_ms) - began_ms) // HOUR_MS
    return spent


def recall(state: State) -> None:
    """Find out which launches there are, after a load or under a new policy, and look at them soon."""
    state.launches.clear()
    state.launch_idle.clear()
    known = [(record, key) for (kind, key), record in state.ledger.items() if kind == KIND]
    for record, key in sorted(known, key=_by_age):
        if isinstance(record, LaunchRecord):
            state.launches.setdefault(record.launcher, {})[key] = None
    arm(state)


def _by_age(known: tuple[object, str]) -> tuple[int, str]:
    record, key = known
    return (record.asked_at_ms if isinstance(record, LaunchRecord) else 0, key)


def arm(state: State) -> None:
    """Look at launchers from time to time, while there are any or anything is left of them."""
    if state.launch_look_ms > state.now_ms:
        return
    if state.launches or any(one.launch is not None for one in state.policy.providers.values()):
        state.launch_look_ms = state.now_ms + state.rules.launch_look_ms
        state.set_timer(state.launch_look_ms, KIND, "")


def look(state: State, now_ms: int) -> list[LaunchersDue]:
    """Whether a look is due."""
    return [LaunchersDue()] if 0 < state.launch_look_ms <= now_ms else []


def due(state: State, event: LaunchersDue, clock: Clock) -> list[Effect]:
    """The pass of this turn is followed by a look at launchers."""
    state.launch_look_ms, state.launch_due = 0, True
    return []


def seen(state: State, event: LaunchersSeen, clock: Clock) -> list[Effect]:
    """Launchers were looked at; the next look follows in a while."""
    state.launch_due = False
    state.launch_idle = dict(event.idle)
    arm(state)
    return []


def asked(state: State, event: LaunchAsked, clock: Clock) -> list[Effect]:
    """Keep that a worker is wanted, before anybody is told to start it."""
    name = event.launcher
    provider = state.policy.providers.get(name)
    rate = 0
    standing = standing_of(state, name)
    if provider is not None and provider.launch is not None:
        rate = rate_of(provider, provider.launch)
        left = left_of(state, name, provider.launch, clock.now_ms) - 1
        standing = msgspec.structs.replace(standing, left=left, since_ms=max(1, clock.now_ms))
    number = int(event.id.rpartition("-")[2])
    state.enter(LAUNCHER, name, msgspec.structs.replace(standing, next=max(standing.next, number + 1)))
    record = LaunchRecord(
        name, ASKED, clock.at_ms, clock.now_ms, "", event.job_id, event.why, event.user, rate
    )
    state.enter(KIND, event.id, record)
    state.launches.setdefault(name, {})[event.id] = None
    arm(state)
    data = {"launch": event.id, "launcher": name, "why": event.why}
    return [
        Note("launch_asked", job_id=event.job_id, data=data | ({"user": event.user} if event.user else {}))
    ]


def moved(state: State, event: LaunchMoved, clock: Clock) -> list[Effect]:
    """A launch has come further."""
    record = find(state, event.id)
    if record is None or record.state not in _FROM[event.to]:
        return []
    ends_badly = record.failed or event.failed
    changed = msgspec.structs.replace(
        record,
        state=event.to,
        since_ms=clock.now_ms,
        handle=event.handle or record.handle,
        why=event.why or record.why,
        failed=ends_badly,
        said="" if event.to in OVER else record.said,
        started_at_ms=record.started_at_ms or (clock.at_ms if event.to == STARTING else 0),
        ended_at_ms=clock.at_ms if event.to in OVER else 0,
    )
    state.enter(KIND, event.id, changed)
    told: list[Effect] = []
    if event.to == ENDING and ends_badly and not record.failed:
        told = _count_failure(state, record, event, clock)
    data = {"launch": event.id, "launcher": record.launcher}
    data |= {name: getattr(event, name) for name in ("why", "handle", "user") if getattr(event, name)}
    return [Note(f"launch_{event.to}", worker=event.id if record.joined_at_ms else "", data=data), *told]


def _count_failure(state: State, record: LaunchRecord, event: LaunchMoved, clock: Clock) -> list[Effect]:
    """Leave a launcher alone that fails, twice as long each time."""
    name, standing = record.launcher, standing_of(state, record.launcher)
    failures = standing.failures + 1
    pause_ms = min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(failures - 1, 20))
    again_ms = clock.now_ms + pause_ms
    state.enter(
        LAUNCHER,
        name,
        msgspec.structs.replace(standing, failures=failures, again_ms=again_ms, why=event.why),
    )
    times = f", {failures} times in a row" if failures > 1 else ""
    return [Alarm(f"launcher {name} failed{times}: {event.why}")]


def said(state: State, event: LaunchSaid, clock: Clock) -> list[Effect]:
    """Keep what a site says of a launch, and what it calls it."""
    record = find(state, event.id)
    if record is None or record.state in OVER:
        return []
    handle = event.handle or record.handle
    state.enter(KIND, event.id, msgspec.structs.replace(record, said=event.said, handle=handle))
    return [Note("launch_said", data={"launch": event.id, "said": event.said, "handle": handle})]


def forgotten(state: State, event: LaunchForgotten, clock: Clock) -> list[Effect]:
    """Drop what is long over."""
    record = find(state, event.id)
    if record is not None and record.state in OVER:
        state.enter(KIND, event.id, None)
        known = state.launches.get(record.launcher, {})
        known.pop(event.id, None)
        if not known:
            state.launches.pop(record.launcher, None)
    return []


def registered(state: State, worker: Worker, clock: Clock) -> list[Effect]:
    """Whoever was asked for has come; it is called by its launcher, and by the labels that were promised."""
    record = find(state, worker.id)
    if record is None:
        return []
    launch = launch_of(state, record.launcher)
    labels = launch.offers.labels if launch is not None else {}
    worker.given = {**labels, "provider": record.launcher, **worker.given, "launch": worker.id}
    if record.state not in COMING:
        return []
    if launch is not None and launch.life_s:
        worker.ends_given_ms = clock.at_ms + round(launch.life_s * 1000)
    changed = msgspec.structs.replace(
        record, state=JOINED, since_ms=clock.now_ms, joined_at_ms=clock.at_ms, said=""
    )
    state.enter(KIND, worker.id, changed)
    standing = standing_of(state, record.launcher)
    if standing.failures:
        calm = msgspec.structs.replace(standing, failures=0, again_ms=0, why="")
        state.enter(LAUNCHER, record.launcher, calm)
    data = {
        "launch": worker.id,
        "launcher": record.launcher,
        "seconds": (clock.at_ms - record.asked_at_ms) // 1000,
    }
    return [Note("launch_joined", worker=worker.id, data=data)]
