"""What can happen to services and their replicas: facts, stored by the rules of those in `events`."""

from __future__ import annotations

import msgspec


class ServiceScaled(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """A service is to have so many replicas from now on."""

    job_id: str
    replicas: int
    user: str = ""


class ReplicaRested(msgspec.Struct, frozen=True, array_like=True, tag=34):
    """A replica that had ended has paused for long enough."""

    job_id: str
    index: int


class HealthChanged(msgspec.Struct, frozen=True, array_like=True, tag=35):
    """What is said of a replica that runs differs from what was said before. `live` is false where it is to be started
    again, however long one might wait.
    """

    worker: str
    job_id: str
    index: int
    uid: str
    healthy: bool
    live: bool = True
    note: str = ""


class UseChanged(msgspec.Struct, frozen=True, array_like=True, tag=44):
    """All services that jobs of a user use are ready now, or one of them is no longer: `note` says which, and why."""

    user: str
    uses: tuple[str, ...]
    served: bool
    note: str = ""
