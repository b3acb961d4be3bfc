"""Members of a gang held ready: recorded and told as accepted, and started only on the word that all of them are.

Holds specs and starts nothing itself. What is held lives in this process alone: with it gone, the journal shows a task
that never started. A lease runs while it is held, from when the hub was last heard: a word that was long on its way
must not start what another worker may run by now.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dray.agent.supervisor.attempts.attempt import NO_EXIT_CODE, judge_stopped, make_result

if TYPE_CHECKING:
    from dray.agent.supervisor.attempts.spec import TaskSpec
    from dray.agent.supervisor.records.journal import Record
    from dray.agent.supervisor.server import Server


class Prepared:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._specs: dict[str, TaskSpec] = {}
        self._leases: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._specs)

    def hold(self, spec: TaskSpec) -> None:
        self._server.record({"k": "spec", "uid": spec.uid, "task_id": spec.task_id, "meta": spec.meta})
        self._specs[spec.uid] = spec
        if spec.lease_s is not None:
            self._leases[spec.uid] = (spec.heard_at or time.monotonic()) + spec.lease_s
        self.tell(spec.uid)

    def tell(self, uid: str) -> bool:
        """Say (again) that a member is ready; False when it is not held here."""
        spec = self._specs.get(uid)
        if spec is not None:
            items = [{"uid": uid, "meta": spec.meta}]
            self._server.outbox.others.append({"ev": "prepared", "items": items})
        return spec is not None

    def renew_leases(self, age_s: float) -> None:
        heard_at = time.monotonic() - age_s
        for uid, ends_at in self._leases.items():
            self._leases[uid] = max(ends_at, heard_at + (self._specs[uid].lease_s or 0.0))

    def start(self, uid: str, env: dict[str, str]) -> bool:
        """Let a member go, with what the others are called; False when it is not held here."""
        spec, ends_at = self._specs.pop(uid, None), self._leases.pop(uid, None)
        if spec is None:
            return False
        if ends_at is not None and ends_at <= time.monotonic():
            text = "its lease ran out before it was told to start"
            self._end(uid, make_result("failed", NO_EXIT_CODE, 0, "lost_unstarted", text))
            return True
        spec.env = {**spec.env, **env}
        spec.start_by = None
        self._server.launch(spec, ends_at)
        return True

    def cancel(self, uid: str, reason: str) -> bool:
        spec = self._specs.pop(uid, None)
        self._leases.pop(uid, None)
        if spec is not None:
            self._end(uid, judge_stopped(reason, NO_EXIT_CODE, 0, spec.limit_s))
        return spec is not None

    def _end(self, uid: str, result: Record) -> None:
        usage = {"wall_s": 0.0, "cpu_s": 0.0, "max_rss_bytes": 0}
        exit_ = {**result, "usage": usage, "out": {"stdout": 0, "stderr": 0}}
        self._server.record({"k": "exit", "uid": uid, "exit": exit_})
        self._server.outbox.exited.append({"uid": uid, **exit_})
