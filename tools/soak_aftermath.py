"""What every soak looks at after its kills: the hub's own doctor, processes that are left, tracebacks, surprises.

Collects what must not be; knows nothing about the load.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.cluster import Cluster, is_alive
from tools.kill_soak_kills import AGENTS, Killer, supervisor_of

POLL_S = 0.1


def is_below(pid: int, hub_pid: int) -> bool:
    """Whether a process was started by the hub that lives now, or by one of those."""
    while hub_pid and pid > 1:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        pid = int(words[1])
        if pid == hub_pid:
            return True
    return False


class Anomaly(NamedTuple):
    """Something that must not be; `task` names what to look at, where there is one."""

    kind: str
    text: str
    task: str = ""


class Aftermath:
    """All that was found; `anomalies` is empty where everything held."""

    def __init__(self, cluster: Cluster, killer: Killer, patience_s: float = 10.0) -> None:
        self._cluster, self._killer, self._patience_s = cluster, killer, patience_s
        self.anomalies: list[Anomaly] = []

    def look_around(self) -> None:
        """What is left of a cluster whose work has ended."""
        self._check_doctor()
        self._check_processes()
        self._check_logs()
        for text in self._killer.surprises:
            self._find("surprise", text)

    def _find(self, kind: str, text: str, task: str = "") -> None:
        self.anomalies.append(Anomaly(kind, text, task))

    def _call(self, path: str, **query: Any) -> Any:
        answer = self._cluster.call("GET", path, **query)
        assert answer.status == 200, f"GET {path}: {answer}"
        return answer.json

    def _check_doctor(self) -> None:
        done = self._cluster.dray("doctor")
        if done.code:
            self._find("doctor", f"`dray doctor` ended with {done.code}: {done.out} {done.err}")

    def _check_processes(self) -> None:
        """Hub, agents and one supervisor each: nothing else is left."""
        deadline = time.monotonic() + self._patience_s
        while (left := self._strangers()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for pid, words in left.items():
            self._find("left over", f"process {pid}: {words}")

    def _strangers(self) -> dict[int, str]:
        agents = [self._cluster.agents[name] for name in AGENTS]
        known = {self._cluster.hub.pid if self._cluster.hub else 0, *(agent.pid for agent in agents)}
        known |= {supervisor_of(agent) or 0 for agent in agents}
        left = {}
        for pid in self._cluster.members():
            # What the living hub has started itself (the run into the future) is its own and ends with it.
            if (
                pid not in known
                and is_alive(pid)
                and not is_below(pid, self._cluster.hub.pid if self._cluster.hub else 0)
            ):
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    left[pid] = words.decode(errors="replace")[:200]
        return left

    def _check_logs(self) -> None:
        """No process wrote a traceback."""
        found = [*self._cluster.folder.glob("*.log"), *self._cluster.folder.glob("*/worker/*.log")]
        for path in found:
            text = path.read_text(errors="replace")
            at = text.find("Traceback")
            if at >= 0:
                times = text.count("Traceback")
                self._find("traceback", f"{path.name}, {times} times: {text[max(0, at - 300) : at + 2500]}")
