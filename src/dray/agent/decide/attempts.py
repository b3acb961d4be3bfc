"""Attempts as this agent holds them, and how their ends are spelled. Pure values; machine.py decides about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dray.agent.decide.calls.lanes import Stopping
from dray.agent.decide.effects import Effect, Ship, Supervise
from dray.agent.decide.words import Said
from dray.core.model.specs.spec import HealthCheck, JobSpec
from dray.wire.messages.hub import Ack, GangPlace, Peer

PROBE_PREFIX = "probe-"
NOT_HERE = "this worker does not have this attempt"


class Running(msgspec.Struct, kw_only=True):
    """One attempt this agent answers for, from its assignment to the ack of its result. `known`: to the present hub.

    `gang`: it is a member of one, which is accepted when the supervisor holds it ready and started by `job_go`.
    `start_by_ms`: from then on the supervisor starts it no more; 0 where only the supervisor's own word counts.
    `unready`: its tree is not there yet; `peers`: what the others of its gang are called, once it may start;
    `fault`: why there will be no tree, by class and words.
    `behind`: it waits for the place of that attempt, and holds none itself until it has started. `health`: how it is
    checked; `named`: its ports as the job names them. `listed`: the last registration named it.
    """

    uid: str
    task_id: str
    pool: str
    phase: str = "assigned"
    started_at: float = 0
    pid: int = 0
    devices: tuple[int, ...] = ()
    result: dict[str, Any] | None = None
    known: bool = True
    sent_ms: int = 0
    sends: int = 0
    gang: GangPlace | None = None
    ports: list[int] = []
    said: Said = msgspec.field(default_factory=Said)
    stopping: Stopping | None = None
    start_by_ms: int = 0
    behind: str = ""
    health: HealthCheck | None = None
    named: list[str] = []
    listed: bool = False
    unready: bool = False
    peers: dict[str, str] | None = None
    fault: tuple[str, str] | None = None

    @property
    def waits(self) -> bool:
        """Whether it has no place yet."""
        return bool(self.behind) and self.phase == "assigned"

    def read_meta(self, meta: dict[str, Any]) -> None:
        """Take over what the supervisor kept of it: its ports, and of a member its place."""
        self.ports = list(meta.get("ports") or ())
        self.named = list(meta.get("named") or ())
        if (health := meta.get("health")) is not None:
            self.health = msgspec.convert(health, HealthCheck)
        if (kept := meta.get("gang")) is not None:
            self.gang = GangPlace(kept["generation"], kept["rank"], kept["size"])
            # Earlier versions kept them here.
            self.ports = self.ports or list(kept.get("ports") or ())


def acceptance(attempt: Running, address: str) -> dict[str, Any]:
    """What the hub is told of an attempt that is taken on."""
    payload: dict[str, Any] = {"task_id": attempt.task_id, "attempt": attempt.uid}
    if attempt.ports:
        payload |= {"address": address, "ports": attempt.ports}
    return payload


def is_careful(spec: JobSpec) -> bool:
    """Whether a second run would do harm: then the hub hears of the first without delay."""
    return spec.at_most_once or spec.overlap == "fenced"


def is_probe(uid: str) -> bool:
    """Whether a supervised process is a trial start of this agent's and no attempt of a task."""
    return uid.startswith(PROBE_PREFIX)


def gang_meta(place: GangPlace) -> dict[str, Any]:
    """What the supervisor keeps of a member beside its spec, for the agent that comes after this one."""
    return {"generation": place.generation, "rank": place.rank, "size": place.size}


def known_to_hub(ack: Ack) -> set[str]:
    """Name the attempts that the hub has heard of, by an answer; it refuses the output of those others that its answer
    to `register` did not name.

    A superseded result may be on record or not: the hub names those whose output it still takes.
    """
    counted = (uid for uid, verdict in ack.results.items() if verdict != "superseded")
    return {*ack.keep, *ack.stop, *ack.log_offsets, *counted}


def list_active(running: Mapping[str, Running]) -> list[Running]:
    """Choose what a registration names as active, and note that it did."""
    for attempt in running.values():
        attempt.listed = attempt.phase in ("accepted", "running")
    return [attempt for attempt in running.values() if attempt.listed]


def let_forgotten_go(attempt: Running) -> list[Effect]:
    """A member that is held ready for a hub that has forgotten it, as one restored from a backup has, would hold its
    ports for good: nobody is left to let it start. Whatever was started by then runs on, as all unknown work does.
    """
    if not attempt.listed or attempt.known or attempt.gang is None or attempt.phase != "accepted":
        return []
    return [Supervise({"op": "cancel", "uid": attempt.uid, "reason": "superseded", "held": True})]


def ship_late(attempt: Running) -> list[Effect]:
    """The hub has heard of it, whatever its answer to `register` said: what it printed before it ended is sent now."""
    late, attempt.known = not attempt.known and attempt.phase == "exited", True
    return [Ship(attempt.uid, attempt.task_id, ended=True)] if late else []


def result_of(attempt: Running, item: dict[str, Any], use: dict[str, Any] | None = None) -> dict[str, Any]:
    """Spell an exit as the message that reports it; `use` is what was seen of it while it ran."""
    out = item.get("out") or {}
    usage = dict(item.get("usage") or {})
    for name, amount in (use or {}).items():
        if name != "cards":
            # The kernel knows what ended and was waited for, a look also sees what was not.
            usage[name] = max(amount, usage.get(name) or 0)
    usage |= {f"{stream}_bytes": count for stream, count in out.items()}
    result = {
        "task_id": attempt.task_id,
        "attempt": attempt.uid,
        "state": item["state"],
        "exit_code": item.get("exit_code"),
        "signal": item.get("signal") or 0,
        "exit_class": item.get("exit_class") or "",
        "usage": usage,
    }
    if item["state"] == "preempted" and attempt.said.finished and item.get("exit_code") == 0:
        # It said that its work is whole: a second run would only find nothing left to do.
        return result | {"state": "succeeded", "exit_class": "ok"}
    if item.get("error"):
        result["error"] = item["error"]
    if item.get("last"):
        result["last_lines"] = item["last"]
    return result


def unstarted(error: str) -> dict[str, Any]:
    """An end without a beginning, that nobody is charged for."""
    return {"state": "failed", "exit_code": None, "exit_class": "lost_unstarted", "error": error}


def never_started(task_id: str, uid: str, error: str = NOT_HERE) -> dict[str, Any]:
    """Answer for an attempt that is not here: the hub may be sure that it does not run."""
    named = {"task_id": task_id, "attempt": uid, "state": "killed"}
    return {**named, "exit_class": "lost_unstarted", "error": error}


def name_peers(place: GangPlace, peers: Sequence[Peer]) -> dict[str, str]:
    """What one member of a gang finds in its environment: all meet at the last port of rank 0.

    Spelled as torchrun and JAX read it. One process per node: what a member starts on its own cards is its own affair.
    """
    first = min(peers, key=lambda peer: peer.rank)
    host, port = first.address, str(first.ports[-1] if first.ports else 0)
    rank, size = str(place.rank), str(place.size)
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "RANK": rank,
        "WORLD_SIZE": size,
        "NODE_RANK": rank,
        "GROUP_RANK": rank,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "JAX_COORDINATOR_ADDRESS": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "JAX_NUM_PROCESSES": size,
        "JAX_PROCESS_ID": rank,
        "DRAY_GANG_GENERATION": str(place.generation),
    }
