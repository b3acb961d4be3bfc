"""Every message a hub sends, spelled by the hub's own code: events through the core, effects through the runner."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from tests.golden.worker_samples import CAPABILITY_READ, SLOTS_READ

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.effects import Ack, LookUp, NoWork, Refuse, Resume
from dray.core.lifecycle.state.events import (
    Activity,
    ArrayExtended,
    AttemptAccepted,
    AttemptEnded,
    CallsFed,
    CancelRequested,
    Clock,
    CreditSet,
    EpochStarted,
    Event,
    JobsSubmitted,
    NewJob,
    Outcome,
    Placement,
    PlanDecided,
    SessionOpened,
    WorkerRegistered,
)
from dray.core.lifecycle.state.events import (
    Feed as FeedOfCalls,
)
from dray.core.lifecycle.state.state import State
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import pack_spec
from dray.hub.access.caller import Caller
from dray.hub.calls.arguments import ArgsMemory
from dray.hub.calls.assignments import LaneFeed
from dray.hub.calls.results import AckCalls
from dray.hub.documents.public_feed import Feed
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Leaving
from dray.hub.rows import Rows
from dray.hub.store.base import ArgsChunk, Turn
from dray.hub.store.memory import MemoryStore
from dray.hub.workers.frames import Departures
from dray.hub.workers.outbound import Runner
from dray.hub.workers.questions import Questions
from dray.hub.workers.sessions import Sessions
from dray.wire.messages.codec import message
from dray.wire.messages.worker import MetricsRequest, WorkerListRequest, WorkerShowRequest

CLOCK = Clock(1_000, 1_767_323_045_678)
SPECS: dict[str, dict[str, Any]] = {
    "plain": {"command": ["true"], "name": "plain"},
    "full": {
        "command": ["python", "-c", "print('ä')"],
        "type": "service",
        "env": {"A": "1"},
        "gpu_count": 2,
        "gpu_type": "A100",
        "min_vram_gb": 80,
        "max_runtime_hours": 1.5,
        "health_check": {"liveness": "/live", "interval_secs": 5},
        "metadata": {"x": [1, None]},
    },
    "many": {"command": ["true"], "array": {"last": 9, "limit": 3}},
}


BLOB = ("ab" * 32, 70_000)
ARGS = [b"DV1\x00", BLOB, b"DV1\x01"]


class Peer:
    """Stands where a socket would be, and keeps what is pushed."""

    number = 1
    leader = ""

    def registered(self, incarnation: str, at_ms: int) -> None: ...

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def push(self, envelope: dict[str, Any]) -> None:
        self.got.append(envelope)


class Script:
    """One worker's life against the real core and the real runner."""

    def __init__(self) -> None:
        self.state, self.peer, self.store = State(), Peer(), MemoryStore()
        self.store.begin_epoch()

        class Open:
            open = {1: self.peer}  # noqa: RUF012 - read once, by the runner alone
            departures = Departures()

        sessions = cast("Sessions", Open())
        lanes = LaneFeed(self.state, ArgsMemory(self.store), lambda job: "")
        rows = Rows(self.state, self.store)
        self.runner = Runner(rows, sessions, Feed(self.store), lambda note: None, 10.0, lanes)
        self.seq = 0

    def play(self, *steps: Event | Leaving) -> list[dict[str, Any]]:
        """Fold events in, carry their effects out, give what was sent."""
        effects: list[Leaving] = []
        for step in steps:
            if isinstance(step, (Ack, AckCalls, NoWork, Refuse, LookUp, Resume)):
                effects.append(step)
            else:
                effects += apply(self.state, cast("Event", step), CLOCK)
        self.seq += 1
        self.runner.run(effects, self.seq, CLOCK)
        sent, self.peer.got = self.peer.got, []
        return sent

    def ask(self, body: Any) -> list[dict[str, Any]]:
        """Put one of the three questions."""
        questions = Questions(lambda: cast("Engine", self), lambda: {"dray_workers": 1.0})
        questions.answer(self.peer, body, Caller("", "", ("admin",)))
        sent, self.peer.got = self.peer.got, []
        return sent

    def look(self, look: Any, then: Any, failed: Any = None) -> None:
        then(look(self.state))


def registered(worker: str = "worker-1", session: int = 1, **parts: Any) -> WorkerRegistered:
    return WorkerRegistered(
        worker=worker, session=session, capability=CAPABILITY_READ, slots=SLOTS_READ, **parts
    )


