"""The site's own past replayed: under other policies, with other machines, and what further workers would have brought.

What was advised is kept, one record for each kind, number and size of the cluster, and judged when such workers have
come: the middle wait since then beside the one that was foretold. The surprising rule: nobody is told an advice of
which the replay of the past itself says that nobody waited.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from dray.core.lifecycle.state.service_events import AdviceGiven
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import pack_policy
from dray.core.model.records.ledger import AdviceRecord
from dray.core.model.records.worker import Worker
from dray.core.model.units import GB
from dray.core.scheduling.explain.reason import count, span
from dray.errors import InvalidInput
from dray.hub.access.caller import Caller
from dray.hub.aside.process import SideProcess
from dray.hub.documents.records import Document, moment
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.store.base import Store
from dray.hub.studies.past import read_past
from dray.hub.studies.studies import Study
from dray.hub.studies.whatif import read_more
from dray.hub.views.past.history import MOST_SAMPLES, read_sample
from dray.hub.views.sight import OTHERS, Sight, sight_of
from dray.hub.views.spans import read_moment
from dray.wire.schemas.studies import CapacityRequest, ReplayRequest

# Below this nobody minds, and a share of it says nothing.
LEAST_WAIT_S, LEAST_GAIN = 1.0, 0.02
MOST_JUDGED = 20
# A minute counts as often as so many starts at most.
WEIGHT = 100
ASSUMES = (
    "the same jobs come from the same users at the same times: a shorter wait brings no further work",
    "further workers are there from the first moment on, each like the one that is named, and run at its speed",
    "run times are those that were measured; what has not ended runs as long as others like it did",
)


class Question(msgspec.Struct):
    """As `dray.sim.traces.asked.Asked` reads it: this room may not know the simulator."""

    at_ms: int
    policies: list[tuple[str, bytes]] = []
    more: list[tuple[str, int]] = []
    counts: list[int] = []


class Figures(msgspec.Struct, array_like=True):
    """As `dray.sim.traces.asked.Figures` writes it."""

    name: str
    jobs: int
    unfinished: int
    wait_p50_s: float
    wait_p90_s: float
    wait_mean_s: float
    gpu_utilisation: float
    preemptions: int
    makespan_s: float
    users: dict[str, float]


class Option(msgspec.Struct, array_like=True):
    """As `dray.sim.traces.asked.Option` writes it."""

    like: str
    count: int
    figures: Figures


class Advice(msgspec.Struct, array_like=True):
    """As `dray.sim.traces.asked.Advice` writes it."""

    base: Figures
    options: list[Option]
    left_out: list[str]
    guessed: int


class Ready(NamedTuple):
    """A question that was checked, and since when it looks back."""

    question: Question
    since_ms: int


class Replays:
    """One hub's replays."""

    def __init__(self, engine: Engine, clock: HubClock, store: Store) -> None:
        self._engine, self._clock, self._store = engine, clock, store

    async def read_replay(self, asked: ReplayRequest) -> Ready:
        """Check a question about policies and machines."""
        others = [(name, pack_policy(check_policy(policy))) for name, policy in asked.policies.items()]
        more = await self._engine.read(lambda state: read_more(state, asked.more))
        return await self._ready(asked.since, others, more, [])

    async def read_capacity(self, asked: CapacityRequest) -> Ready:
        """Check a question about further workers."""
        if not asked.counts:
            raise InvalidInput("counts: give at least one number of workers to try")
        return await self._ready(asked.since, [], [], sorted(dict.fromkeys(asked.counts)))

    async def _ready(
        self, since: str, others: Sequence[tuple[str, bytes]], more: list[tuple[str, int]], counts: list[int]
    ) -> Ready:
        at_ms = self._clock.read().at_ms
        policy = await self._engine.read(lambda state: pack_policy(state.policy))
        question = Question(at_ms, [("in force", policy), *others], more, counts)
        return Ready(question, read_moment("since", since, at_ms))

    async def replay(self, caller: Caller, ready: Ready, study: Study, side: SideProcess) -> Document:
        """The past under each policy."""
        packed = await self._ask("replay", ready, study, side)
        found = msgspec.msgpack.decode(packed, type=list[Figures])
        sight = await self._engine.read(lambda state: sight_of(state, caller))
        return {
            "replays": [_figures(sight, one) for one in found],
            "since": moment(ready.since_ms),
            "headline": _tell_replays(found),
            "assumes": list(ASSUMES),
        }

    async def advise(self, caller: Caller, ready: Ready, study: Study, side: SideProcess) -> Document:
        """What further workers would have brought; kept, so that it can be judged."""
        packed = await self._ask("advise", ready, study, side)
        found = msgspec.msgpack.decode(packed, type=Advice)
        workers = await self._engine.read(lambda state: dict(state.workers))
        sight = await self._engine.read(lambda state: sight_of(state, caller))
        options = [one for one in found.options if one.like in workers]
        events = [_given(workers, found.base, one) for one in options if _helps(found.base, one)]
        earlier = await self.judged()
        if events:
            await self._engine.change(lambda state, clock: Decision(events), 1, caller.user, None, "advice")
        left_out = (
            [f"for {count(len(found.left_out), 'kind')} of worker there was no time"]
            if found.left_out
            else []
        )
        guessed = (
            [f"of {count(found.guessed, 'task')} it is a guess how long they run"] if found.guessed else []
        )
        return {
            "replays": [_figures(sight, found.base)],
            "options": [_option(sight, workers[one.like], found.base, one) for one in options],
            "earlier": earlier,
            "since": moment(ready.since_ms),
            "headline": _tell_advice(workers, found.base, options),
            "assumes": [*ASSUMES, *guessed, *left_out],
        }

    async def _ask(self, work: str, ready: Ready, study: Study, side: SideProcess) -> bytes:
        pieces = read_past(ready.question, self._engine, self._store, ready.since_ms)
        return await side.ask_about(work, pieces, study.hear)

    async def judged(self) -> list[Document]:
        """Earlier advice, and what became of it."""
        records, workers = await self._engine.read(_advice)
        found = []
        for record in records[:MOST_JUDGED]:
            alike = sorted(worker.registered_at_ms for worker in workers if _key(worker) == record.key)
            came = len(alike) >= record.here + record.count
            came_ms = alike[record.here + record.count - 1] if came else 0
            real_s = await asyncio.to_thread(self._wait_s, max(came_ms, record.at_ms)) if came else None
            found.append(_judge(record, came_ms, came, real_s))
        return found

    def _wait_s(self, since_ms: int) -> float | None:
        """The middle of the waits of starts since a moment, by the samples of each minute."""
        rows = self._store.samples(since_ms, self._clock.read().at_ms, MOST_SAMPLES)
        waits: list[int] = []
        for sample in (read_sample(packed) for _, packed in rows):
            waits += [sample.wait_p50_ms] * min(sample.starts, WEIGHT) if sample.wait_p50_ms >= 0 else []
        return statistics.median(waits) / 1000 if waits else None


