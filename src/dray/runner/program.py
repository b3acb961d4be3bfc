"""The runner at work: calls in, results out, in the main thread, where signals and most libraries want to be.

Whatever a call does to itself ends as its result; whatever it does to the process is seen by the agent, which reads
from `now` which call it was. A result is written at once, unless calls take less than a millisecond: then several go
together. Surprising rule: a forked child that comes back from a call ends here, it is not another runner.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import time

from dray.functions.failures import pack_failure, tell_failure
from dray.functions.values import Packed, Unpicklable, pack, unpack, unpack_call
from dray.runner.job import Jobs, Refusal
from dray.runner.line import Line
from dray.runner.outputs import Outputs
from dray.runner.upkeep import Upkeep
from dray.wire.local.blob_folder import write_parts
from dray.wire.local.dumping import close_to_others
from dray.wire.local.runner_frames import (
    ANSWER,
    ASK,
    BIND,
    BLOB,
    ENVIRONMENT,
    RAISED,
    SUCCEEDED,
    UNPICKLABLE,
    json_frame,
    read_json,
)
from dray.wire.local.runner_now import Now

TYPE_CHECKING = False  # as in `dray/__init__.py`
if TYPE_CHECKING:
    from typing import Any

SHORT_NS = 1_000_000
HELD = 8
IDLE_S = 1.0


class Program:
    """One runner."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._folder, self._blobs = given["folder"], given["blobs"]
        self._outputs = Outputs(f"{self._folder}/live", f"{self._folder}/ended")
        self._now = Now(f"{self._folder}/now")
        self._jobs = Jobs(self._fetch_blob, self._load_ref)
        self._line = Line(given)
        self._upkeep = Upkeep()
        self._in_call = self._forked = False
        self._asked = self._saved = 0
        self._answers: dict[int, tuple[dict[str, Any], bytes]] = {}

    def prepare(self) -> None:
        """Settle what must be before the first call."""
        signal.signal(signal.SIGINT, self._interrupted)
        os.register_at_fork(after_in_child=self._leave_parent)
        self._line.watch()
        # Almost every function comes as its pickle: loaded now, while nobody waits.
        import cloudpickle  # noqa: F401 - for its place in sys.modules

    def _interrupted(self, number: int, stack: object) -> None:
        """Ctrl-C reaches the function, never the code around it, which would be left half done."""
        if self._in_call:
            raise KeyboardInterrupt

    def _leave_parent(self) -> None:
        self._forked = True
        for descriptor in self._line.fds():
            os.close(descriptor)

    def serve(self) -> None:
        """Take calls for as long as the agent lives."""
        queue, line = self._line.queue, self._line
        while True:
            try:
                call = queue.popleft()
            except IndexError:
                line.flush()
                line.running = False
                self._wait()
                continue
            line.running = True
            self._run(*call)

    def _wait(self) -> None:
        others = self._line.read(IDLE_S if self._upkeep.due else None)
        if others is None:
            if (defaults := sys.modules.get("dray.client.faces.default_hub")) is not None:
                # Calls have called others, and are over: what they opened for that must not seem to go on.
                defaults.settle()
            report = self._upkeep.look(idle=True)
            if report is not None:
                self._line.write(report)
            return
        self._take(others)

    def _take(self, others: list[tuple[int, bytes]]) -> None:
        for kind, body in others:
            if kind == BIND:
                document, envelope = read_json(body)
                self._line.flush()
                self._jobs.bind(document, envelope)
                self._now.bind(document["number"], document["careful"])
            elif kind == ANSWER:
                document, data = read_json(body)
                self._answers[document["id"]] = (document, data)

    # --- one call -----------------------------------------------------------------------------------------------------

    def _run(self, index: int, no: int, is_blob: bool, data: bytes) -> None:
        jobs = self._jobs
        self._now.begin(index, no)
        began = time.perf_counter_ns()
        state, value, error = self._call(index, is_blob, data)
        wall_ns = time.perf_counter_ns() - began
        if self._forked:
            os._exit(0)
        flags = self._outputs.collect(jobs.lane, index)
        if value is not None and not value.inline:
            flags |= BLOB
        body = b"" if value is None else self._save(value) if flags & BLOB else value.join()
        line = self._line
        line.held.append((index, no, state, flags, wall_ns // 1000, body, error.encode()))
        self._now.end()
        self._upkeep.due = True
        if wall_ns >= SHORT_NS or len(line.held) >= HELD or self._now.keeps:
            line.flush()
            report = self._upkeep.look(idle=False)
            if report is not None:
                line.write(report)

    def _call(self, index: int, is_blob: bool, data: bytes) -> tuple[int, Packed | None, str]:
        """State, value and words of a call. Whatever the user's code raises ends here."""
        jobs = self._jobs
        result: Any = None
        try:
            function = jobs.function or jobs.open()
            given = self._fetch_named(data) if is_blob else data
            args, kwargs = unpack_call(given, self._load_ref)
            os.environ["DRAY_TASK_ID"] = f"{jobs.prefix}{index}" if jobs.prefix else jobs.job
            if (sessions := sys.modules.get("dray.client.futures.task_session")) is not None:
                sessions.renew()
            self._in_call = True
            result = function(*args, **kwargs)
            self._in_call = False
            packed = pack(result)
            if packed.refs:
                raise Unpicklable(
                    f"refers to the call {packed.refs[0]}: return what that gave, by its result()"
                )
            return SUCCEEDED, packed, ""
        except Refusal as fault:
            return ENVIRONMENT, None, str(fault)
        except ModuleNotFoundError as fault:
            if not self._in_call:
                return ENVIRONMENT, None, f"{fault}: the function or its arguments need it, and {_place()}"
            return self._tell_raised(fault)
        except Unpicklable as fault:
            if self._in_call:
                return self._tell_raised(fault)
            kind = type(result).__name__
            return UNPICKLABLE, None, f"the function returned a {kind} that {fault.message}"
        except BaseException as fault:  # noqa: BLE001 - sys.exit and Ctrl-C in a function are its own ends too
            return self._tell_raised(fault)
        finally:
            self._in_call = False

    def _tell_raised(self, fault: BaseException) -> tuple[int, Packed | None, str]:
        """An exception with its traceback, less the frames of this module."""
        self._in_call = False
        trace = fault.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        try:
            words = f"{type(fault).__name__}: {fault}"[:500]
        except Exception:  # noqa: BLE001 - the user's own __str__
            words = type(fault).__name__
        try:
            told = tell_failure(fault.with_traceback(trace))
            self._outputs.print_failure(told[1])
            return RAISED, pack_failure(fault, told), words
        except BaseException as second:  # noqa: BLE001 - no memory, or no stack, left to tell it: the words must do
            return RAISED, None, f"{words} (and it could not be packed: {type(second).__name__})"

    # --- values -------------------------------------------------------------------------------------------------------

    def _save(self, value: Packed) -> bytes:
        """Write a large value to a file; what it is called, its size, and which file, by which the agent finds it."""
        self._saved += 1
        write_parts(f"{self._folder}/values/{self._saved}", value.parts)
        return f"{value.digest()} {value.size} {self._saved}".encode()

    def _fetch_named(self, name: bytes) -> memoryview:
        digest, size = name.decode().split()
        return self._fetch_blob(digest, int(size))

    def _fetch_blob(self, digest: str, size: int) -> memoryview:
        """A blob from the worker's cache, which the agent fills."""
        for folder in self._blobs:
            try:
                return _map(f"{folder}/{digest[:2]}/{digest}")
            except OSError:
                continue
        return self._ask({"blob": [digest, size]})

    def _load_ref(self, task_id: str) -> Any:
        """The value of another task."""
        return unpack(self._ask({"value": task_id}), self._load_ref)

    def _ask(self, question: dict[str, Any]) -> memoryview:
        """Have the agent fetch something; calls that arrive meanwhile wait in the queue."""
        self._asked += 1
        self._line.write(json_frame(ASK, {"id": self._asked, **question}))
        while self._asked not in self._answers:
            self._take(self._line.read(None) or [])
        document, data = self._answers.pop(self._asked)
        if "error" in document:
            raise Refusal(document["error"])
        return _map(document["path"]) if "path" in document else memoryview(bytearray(data))


def _map(path: str) -> memoryview:
    """A file as memory of its own: arrays in it can be written to, and nobody else sees that."""
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def _place() -> str:
    return f"the worker's environment does not have it ({sys.executable})"


def run() -> None:
    """Do what DRAY_RUNNER says."""
    close_to_others()
    given = json.loads(os.environ.pop("DRAY_RUNNER"))
    program = Program(given)
    program.prepare()
    program.serve()