def compose() -> dict[str, list[dict[str, Any]]]:
    """Every message by the name of the occasion it is sent on."""
    script = Script()
    new = tuple(
        NewJob(name, "ann", pack_spec(check_spec({**spec, "id": name}))) for name, spec in SPECS.items()
    )
    placements = [
        Placement("plain", 0, "7-1", "worker-1"),
        Placement("full", 0, "7-2", "worker-1", (0, 1)),
        Placement("many", 0, "7-3", "worker-1"),
    ]
    outcome = Outcome("plain", -1, "7-1", "succeeded", 0)
    said: dict[str, list[dict[str, Any]]] = {}
    script.play(EpochStarted(7), JobsSubmitted(new))
    said["ack_register"] = script.play(SessionOpened("worker-1", 1, ""), registered())
    said["no_work"] = script.play(CreditSet("worker-1", 3, SLOTS_READ), NoWork("worker-1"))
    for placement in placements:
        said[f"job_assign_{placement.job_id}"] = script.play(PlanDecided((placement,)))
    said["ack_heartbeat"] = script.play(Ack("worker-1", "heartbeat"))
    said["ack_job_accepted"] = script.play(AttemptAccepted("worker-1", "plain", -1, "7-1"))
    said["error"] = script.play(AttemptAccepted("worker-1", "nobody", -1))
    said["ack_job_result"] = script.play(AttemptEnded("worker-1", outcome))
    said["ack_job_result_again"] = script.play(AttemptEnded("worker-1", outcome))
    said["job_cancel"] = script.play(CancelRequested("full", -1, "ann", 5))
    running = Activity("full", -1, "7-2")
    said["ack_register_again"] = script.play(registered(active=(running,), finished=(outcome,)))
    said["metrics_response"] = script.ask(MetricsRequest())
    said["worker_list_response"] = script.ask(WorkerListRequest())
    said["worker_show_response"] = script.ask(WorkerShowRequest("worker-1"))
    said["ack_job_log"] = [
        message("ack", {"re": "job_log", "log_offsets": {"7-2": {"stdout": 5, "stderr": 0}}})
    ]
    said["tunnel_dial"] = [message("tunnel_dial", {"ticket": "a-ticket"})]
    return said | compose_gang() | compose_calls()


def compose_gang() -> dict[str, list[dict[str, Any]]]:
    """What the first member of a gang is sent."""
    script = Script()
    spec = pack_spec(check_spec({"command": ["true"], "node_count": 2}))
    script.play(EpochStarted(7), JobsSubmitted((NewJob("gang", "ann", spec),)))
    for number in (1, 2):
        name = f"worker-{number}"
        script.play(SessionOpened(name, number, ""), registered(name, number, features=("gang",), base=False))
    placements = tuple(Placement("gang", rank, f"7-{rank + 1}", f"worker-{rank + 1}") for rank in (0, 1))
    said = {"job_assign_gang": script.play(PlanDecided(placements))}
    first, last = (
        AttemptAccepted(
            f"worker-{rank + 1}", "gang", rank, f"7-{rank + 1}", f"10.0.0.{rank + 7}", (29_500 + rank,)
        )
        for rank in (0, 1)
    )
    script.play(first)
    return said | {"job_go": script.play(last)}


def compose_calls() -> dict[str, list[dict[str, Any]]]:
    """What a worker with a lane is sent."""
    script = Script()
    asked = {"function": b"DF1\x00", "array": {"last": -1, "open": True}, "max_runtime_hours": 1.5}
    spec = pack_spec(check_spec(asked))
    chunk = ArgsChunk("calls", 0, len(ARGS), msgspec.msgpack.encode(ARGS))
    script.store.commit(Turn(1, 1, 1, b"", b"", chunks=[chunk]))
    script.play(EpochStarted(7), JobsSubmitted((NewJob("calls", "ann", spec),)))
    script.play(ArrayExtended("calls", len(ARGS), True))
    script.play(SessionOpened("worker-1", 1, ""), registered(features=("calls", "yield"), base=False))
    script.play(CreditSet("worker-1", 3, SLOTS_READ))
    said = {"calls_assign": script.play(PlanDecided((Placement("calls", 0, "7-4", "worker-1", (1,)),)))}
    said["calls_assign_more"] = script.play(CallsFed((FeedOfCalls("7-4", (1, 2)),)))
    said["calls_ack"] = script.play(AckCalls("worker-1", 9), AckCalls("worker-1", 10))
    said["job_resume"] = script.play(Resume("worker-1", "7-4"))
    return said
