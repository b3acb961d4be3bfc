"""One exception tree; every class carries a stable `code` that the API, the CLI and foreign clients may rely on.

An error tells what was asked, what is there, and what to do. `problems` lists every fault of one input at once, each
with the place it was found, so that a user fixes a file in one go instead of one error at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Problem(NamedTuple):
    """One fault of an input: `where` is a path into it (`array.limit`), `what` says what is wrong with it."""

    where: str
    what: str


class DrayError(Exception):
    """Root of everything dray raises on purpose."""

    code = "error"

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)


class InvalidSpec(DrayError):
    """A job that cannot be accepted as written."""

    code = "invalid_spec"


class InvalidInput(DrayError):
    """A request, message or flag that cannot be read."""

    code = "invalid_input"


class InvalidSnapshot(InvalidInput):
    """A tree of files that cannot travel as it is."""

    code = "invalid_snapshot"


class InvalidConfig(DrayError):
    """A configuration file, variable or flag with an unknown key or an impossible value."""

    code = "invalid_config"


class InvalidPolicy(InvalidConfig):
    """A policy with unknown names, impossible values, or entries that contradict each other."""

    code = "invalid_policy"


class Unauthenticated(DrayError):
    """No token, or one the hub does not know."""

    code = "unauthenticated"


class Forbidden(DrayError):
    """A known token without the scope that the request needs."""

    code = "forbidden"


class NotFound(DrayError):
    """Nothing of that name, or it belongs to somebody else."""

    code = "not_found"


class Conflict(DrayError):
    """The same id or key with another content, or a request that the present state rules out."""

    code = "conflict"


class KeyReused(Conflict):
    """An id or an idempotency key that stands for other content already: choose another one.

    Over HTTP its code is that of every conflict, as it has always been; gRPC has a status of its own for it.
    """

    reason = "key_reused"


class Stale(Conflict):
    """What was to be changed has been changed meanwhile: look at it again."""

    code = "stale"


class SessionEnded(Conflict):
    """A session of a worker that is over: it has to register again."""

    code = "session_ended"


class SharedAccount(Conflict):
    """Tasks of several users would run in one account, and nobody has said yes to that."""

    code = "shared_account"


class Closed(Conflict):
    """Further calls for a job that takes none any more."""

    code = "closed"


class MissingBlobs(Conflict):
    """Values that the hub was pointed to and does not have; each problem names one of them by its digest."""

    code = "missing_blobs"


class TooLarge(DrayError):
    """An input beyond a configured limit."""

    code = "too_large"


class TooManyRequests(DrayError):
    """The caller must slow down; `retry_after_s` says by how much."""

    code = "too_many_requests"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(TooManyRequests):
    """This caller has more under way, or asks for more, than one caller may; the others go on."""

    code = "overloaded"


class NotReady(DrayError):
    """The hub is starting, stopping or reloading."""

    code = "not_ready"


class NotLeader(NotReady):
    """This hub only stands by; `leader` is the address of the one that leads, as it told it, or empty."""

    code = "not_leader"

    def __init__(self, message: str, leader: str = "") -> None:
        super().__init__(message)
        self.leader = leader


class OutcomeUnknown(DrayError):
    """The hub that leads went away with a request that is not safe to repeat: it may have been done, or not."""

    code = "outcome_unknown"


class NoSpace(DrayError):
    """The disk under the hub or the worker is full."""

    code = "no_space"


class StoreError(DrayError):
    """The store cannot be opened, is damaged, comes from a newer version, or refused a write."""

    code = "store_error"


class StoreAway(StoreError):
    """The server that keeps the store does not answer: it is asked again."""

    code = "store_away"


class EpochLost(StoreError):
    """Another hub has taken the store over: this one must stop at once."""

    code = "epoch_lost"


class StoreGone(StoreError):
    """The files of the store were removed, replaced or overwritten under the hub: what it commits would be lost."""

    code = "store_gone"


class HubUnavailable(DrayError):
    """No hub answers at that address."""

    code = "hub_unavailable"


class Unreachable(DrayError):
    """A task or a service that cannot be reached through the hub now."""

    code = "unreachable"


class InternalFault(DrayError):
    """A request that the hub itself failed on; its report is in the hub's home."""

    code = "internal"


class BrokenInvariant(DrayError):
    """The state contradicts itself. Never caught below the engine: going on would spread the damage."""

    code = "broken_invariant"
