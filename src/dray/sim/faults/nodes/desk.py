"""What people ask of a simulated hub: the product's commands, put in its inbox as its own front ends do."""

from __future__ import annotations

from typing import Any

from dray.core.lifecycle.state.events import ArrayExtended, Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import Policy
from dray.core.model.records.workload import Terms
from dray.errors import DrayError, NotFound
from dray.hub.access.caller import Caller
from dray.hub.calls.arguments import ArgsMemory
from dray.hub.calls.reading import CallReader
from dray.hub.decisions import calls as call_commands
from dray.hub.decisions import commands, edits, machines, workloads
from dray.hub.decisions import policy as policy_changes
from dray.hub.decisions.commands import Sources
from dray.hub.engine.turns import Decide, Decision
from dray.hub.rows import RowKey, Rows, job_row
from dray.hub.serving import decisions as services
from dray.wire.messages.client import Calls

USER = Caller("sim", "sim", ("admin",))


class Desk:
    """Where requests come in; a hub is one."""

    state: State
    rows: Rows
    args: ArgsMemory
    calls: CallReader
    sources: Sources

    def post(
        self, decide: Decide, done: Any = None, presses: bool = False, wants: tuple[RowKey, ...] = ()
    ) -> None:
        """Queue a request."""
        raise NotImplementedError

    def submit(self, specs: list[dict[str, Any]], key: str, done: Any) -> None:
        """Submit as a client would, under a key; answers the ids, whether they are new, and the space there was."""
        checked = commands.read_specs(USER, specs, 1000, expand=self._lay_under)
        self.post(
            commands.submit(
                USER,
                checked,
                key,
                self.sources,
                lambda state, ids, created: (tuple(ids), created, self.sources.low_space()),
            ),
            done,
            wants=commands.submit_rows(USER, checked, key),
        )

    def _lay_under(self, raw: dict[str, Any]) -> dict[str, Any]:
        return workloads.lay_terms(self.state, dict(raw))

    def make_workload(self, name: str, terms: Terms, done: Any) -> None:
        """Make a workload as a client would: a draft."""
        self.post(workloads.create(USER, name, terms, lambda state, is_new: is_new), done)

    def switch_workload(self, name: str, verb: str, stop: bool, done: Any) -> None:
        """Start, pause, seal, cancel or archive one as a client would."""
        self.post(workloads.switch(USER, name, verb, lambda state, name, note: note, stop), done)

    def set_workload(self, name: str, changes: dict[str, Any], done: Any) -> None:
        """Change its terms as a client would."""
        update = workloads.Update(changes)
        self.post(workloads.update(USER, name, update, lambda state, name, note: note), done)

    def cancel(self, job_id: str, index: int | None, done: Any) -> None:
        """Cancel as a client would."""
        decide = commands.cancel(USER, job_id, index, None, self.rows, lambda state, ids, did: did)
        self.post(decide, done, wants=(job_row(job_id),))

    def hold(self, job_id: str, on: bool, done: Any) -> None:
        """Hold or release as a client would."""
        decide = edits.hold(USER, job_id, on, self.rows, lambda state, job_id, note: note)
        self.post(decide, done, wants=(job_row(job_id),))

    def requeue(self, job_id: str, index: int | None, done: Any) -> None:
        """Queue again as a client would."""
        decide = edits.requeue(USER, job_id, index, self.calls, lambda state, job_id, note: note)
        self.post(decide, done, wants=(job_row(job_id),))

    def scale(self, job_id: str, replicas: int, done: Any) -> None:
        """Scale a service as a client would."""
        decide = services.scale(USER, job_id, replicas, lambda: False, lambda state, job, note: note)
        self.post(decide, done)

    def update(self, job_id: str, changes: dict[str, Any], done: Any) -> None:
        """Update a service as a client would."""
        decide = services.update(USER, job_id, changes, False, lambda: False, lambda state, job, note: note)
        self.post(decide, done)

    def rollback(self, job_id: str, to: int | None, done: Any) -> None:
        """Roll a service back as a client would."""
        self.post(services.rollback(USER, job_id, to, lambda state, job, note: note), done)

    def restart(self, job_id: str, done: Any) -> None:
        """Restart a service replica by replica, as a client would."""
        self.post(services.restart(USER, job_id, lambda: False, lambda state, job, note: note), done)

    def edit(self, job_id: str, wanted: dict[str, Any], done: Any) -> None:
        """Edit as a client would."""
        # Whoever edits has room here: what a full disk refuses is watched at submits, by the same check.
        decide = edits.edit(USER, job_id, wanted, self.calls, lambda state, job_id, note: note, lambda: False)
        self.post(decide, done, wants=(job_row(job_id),))

    def apply_policy(self, policy: Policy, done: Any) -> None:
        """Replace the policy as an operator would."""
        self.post(policy_changes.apply_policy(USER, policy, True, lambda state, change: True), done)

    def drain(self, worker: str, on: bool, until: str = "") -> None:
        """Drain or resume as an operator would."""
        self.post(machines.drain(USER, worker, on, lambda state, worker_id: None, until=until))

    def remove_worker(self, worker: str) -> None:
        """Remove a worker as an operator would; one that is here, or may run something, is left alone."""
        self.post(machines.remove(USER, worker, False, lambda state, worker_id: None))

    def add_calls(self, body: Calls, done: Any) -> None:
        """Add calls to a job as a client would; answers how many it has."""
        try:
            spec = call_commands.read_call_spec(USER, body)
        except DrayError as refusal:
            done.set_exception(refusal)
            return
        sources = call_commands.CallSources(self.sources, self.args)
        self.post(
            call_commands.add_calls(USER, body, spec, sources, self._count_calls),
            done,
            wants=(job_row(body.job), *commands.submit_rows(USER, [spec] if spec is not None else [])),
        )

    def _count_calls(self, state: State, job_id: str) -> int:
        job = self.rows.job(job_id)
        return job.total if job is not None else 0

    def extend(self, job_id: str, count: int, close: bool, done: Any) -> None:
        """Give an open array further members, or close it; what has ended stays as it is."""

        def decide(state: State, clock: Clock) -> Decision:
            job = commands.owned(USER, self.rows.job(job_id), job_id)
            if not job.open or job.state.final:
                raise NotFound(f"array {job_id} is closed")
            return Decision([ArrayExtended(job_id, count, close)], lambda after: True)

        self.post(decide, done, wants=(job_row(job_id),))