def _advice(state: State) -> tuple[list[AdviceRecord], list[Worker]]:
    records = [record for record in state.ledger.values() if isinstance(record, AdviceRecord)]
    records.sort(key=lambda record: -record.at_ms)
    return records, [worker for worker in state.workers.values() if not worker.left]


def _key(worker: Worker) -> str:
    """Workers of one key are alike to all jobs, but for their names."""
    capability = msgspec.structs.replace(worker.capability, hostname="")
    models = [(device.model, device.vram_bytes) for device in worker.devices]
    return blake2b(msgspec.msgpack.encode((capability, models)), digest_size=8).hexdigest()


def tell_kind(worker: Worker) -> str:
    """What it is, as somebody would order it."""
    capability, devices = worker.capability, worker.devices
    cards = len(devices) or capability.gpu_count
    if not cards:
        return f"{capability.cpu_count:g} cores"
    model = (devices[0].model if devices else capability.gpu_type) or capability.gpu_type or "GPU"
    bytes_ = devices[0].vram_bytes if devices else 0
    return f"{cards} × {model}{f' {bytes_ / GB:.0f} GB' if bytes_ else ''}"


def _helps(base: Figures, option: Option) -> bool:
    """Whether it would have cut a wait that anybody minds."""
    return base.wait_p50_s >= LEAST_WAIT_S and option.figures.wait_p50_s < (1 - LEAST_GAIN) * base.wait_p50_s


