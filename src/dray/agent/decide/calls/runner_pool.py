"""Which runners there are, which one serves a lane, when one is started or let go. Pure: processes are the shell's.

As many are kept ready as the worker has slots, from its first session on. Surprising rule: a worn runner (many calls,
or grown) works on until another stands ready in its place, so that recycling costs no lane its time.
"""

from __future__ import annotations

from dray.agent.decide.calls.lanes import RUNNER_PREFIX, Binding, RunnerRecord
from dray.agent.decide.effects import Effect, StartRunner, Supervise

STARTING_AT_ONCE = 2
RECYCLE_CALLS = 10_000
GROWTH_BYTES = 512 << 20
FAILED_STARTS = 3
# After a start that failed the next one waits, ever longer.
RETRY_MS, LONGEST_RETRY_MS = 100, 30_000


class RunnerPool:
    """The runners of one agent: `ready` are started though no lane needs them yet, `kept` stay when none does."""

    def __init__(self, incarnation: str, ready: int, kept: int) -> None:
        self._incarnation, self._ready, self._kept = incarnation, ready, max(ready, kept)
        # Which dray user's calls run in which account, by names; `*` is anybody else. Empty: all in the agent's own.
        self.task_users: dict[str, str] = {}
        self.opened = False
        self._count = 0
        self._failures: dict[str, int] = {}
        self._retries: dict[str, tuple[int, int]] = {}
        self.barred = False
        self.records: dict[str, RunnerRecord] = {}
        self.stopped = False

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, wanted: Binding, job: str) -> RunnerRecord | None:
        """An idle runner for a lane: one that has run this job before, or was bound alike, or is fresh."""
        best: RunnerRecord | None = None
        for record in self.records.values():
            if record.phase != "idle" or record.worn or not self._fits(record, wanted):
                continue
            if record.job == job and record.binding is not None:
                best = record
                break
            if best is None or (best.binding is None and record.binding is not None):
                best = record
        if best is not None:
            best.binding = wanted
        return best

    def account_of(self, user: str) -> str | None:
        """The name of the account for a user's calls, empty for the agent's own; None where there is none for them."""
        return self.task_users.get(user, self.task_users.get("*")) if self.task_users else ""

    def _fits(self, record: RunnerRecord, wanted: Binding) -> bool:
        return record.fits(wanted) and record.account == self.account_of(wanted.user)

    def start(self, venv: str, memory_bytes: int, account: str) -> StartRunner:
        self._count += 1
        uid = f"{RUNNER_PREFIX}{self._incarnation}-{self._count}"
        self.records[uid] = RunnerRecord(uid=uid, venv=venv, memory_bytes=memory_bytes, account=account)
        return StartRunner(uid, venv, memory_bytes, account)

    def _count_starting(self, kind: tuple[str, int, str]) -> int:
        return sum(
            record.phase == "starting" and (record.venv, record.memory_bytes, record.account) == kind
            for record in self.records.values()
        )

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def settle(self, wanted: list[Binding], now_ms: int) -> list[Effect]:
        """Start what lanes wait for, keep some ready, let go of what is too many."""
        if self.stopped or self.barred:
            return []
        effects: list[Effect] = []
        kinds = [
            (binding.venv, binding.memory_bytes, self.account_of(binding.user) or "") for binding in wanted
        ]
        for kind in dict.fromkeys(kinds):
            if self._waits(kind[0], now_ms):
                continue
            lacking = range(kinds.count(kind) - self._count_starting(kind))
            effects += [self.start(*kind) for _ in lacking]
        live = [record for record in self.records.values() if record.phase != "ending" and not record.worn]
        idle = sorted((r for r in live if r.phase == "idle"), key=lambda record: record.idle_ms)
        for record in idle[: max(0, len(live) - self._kept)]:
            effects.append(self.retire(record, "spare"))
            live.remove(record)
        starting = sum(record.phase == "starting" for record in live)
        if self.opened and self._failures.get("", 0) < FAILED_STARTS and not self._waits("", now_ms):
            lacking = range(min(self._ready - len(live), STARTING_AT_ONCE - starting))
            # Ahead of any call only for whoever may come: nobody else's account is known to be the next one's.
            account = self.account_of("*")
            effects += [self.start("", 0, account) for _ in lacking if account is not None]
        return effects

    def retire(
        self, record: RunnerRecord, why: str, grace_s: float = 0.0, reason: str = "superseded"
    ) -> Effect:
        """Ask for a runner's end, whole: with everything that it has started."""
        record.phase, record.why = "ending", why
        return Supervise({"op": "cancel", "uid": record.uid, "reason": reason, "grace_s": grace_s})

    def wear(self, record: RunnerRecord, calls: int, growth_bytes: int = 0) -> list[Effect]:
        """Count what a runner has done; one that has done enough gets a successor before it goes."""
        record.calls += calls
        if record.calls < RECYCLE_CALLS and growth_bytes < GROWTH_BYTES:
            return []
        return self.replace(record)

    def replace(self, record: RunnerRecord) -> list[Effect]:
        """Let a runner go as soon as another stands ready in its place."""
        if self.stopped or record.worn or record.phase == "ending":
            return []
        record.worn = True
        if record.phase == "idle":
            return [self.retire(record, "worn")]
        return [self.start(record.venv, record.memory_bytes, record.account)]

    @property
    def crowded(self) -> bool:
        """Whether there may be more than are kept."""
        return len(self.records) > self._kept

    def has_successor(self, wanted: Binding) -> bool:
        """Whether another stands ready to take a worn runner's lane."""
        return any(
            other.phase == "idle" and not other.worn and self._fits(other, wanted)
            for other in self.records.values()
        )

    # --- what became of a start ---------------------------------------------------------------------------------------

    def started(self, uid: str, now_ms: int) -> RunnerRecord | None:
        """A runner has come: it is idle."""
        record = self.records.get(uid)
        if record is None or record.phase != "starting":
            return None
        record.phase, record.idle_ms = "idle", now_ms
        self._failures.pop(record.venv, None)
        self._retries.pop(record.venv, None)
        return record

    def gone(self, uid: str, now_ms: int) -> RunnerRecord | None:
        """A runner has ended, whoever ended it."""
        record = self.records.pop(uid, None)
        if record is not None and record.phase == "starting" and not self.stopped:
            venv = record.venv
            self._failures[venv] = self._failures.get(venv, 0) + 1
            _, wait_ms = self._retries.get(venv, (0, RETRY_MS))
            self._retries[venv] = (now_ms + wait_ms, min(2 * wait_ms, LONGEST_RETRY_MS))
        return record

    @property
    def holds_back(self) -> bool:
        """Whether starts may have been put off."""
        return bool(self._retries)

    def _waits(self, venv: str, now_ms: int) -> bool:
        return now_ms < self._retries.get(venv, (0, 0))[0]

    def excuse(self) -> None:
        """Starts failed for want of this worker: that says nothing about any environment."""
        self._failures.clear()

    def is_hopeless(self, venv: str) -> bool:
        """Whether runners of this environment never came up, several times in a row; asking forgets it."""
        if self._failures.get(venv, 0) < FAILED_STARTS:
            return False
        self._failures.pop(venv)
        return True
