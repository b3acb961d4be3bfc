"""What one caller may see of what others do, by the policy's `visibility`."""

from __future__ import annotations

from typing import NamedTuple

from dray.core.lifecycle.state.state import State
from dray.hub.access.caller import Caller

OTHERS = "others"


class Sight(NamedTuple):
    """One caller under one policy. Jobs of others are never shown, whatever the policy says: only their users are."""

    caller: Caller
    visibility: str

    def sees(self, user: str) -> bool:
        """Whether jobs of a user may be shown."""
        return self.caller.sees(user)

    def name(self, user: str) -> str:
        """A user by name, as one of the others, or not at all."""
        if self.visibility == "names" or self.caller.sees(user):
            return user
        return OTHERS if self.visibility == "sums" else ""


def sight_of(state: State, caller: Caller) -> Sight:
    """What a caller may see now."""
    return Sight(caller, state.policy.visibility)
