"""A worker written from the protocol's text alone: JSON text frames, base fields, nothing of dray.

The contract's other side: whatever this script needs of a hub, any foreign worker may need. It names no features and no
attempts. Run as a program it works: `python foreign_worker.py ws://HOST:PORT/ws TOKEN WORKER_ID`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections import deque
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

WAIT_S = 60.0
Payload = dict[str, Any]


class ForeignWorker:
    """One session. What was received and not yet asked for waits in `inbox`, in order."""

    def __init__(
        self,
        url: str,
        token: str,
        worker_id: str,
        capabilities: Payload | None = None,
        slots: Payload | None = None,
    ) -> None:
        self.id = worker_id
        self.capabilities = capabilities or {"gpu_backend": "cpu", "cpu_count": 4, "memory_gb": 8}
        self.slots = slots or {"batch_total": 4, "batch_in_use": 0, "service_total": 1, "service_in_use": 0}
        self.inbox: deque[Payload] = deque()
        headers = {"Authorization": f"Bearer {token}"}
        dialled = connect(url, additional_headers=headers, proxy=None, close_timeout=2)
        self.socket: ClientConnection = contextlib.ExitStack().enter_context(dialled)

    def send(self, kind: str, payload: Payload | None = None) -> None:
        """Send one envelope; an empty payload is left out."""
        envelope = {"type": kind} if payload is None else {"type": kind, "payload": payload}
        self.socket.send(json.dumps(envelope))

    def receive(self, timeout_s: float = WAIT_S) -> Payload:
        """Give the next message; raises TimeoutError or ConnectionClosed."""
        if self.inbox:
            return self.inbox.popleft()
        envelope: Payload = json.loads(self.socket.recv(timeout=timeout_s))
        return envelope

    def expect(self, kind: str, timeout_s: float = WAIT_S) -> Payload:
        """Give the payload of the next message, which must be of this type; for an error its text."""
        got = self.receive(timeout_s)
        if got["type"] != kind:
            raise AssertionError(f"expected {kind}, got {got}")
        return got if kind == "error" else got.get("payload", {})

    def closed(self, timeout_s: float = WAIT_S) -> tuple[int, str]:
        """Read until the hub closes; gives its code and reason."""
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                self.inbox.append(json.loads(self.socket.recv(timeout=deadline - time.monotonic())))
        except ConnectionClosed as end:
            if end.rcvd is None:
                raise AssertionError("the socket broke without a close frame") from None
            return end.rcvd.code, end.rcvd.reason

    # --- what a worker says ------------------------------------------------------------

    def register(self, active_tasks: list[Payload] | None = None) -> Payload:
        """Say who this is and what still runs here; returns the ack."""
        body = {"id": self.id, "capabilities": self.capabilities, "active_tasks": active_tasks}
        self.send("register", body)
        return self.expect("ack")

    def heartbeat(self) -> list[Payload]:
        """Beat once; gives what the hub had sent before it answered."""
        self.send("heartbeat", {"worker_id": self.id, "slots": self.slots, "capability": self.capabilities})
        before = list(self.inbox)
        self.inbox.clear()
        while (got := self.receive())["type"] != "ack":
            before.append(got)
        return before

    def ready(self, reason: str = "polling") -> Payload:
        """Ask for work; gives the answer, `job_assign` or `no_work`."""
        self.send("ready_for_work", {"worker_id": self.id, "slots": self.slots, "reason": reason})
        return self.receive()

    def accept(self, task_id: str) -> Payload:
        """Take a task on; returns the ack."""
        self.send("job_accepted", {"task_id": task_id})
        return self.expect("ack")

    def finish(self, task_id: str, state: str = "succeeded", exit_code: int = 0, error: str = "") -> Payload:
        """Report how a task ended; returns the ack."""
        body: Payload = {"task_id": task_id, "state": state, "exit_code": exit_code}
        self.send("job_result", {**body, "error": error} if error else body)
        return self.expect("ack")

    # --- how a session ends ------------------------------------------------------------

    def goodbye(self, code: int = 1000) -> None:
        """Close as one who leaves on purpose."""
        self.socket.close(code)

    def break_off(self) -> None:
        """Let the connection drop without a word."""
        with contextlib.suppress(OSError):
            self.socket.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def work(worker: ForeignWorker, tasks: int) -> None:
    """Run tasks one after the other until so many have ended."""
    worker.register()
    done = 0
    answer = worker.ready()
    while done < tasks:
        if answer["type"] == "job_assign":
            spec = answer["payload"]["spec"]
            worker.accept(spec["id"])
            env = {**os.environ, **spec["env"]}
            ended = subprocess.run(
                spec["command"],
                env=env,
                timeout=answer["payload"]["remaining_time"] / 1e9,
                check=False,
            )
            worker.finish(spec["id"], "failed" if ended.returncode else "succeeded", ended.returncode)
            done += 1
            answer = worker.ready("finished")
        else:
            answer = worker.receive(timeout_s=3600)
    worker.goodbye()


if __name__ == "__main__":
    url, token, name, count = sys.argv[1:5]
    work(ForeignWorker(url, token, name), int(count))
