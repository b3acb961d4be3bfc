"""A process out of the reach of others of the same user: no debugger, no look at its memory or environment, no core.

For runners, which hold keys and their job's token beside code of others in the same account. Not for agent and hub:
whoever runs in their account can read the same in their files. Linux only. Surprising rule: it holds for children too
until they run another program, so that only root finds those by what is in their environment; a runner's arguments
name its folder.
"""

from __future__ import annotations

import sys

PR_SET_DUMPABLE = 4


def close_to_others() -> None:
    """Make this process so; where the system cannot, it goes on as it is."""
    if sys.platform != "linux":
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return