def _given(workers: dict[str, Worker], base: Figures, option: Option) -> AdviceGiven:
    like = workers[option.like]
    key = _key(like)
    here = sum(_key(worker) == key for worker in workers.values() if not worker.left)
    waits = round(base.wait_p50_s * 1000), round(option.figures.wait_p50_s * 1000)
    return AdviceGiven(key, tell_kind(like), option.like, option.count, here, *waits)


def _figures(sight: Sight, one: Figures) -> Document:
    """Figures of one replay; users by what the caller may know of them."""
    users: dict[str, list[float]] = {}
    for user, wait_s in one.users.items():
        if name := sight.name(user):
            users.setdefault(name, []).append(wait_s)
    told = {name: round(statistics.median(waits), 3) for name, waits in users.items()}
    ordered = dict(sorted(told.items(), key=lambda item: (item[0] == OTHERS, item[0])))
    return {name: getattr(one, name) for name in one.__struct_fields__} | {"users": ordered}


def _option(sight: Sight, like: Worker, base: Figures, option: Option) -> Document:
    cards = (len(like.devices) or like.capability.gpu_count) * option.count
    return {
        "kind": tell_kind(like),
        "like": option.like,
        "count": option.count,
        "gpus": cards,
        "figures": _figures(sight, option.figures),
        "message": _tell_option(like, base, option),
    }


def _tell_option(like: Worker, base: Figures, option: Option) -> str:
    wait = f"the middle wait goes from {_span(base.wait_p50_s)} to {_span(option.figures.wait_p50_s)}"
    noun = "worker" if option.count == 1 else "workers"
    return f"{_name(option.count)} {noun} of {tell_kind(like)}: {wait}"


def _name(number: int) -> str:
    return {1: "one more", 2: "two more", 3: "three more", 4: "four more"}.get(number, f"{number} more")


def _span(seconds: float) -> str:
    return span(round(seconds * 1000))


def _tell_replays(found: Sequence[Figures]) -> str:
    base, others = found[0], found[1:]
    said = f"As it was, half of {base.jobs:,} jobs waited less than {_span(base.wait_p50_s)}"
    told = [f"{one.name}: {_span(one.wait_p50_s)}" for one in others]
    return f"{said}; {', '.join(told)}." if told else f"{said}."


def _tell_advice(workers: dict[str, Worker], base: Figures, options: Sequence[Option]) -> str:
    """The least that helps most: of the options that cut the wait to within a tenth of the best, the smallest."""
    if base.wait_p50_s < LEAST_WAIT_S:
        return f"Half of {base.jobs:,} jobs started at once: further workers would have brought little."
    if not options:
        return "There is no worker that could be had once more."
    won = {id(one): base.wait_p50_s - one.figures.wait_p50_s for one in options}
    best = max(won.values())
    if best < LEAST_GAIN * base.wait_p50_s:
        wait = _span(base.wait_p50_s)
        return f"No further worker would have cut the middle wait of {wait}: it is not room that is short."
    enough = [one for one in options if won[id(one)] >= 0.9 * best]
    chosen = min(enough, key=lambda one: (one.count, -won[id(one)]))
    sentence = _tell_option(workers[chosen.like], base, chosen)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _judge(record: AdviceRecord, came_ms: int, came: bool, real_s: float | None) -> Document:
    before_s, foretold_s = record.before_ms / 1000, record.foretold_ms / 1000
    what = f"{_name(record.count)} of {record.kind}: {_span(before_s)} → {_span(foretold_s)} foretold"
    if not came:
        end = "none has come since"
    elif real_s is None:
        end = "they have come; nothing has started since"
    else:
        end = f"they have come, and half of all starts have waited less than {_span(real_s)} since"
    return {
        "at": moment(record.at_ms),
        "kind": record.kind,
        "like": record.like,
        "count": record.count,
        "before_p50_s": before_s,
        "foretold_p50_s": foretold_s,
        "came": came,
        "came_at": moment(came_ms) if came else None,
        "real_p50_s": real_s,
        "message": f"{what}; {end}",
    }
