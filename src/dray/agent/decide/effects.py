"""What the agent's machines ask their shell to do: values, carried out in the order given."""

from __future__ import annotations

from typing import Any, NamedTuple

from dray.core.model.specs.spec import JobSpec
from dray.wire.messages.hub import GangPlace

# Packed arguments, or the digest and the size of the blob that holds them.
Argument = bytes | tuple[str, int]


class Launch(NamedTuple):
    """Ask the shell to build the environment of a task and hand it to the supervisor; a member of a gang to be held.

    From `start_by_ms` on, by the clock that both share, the supervisor must not start it any more. `behind`: it takes
    the place of this attempt when that has ended, and is given back where that is not within `behind_s`. `heard_ms`:
    when the last was sent that the hub has answered: from then on the hub counts, and so the lease runs from then on.
    `token`: by which it reaches the services that it uses.
    """

    uid: str
    spec: JobSpec
    limit_s: float | None
    grace_s: float
    devices: tuple[int, ...]
    attempt_no: int
    lease_s: float | None = None
    gang: GangPlace | None = None
    start_by_ms: int = 0
    behind: str = ""
    behind_s: float = 0
    heard_ms: int = 0
    token: str = ""


class Probe(NamedTuple):
    """Try whether anything can be started: files in this worker's folders, and a program that does nothing."""

    uid: str
    start_by_ms: int


class Supervise(NamedTuple):
    """A request to the supervisor, ready to be sent."""

    request: dict[str, Any]


class Tell(NamedTuple):
    """A message to the hub. `acked`: the hub will answer it."""

    type: str
    payload: dict[str, Any]
    acked: bool = True


class Ship(NamedTuple):
    """Send what an attempt has printed: all of it when it has ended."""

    uid: str
    task_id: str
    ended: bool


class Warn(NamedTuple):
    """Tell a task through its session that it is to end."""

    uid: str
    stop: dict[str, Any]


class Grant(NamedTuple):
    """Tell a task through its session that it has its slot back."""

    uid: str


class Refuse(NamedTuple):
    """Leave this hub: its epoch is behind what this worker has seen."""

    reason: str


class StartRunner(NamedTuple):
    """Start a warm interpreter under the supervisor, in an account; it connects back when it is ready."""

    uid: str
    venv: str
    memory_bytes: int
    account: str = ""


class BindRunner(NamedTuple):
    """Tell a runner which lane, and so which job, its next calls belong to."""

    uid: str
    lane: str
    job: str
    spec: JobSpec
    devices: tuple[int, ...]
    token: str


class FeedRunner(NamedTuple):
    """Give a runner calls of the lane it is bound to, in columns."""

    uid: str
    indices: list[int]
    no: list[int]
    args: list[Argument]


class Recall(NamedTuple):
    """Ask a runner for the calls that it has not begun, and for results that it still holds."""

    uid: str


class Nudge(NamedTuple):
    """Ask a runner for results that it still holds."""

    uid: str


class LetGo(NamedTuple):
    """A runner's lane has nothing for it any more: nothing of that lane is lost if it dies now."""

    uid: str


class Lay(NamedTuple):
    """Lay the tree out that an attempt runs in, and build its environment, for a user's account."""

    uid: str
    snapshot_id: str
    sha: str
    user: str
    environment: str = ""


class Prefetch(NamedTuple):
    """A call will need this blob: fetch it while it waits."""

    digest: str
    size: int


Effect = (
    Launch
    | Lay
    | Probe
    | Supervise
    | Tell
    | Ship
    | Warn
    | Grant
    | Refuse
    | StartRunner
    | BindRunner
    | FeedRunner
    | Recall
    | Nudge
    | LetGo
    | Prefetch
)
