"""A small hub for tests of calls: it speaks the worker protocol on one port, blobs included, and does as it is told.

Real sockets and a real agent process on the other side, with its supervisor and its runners. Knows nothing of jobs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests import warm

from dray.functions.envelope import seal
from dray.functions.failures import unpack_failure
from dray.functions.values import pack_call, unpack

T = TypeVar("T")
FOREVER_NS = 2**63 - 1
DEADLINE_S = 60.0


def wait_for(look: Callable[[], T], what: str, limit_s: float = DEADLINE_S) -> T:
    deadline = time.monotonic() + limit_s
    while not (value := look()):
        assert time.monotonic() < deadline, f"not so within {limit_s:g} s: {what}; last seen: {value!r}"
        time.sleep(0.005)
    return value


class Connection:
    """One HTTP or WebSocket connection, in a thread of its own."""

    def __init__(self, hub: CallHub, sock: socket.socket) -> None:
        self._hub, self._sock = hub, sock
        self._file = sock.makefile("rb")
        self._lock = threading.Lock()

    def serve(self) -> None:
        with contextlib.suppress(OSError, ValueError, struct.error):
            while self._request():
                pass
        self._sock.close()

    def _request(self) -> bool:
        words = self._file.readline().decode().split()
        if not words:
            return False
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        if "upgrade" in headers:
            seed = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = b64encode(hashlib.sha1(seed.encode(), usedforsecurity=False).digest()).decode()
            self._sock.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Protocol: dray.v2.msgpack\r\nSec-WebSocket-Accept: %s\r\n\r\n"
                % accept.encode()
            )
            self._session()
            return False
        body = self._file.read(int(headers.get("content-length", 0)))
        status, answer = self._hub.answer(words[0], words[1], body)
        self._sock.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(answer)) + answer)
        return True

    def _session(self) -> None:
        self._hub.session = self
        while True:
            start = self._file.read(2)
            if len(start) < 2:
                return
            first, second = start
            size = second & 127
            if size == 126:
                size = struct.unpack(">H", self._file.read(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self._file.read(8))[0]
            mask = self._file.read(4)
            data = self._file.read(size)
            if first & 15 == 8:
                return
            mask = (mask * (size // 4 + 1))[:size]
            plain = (int.from_bytes(data, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")
            decoded = msgspec.msgpack.decode(plain)
            for envelope in decoded if isinstance(decoded, list) else [decoded]:
                self._hub.take(self, envelope["type"], envelope.get("payload") or {})

    def send(self, kind: str, payload: dict[str, Any]) -> None:
        data = msgspec.msgpack.encode({"type": kind, "payload": payload})
        head = b"\x82" + (bytes([len(data)]) if len(data) < 126 else b"\x7f" + struct.pack(">Q", len(data)))
        with self._lock:
            self._sock.sendall(head + data)

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


class CallHub:
    """The hub and its one worker."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dc"))
        self.session: Connection | None = None
        self.registrations: list[dict[str, Any]] = []
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.ends: dict[tuple[str, int], tuple[str, Any, tuple[str, str]]] = {}
        self.numbers: dict[tuple[str, int], int] = {}
        self.output: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.values: dict[str, bytes] = {}
        self.gets: list[str] = []
        self.acks = True
        self.most_bytes = 1 << 40
        self._sent_specs: set[str] = set()
        self._count = 0
        self.refeeds = True
        self.gaps = False
        self._assigned: dict[str, dict[str, Any]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        self.agent: subprocess.Popen[bytes] | None = None
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "DRAY_HOME": str(self.folder / "h"),
            "DRAY_HUB": f"http://127.0.0.1:{self.port}",
            "DRAY_TOKEN": "t",
            "DRAY_WORKER_RECONNECT_MIN_S": "0.02",
            "DRAY_WORKER_RECONNECT_MAX_S": "0.05",
        }

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=Connection(self, sock).serve, daemon=True).start()

    # --- the worker ---------------------------------------------------------------------------------------------------

    def start_agent(self, slots: int = 2, **env: str) -> None:
        known = len(self.registrations)
        words = [sys.executable, "-P", "-m", "dray.cli.main", "worker", "start", "--slots", str(slots)]
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = warm.Popen(
                words,
                stdout=log,
                stderr=log,
                env={**self.env, **env},
                cwd=self.folder,
                start_new_session=True,
            )
        wait_for(lambda: len(self.registrations) > known, "the agent has registered")

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def log(self) -> str:
        return (self.folder / "agent.log").read_text(errors="replace")

    def runner_pids(self) -> list[int]:
        """Runners of this hub's worker that are alive."""
        return [pid for pid, line in self._processes() if "dray/runner/__main__.py" in line]

    def supervisor_pid(self) -> int:
        return int(json.loads((self.folder / "h" / "worker" / "supervisor.json").read_text())["pid"])

    def _processes(self) -> list[tuple[int, str]]:
        mark, place = f"HOME={self.folder}".encode(), f" {self.folder}/"
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError):
                line = (
                    Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                # Only root may look into a runner; but its arguments name its folder.
                ours = place in line or mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if line and ours:
                    found.append((int(name), line))
        return found

    def close(self) -> None:
        self._listener.close()
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()
        for _ in range(3):
            for pid, _ in self._processes():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        # Where agent and tasks meet that are different users lies elsewhere.
        with contextlib.suppress(OSError):
            shutil.rmtree(Path((self.folder / "h" / "worker" / "session.path").read_text()).parent)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the protocol -------------------------------------------------------------------------------------------------

    def take(self, connection: Connection, kind: str, payload: dict[str, Any]) -> None:
        if kind == "register":
            self._sent_specs.clear()
            self.registrations.append(payload)
            keep = [item["attempt"] for item in payload["active_tasks"]]
            connection.send("ack", {"re": "register", "epoch": 1, "heartbeat_s": 5, "keep": keep})
        elif kind == "calls_result":
            self._record(payload)
            if self.acks:
                connection.send("calls_ack", {"seq": [payload["seq"]]})
        elif kind == "job_log":
            key = f"{payload['attempt']}.{payload['task_id'].rpartition('/')[2]}"
            stream = f"{payload['task_id']} {payload['stream']}"
            known = self.output.get(stream, b"")
            assert payload["offset"] <= len(known) or self.gaps
            self.output[stream] = known[: payload["offset"]].ljust(payload["offset"], b"?") + payload["data"]
            ends = {payload["stream"]: len(self.output[stream])}
            connection.send("ack", {"re": "job_log", "log_offsets": {key: ends}})
        elif kind == "job_result":
            connection.send("ack", {"re": kind, "results": {payload["attempt"]: "recorded"}})
        elif kind not in ("job_yield", "job_resume", "job_progress", "ready_for_work"):
            connection.send("ack", {"re": kind})
        self.told.append((kind, payload))

    def _record(self, payload: dict[str, Any]) -> None:
        states = payload["state"]
        details = payload.get("details", {})
        for place, index in enumerate(payload["index"]):
            state = states if isinstance(states, str) else states[place]
            if state == "returned" and self.refeeds:
                self._feed_again(payload["lane"], payload["job"], index)
                continue
            detail = tuple(details.get(str(index), ("", "")))
            self.ends[payload["job"], index] = (state, payload["value"][place], detail)

    def _feed_again(self, lane: str, job: str, index: int) -> None:
        """As a hub does with a call that came back: a new try, here in the same lane."""
        self.numbers[job, index] += 1
        payload = self._assigned[lane]
        place = payload["index"].index(index)
        again = {"index": [index], "no": [self.numbers[job, index]], "args": [payload["args"][place]]}
        self.send("calls_assign", payload | again | {"spec": None})

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        name = target.rpartition("/")[2]
        if method == "PUT":
            if len(body) > self.most_bytes:
                return 413, json.dumps(
                    {"error": {"code": "too_large", "message": f"at most {self.most_bytes} bytes"}}
                ).encode()
            assert hashlib.sha256(body).hexdigest() == name
            self.blobs[name] = body
            return 201, b"{}"
        self.gets.append(target)
        known = self.values if "/value" in target else self.blobs
        name = target.partition("/jobs/")[2].replace("/value?task=", "/") if "/value" in target else name
        if name not in known:
            return 404, b'{"error": {"code": "not_found", "message": "there is no such value"}}'
        return 200, known[name]

    # --- what tests do ------------------------------------------------------------------------------------------------

    def send(self, kind: str, payload: dict[str, Any]) -> None:
        assert self.session is not None
        self.session.send(kind, payload)

    def assign(
        self,
        lane: str,
        job: str,
        function: Callable[..., Any] | bytes,
        args: Sequence[tuple[Any, ...] | bytes],
        first: int = 0,
        spec: dict[str, Any] | None = None,
        limit_ns: int = FOREVER_NS,
        devices: Sequence[int] = (),
    ) -> None:
        """Send calls; big arguments are put into the blob store first."""
        sealed = function if isinstance(function, bytes) else seal(function).function
        packed = [arg if isinstance(arg, bytes) else pack_call("f", arg, {}).join() for arg in args]
        given: list[Any] = []
        for data in packed:
            if len(data) > 64 << 10:
                digest = hashlib.sha256(data).hexdigest()
                self.blobs[digest] = data
                given.append((digest, len(data)))
            else:
                given.append(data)
        index = list(range(first, first + len(args)))
        for one in index:
            self.numbers[job, one] = self.numbers.get((job, one), 0) + 1
        document = None
        if lane not in self._sent_specs:
            self._sent_specs.add(lane)
            array = {"first": 0, "last": -1, "open": True}
            document = {"id": job, "function": sealed, "array": array, "user_id": "u", **(spec or {})}
        payload = {
            "lane": lane,
            "job": job,
            "attempt": {"no": 1, "uid": lane},
            "index": index,
            "no": [self.numbers[job, one] for one in index],
            "args": given,
            "spec": document,
            "remaining_time": limit_ns,
            "devices": list(devices),
            "token": "task-token",
        }
        known = self._assigned.get(lane, {"index": [], "args": []})
        self._assigned[lane] = payload | {
            "index": [*known["index"], *index],
            "args": [*known["args"], *given],
        }
        self.send("calls_assign", payload)

    def call(
        self, function: Callable[..., Any] | bytes, *args: Any, **spec: Any
    ) -> tuple[str, Any, tuple[str, str]]:
        """One call as a job of its own, to its end."""
        self._count += 1
        lane, job = f"9-{self._count}", f"job{self._count}"
        self.assign(lane, job, function, [args], spec=spec)
        return self.end(job)

    @property
    def last_job(self) -> str:
        return f"job{self._count}"

    def end(self, job: str, index: int = 0) -> tuple[str, Any, tuple[str, str]]:
        """Wait for a call's end: state, value (or exception), (exit class, error)."""
        wait_for(lambda: (job, index) in self.ends, f"{job}/{index} has ended: {self.log()}")
        state, value, detail = self.ends[job, index]
        if isinstance(value, (list, tuple)):
            value = self.blobs[value[0]]
        if value is not None:
            value = unpack_failure(value) if detail[0] == "raised" else unpack(value)
        return state, value, detail

    def wait_told(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            payloads = [payload for word, payload in self.told if word == kind]
            return payloads if len(payloads) >= count else []

        return wait_for(found, f"the agent says {kind}: {self.log()}")
