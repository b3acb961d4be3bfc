"""Whether the user that tasks run as can reach what function calls need: this interpreter, and the package itself.

Asked once, at the start and as that user: modes of folders, lists of access and mounts together decide, and only the
kernel knows them all.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterable

from dray.agent.runners.home import PROGRAM

_ASK = "import os, sys; sys.exit(0 if os.access(sys.argv[1], os.R_OK) else 3)"
_ASK_S = 20.0


def find_obstacle(task_users: Iterable[str]) -> str:
    """What keeps function calls from running as one of these users, in words; empty where nothing does."""
    if os.geteuid() != 0:
        return ""
    found = map(_find_obstacle, dict.fromkeys(filter(None, task_users)))
    return next(filter(None, found), "")


def _find_obstacle(task_user: str) -> str:
    account = pwd.getpwnam(task_user)
    try:
        asked = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _ASK, PROGRAM],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=os.getgrouplist(task_user, account.pw_gid),
            cwd="/",
            env={},
            capture_output=True,
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        asked = None
    if asked is not None and asked.returncode == 0:
        return ""
    # An interpreter that cannot be run says nothing of the package, but both lie in one place as a rule.
    path = PROGRAM if asked is not None and asked.returncode == 3 else sys.executable
    return (
        f"user {task_user!r}, whom tasks run as, cannot read {path}: "
        "install dray where that user may (not in a home of mode 0700), or name another user"
    )
