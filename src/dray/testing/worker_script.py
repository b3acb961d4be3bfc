"""What a mock worker says and hears, without a socket: the same script serves the blocking and the async face.

A worker here is base-only by default (no `features`, JSON, no attempt named), which is what the protocol promises to
serve; `features` and `msgpack` make it a modern one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from websockets import Subprotocol

from dray.testing.builders import make_capability, make_slots
from dray.wire.messages.codec import Codec, message
from dray.wire.messages.worker import SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK

# How long a hub may take to answer: only what fails waits for so long, and a busy machine needs some of it.
PATIENCE_S = 30.0
OPEN_S = 10.0
MODERN = ("list", "job_started", "job_log", "resend")


class Message(NamedTuple):
    """One message of the hub."""

    type: str
    payload: dict[str, Any]
    error: str = ""


class Assignment(NamedTuple):
    """A task that the hub gave out."""

    task_id: str
    attempt: str
    spec: dict[str, Any]
    devices: list[int]
    remaining_time: int


class WorkerScript:
    """Builds what one worker sends and reads what it gets."""

    def __init__(
        self,
        worker_id: str,
        capability: Mapping[str, Any] | None = None,
        slots: Mapping[str, int] | None = None,
        features: Sequence[str] | None = None,
        msgpack: bool = False,
    ) -> None:
        self.worker_id = worker_id
        self.capability = dict(capability or make_capability())
        self.slots = dict(slots or make_slots())
        self.features = list(features) if features is not None else None
        self.msgpack = msgpack
        self.subprotocol = SUBPROTOCOL_MSGPACK if msgpack else SUBPROTOCOL_JSON
        self._codec = Codec({}, msgpack)
        self._payload = Codec({"any": dict}, msgpack)
        self.held: list[Message] = []

    # --- out ----------------------------------------------------------------------------------------------------------

    def encode(self, kind: str, payload: Mapping[str, Any]) -> bytes | str:
        """One message as a frame."""
        frame = self._codec.encode([message(kind, dict(payload))])
        return frame if self.msgpack else frame.decode()

    def register(self, **fields: Any) -> dict[str, Any]:
        named = {"features": self.features} if self.features is not None else {}
        base = {
            "id": self.worker_id,
            "capabilities": self.capability,
            "active_tasks": [],
            "slots": self.slots,
        }
        return {**base, **named, **fields}

    def ready(self, credits: int, reason: str) -> dict[str, Any]:  # noqa: A002 - the word of the protocol
        ask = {"worker_id": self.worker_id, "slots": self.slots, "reason": reason}
        return ask if credits == 1 else {**ask, "credits": credits}

    def heartbeat(self, **fields: Any) -> dict[str, Any]:
        return {"worker_id": self.worker_id, "slots": self.slots, "capability": self.capability, **fields}

    def about(self, task: Assignment | str, **fields: Any) -> dict[str, Any]:
        """A message about one task; a base-only worker names no attempt."""
        if isinstance(task, str):
            return {"task_id": task, **fields}
        named = {"attempt": task.attempt} if self.features is not None and task.attempt else {}
        return {"task_id": task.task_id, **named, **fields}

    def result(
        self, task: Assignment | str, state: str, exit_code: int | None, value: bytes, **fields: Any
    ) -> dict[str, Any]:
        code = exit_code if exit_code is not None else 0 if state == "succeeded" else 1
        given = {"value": value} if value else {}
        return self.about(task, state=state, exit_code=code, **given, **fields)

    # --- in -----------------------------------------------------------------------------------------------------------

    def decode(self, frame: bytes | str) -> list[Message]:
        """All messages of one frame."""
        messages = []
        for envelope in self._codec.split(frame):
            kind, envelope.type = envelope.type, "any"
            messages.append(Message(kind, self._payload.open(envelope), envelope.error))
        return messages

    def find(self, kind: str | None) -> Message | None:
        """Take the first message of a kind out of those that were heard and not yet looked at."""
        for place, heard in enumerate(self.held):
            if kind is None or heard.type == kind:
                return self.held.pop(place)
        return None

    def missed(self, kind: str | None, timeout_s: float) -> str:
        """Say what did not come, and what did."""
        came = ", ".join(heard.type for heard in self.held) or "nothing"
        return f"worker {self.worker_id} heard no {kind or 'message'} within {timeout_s:g} s; it heard {came}"


def read_assignment(heard: Message) -> Assignment:
    """Read a `job_assign`."""
    payload = heard.payload
    return Assignment(
        task_id=payload["spec"]["id"],
        attempt=(payload.get("attempt") or {}).get("uid", ""),
        spec=payload["spec"],
        devices=list(payload.get("devices") or ()),
        remaining_time=payload["remaining_time"],
    )


class ScriptedWorker:
    """What both faces are made of: where the hub is, and what is said to it."""

    def __init__(
        self,
        url: str,
        token: str,
        worker_id: str = "mock",
        capability: Mapping[str, Any] | None = None,
        slots: Mapping[str, int] | None = None,
        features: Sequence[str] | None = None,
        msgpack: bool = False,
    ) -> None:
        self.script = WorkerScript(worker_id, capability, slots, features, msgpack)
        self._address = "ws" + url.removeprefix("http") + "/ws"
        self._options: dict[str, Any] = {
            "additional_headers": {"Authorization": f"Bearer {token}"},
            "subprotocols": [Subprotocol(self.script.subprotocol)],
            "compression": None,
            "open_timeout": OPEN_S,
            "max_size": None,
            "proxy": None,
        }
