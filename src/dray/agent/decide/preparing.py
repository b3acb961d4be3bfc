"""Attempts that wait for the tree they run in: held by the supervisor meanwhile, and let go when it is there.

Pure, and no state of its own: what an attempt waits for stands in its record. Surprising rule: one that takes the
place of another attempt is not held, since the supervisor's line for that knows no holding: it is handed over when its
tree is there, and given back where that takes too long.
"""

from __future__ import annotations

from typing import Any

from dray.agent.decide.attempts import Running
from dray.agent.decide.effects import Effect, Lay, Supervise
from dray.core.model.specs.spec import JobSpec

FAULT = "snapshot"


def tree_meta(spec: JobSpec) -> dict[str, str]:
    """What the supervisor keeps of it, for the agent that comes after this one."""
    names = {"id": spec.snapshot_id, "sha": spec.snapshot_sha, "user": spec.user_id}
    return names | {"environment": spec.environment}


def waits_for_tree(spec: JobSpec) -> bool:
    """Whether anything must be there before its process may start."""
    return bool(spec.snapshot_id or spec.environment)


def lay_of(uid: str, meta: dict[str, str]) -> Lay:
    """What is asked for, by what the supervisor keeps of it."""
    return Lay(uid, meta["id"], meta["sha"], meta["user"], meta.get("environment", ""))


def lay_again(attempt: Running, meta: dict[str, Any]) -> list[Effect]:
    """An agent has died while a tree was being laid out: this one goes on with it."""
    tree = meta.get("tree")
    if not tree or attempt.phase != "accepted" or attempt.stopping is not None:
        return []
    attempt.unready = True
    return [lay_of(attempt.uid, tree)]


def laid(attempt: Running, fault: str, ours: bool) -> list[Effect]:
    """A tree is there, or never will be: what is held for it goes on, or ends with what is wrong."""
    if fault:
        attempt.fault = ("lost_unstarted" if ours else FAULT, fault)
        return [Supervise({"op": "cancel", "uid": attempt.uid, "reason": "superseded", "grace_s": 0.0})]
    attempt.unready = False
    return let_go(attempt)


def let_go(attempt: Running) -> list[Effect]:
    """Start what is held and waits for nothing any more; a member of a gang waits for the word of the hub as well."""
    if attempt.unready or attempt.phase != "accepted":
        return []
    if attempt.gang is not None and attempt.peers is None:
        return []
    return [Supervise({"op": "go", "uid": attempt.uid, "env": attempt.peers or {}})]


def tell_fault(attempt: Running, item: dict[str, Any]) -> dict[str, Any]:
    """The end of an attempt whose tree could not be had: as what it is, and not as the stop that it looks like."""
    if attempt.fault is None or attempt.started_at:
        return item
    kind, words = attempt.fault
    code = None if kind == "lost_unstarted" else 125
    return {**item, "state": "failed", "exit_code": code, "signal": 0, "exit_class": kind, "error": words}
