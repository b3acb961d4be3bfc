"""What the one who runs attempts tells the one who keeps their records. No code of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.agent.supervisor.attempts.attempt import Attempt, Stop
    from dray.agent.supervisor.attempts.orphans import Orphan
    from dray.agent.supervisor.processes.process import Process
    from dray.agent.supervisor.records.journal import Record


class Report:
    """What the owner of a runner is told; the facts become records before anything leaves or runs."""

    def start_intended(self, attempt: Attempt, pipe_inodes: list[int]) -> str:
        """It is about to run. Answers with the mark for its environment."""
        raise NotImplementedError

    def mark(self, attempt: Attempt) -> str:
        """By which its processes are known."""
        raise NotImplementedError

    def process_started(self, attempt: Attempt, process: Process, first: bool) -> None:
        raise NotImplementedError

    def process_adopted(self, orphan: Orphan) -> None:
        """A process has left its parents, and is watched from here on."""
        raise NotImplementedError

    def attempt_stopping(self, attempt: Attempt, stop: Stop) -> None:
        raise NotImplementedError

    def attempt_ended(self, attempt: Attempt, result: Record) -> None:
        raise NotImplementedError
