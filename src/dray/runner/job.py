"""The job whose calls a runner takes: its function, and what it finds around it.

The function is opened with the first call and kept by its digest for jobs to come. What stands against running it here
(another Python, other packages, a folder that is missing) is found before any of it is opened, and told by every call.
"""

from __future__ import annotations

import os

from dray.errors import DrayError
from dray.functions.envelope import find_mismatch, open_function, read_envelope
from dray.functions.modules import ModuleWatch, add_paths

TYPE_CHECKING = False  # as in `dray/__init__.py`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

KEPT_FUNCTIONS = 64
# By which the supervisor knows the processes that it started, and what they leave behind.
MARK = "DRAY_START"


class Refusal(Exception):
    """Why the calls of this job cannot run here."""


class Jobs:
    """The present job, and functions of earlier ones."""

    def __init__(self, fetch_blob: Callable[[str, int], memoryview], load_ref: Callable[[str], Any]) -> None:
        self._fetch_blob, self._load_ref = fetch_blob, load_ref
        self._envelopes: dict[str, bytes] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._watch = ModuleWatch()
        self.lane = self.job = ""
        self.prefix = ""
        self._digest = self._refusal = ""
        self.function: Callable[..., Any] | None = None

    def bind(self, document: dict[str, Any], envelope: bytes) -> None:
        """Take a lane's job up. Nothing is opened and nothing raised here: the calls will tell."""
        digest = document["function"]
        if envelope:
            self._envelopes[digest] = envelope
            if len(self._envelopes) > KEPT_FUNCTIONS:
                oldest = next(iter(self._envelopes))
                del self._envelopes[oldest]
                self._functions.pop(oldest, None)
        same = (document["job"], digest) == (self.job, self._digest)
        self.lane, self.job, self._digest = document["lane"], document["job"], digest
        self.prefix = f"{self.job}/" if document["numbered"] else ""
        if same:
            os.environ.update(document["own"])
            return
        # Kept, or what a call leaves behind could not be known for this runner's.
        kept = {name: os.environ[name] for name in (MARK,) if name in os.environ}
        os.environ.clear()
        os.environ.update(document["env"] | document["own"] | kept)
        self._refusal = self._enter(document["workdir"])
        if self._watch.drop_stale():
            self._functions.clear()
        self.function = self._functions.get(digest)

    def _enter(self, workdir: str) -> str:
        try:
            os.chdir(workdir)
        except OSError as fault:
            return f"working directory {workdir!r} cannot be used on this worker: {fault.strerror}"
        return ""

    def open(self) -> Callable[..., Any]:
        """The function, opened now where it was not; raises Refusal, or whatever opening it raises."""
        if self._refusal:
            raise Refusal(self._refusal)
        data = self._envelopes.get(self._digest)
        if data is None:
            raise Refusal("the function of this job did not reach the process that is to run it")
        try:
            envelope = read_envelope(data)
            mismatch = find_mismatch(envelope)
        except DrayError as fault:
            raise Refusal(fault.message) from None
        if mismatch:
            self._refusal = mismatch
            raise Refusal(mismatch)
        add_paths(envelope.paths)
        body = envelope.body if envelope.inline else self._fetch_blob(envelope.digest, envelope.size)
        self.function = self._functions[self._digest] = open_function(body, self._load_ref)
        return self.function
