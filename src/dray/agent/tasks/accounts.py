"""In whose account tasks run: the agent's own, or others' where the agent is root.

Looked up once, at the start: a name that is nobody's must not be found out by the first task. Surprising rule: who is
the agent itself counts as its own, by whichever name, and nothing has to be kept from it.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from typing import Any, NamedTuple

from dray.agent.supervisor.records.owned_files import ANYBODY
from dray.errors import InvalidConfig


class Account(NamedTuple):
    """Whom a task runs as: `name` as the supervisor is asked for it, empty for the agent's own; `uid` of another."""

    name: str = ""
    uid: int = ANYBODY
    gid: int = ANYBODY
    home: str = ""
    shell: str = ""

    @property
    def is_foreign(self) -> bool:
        """Whether this is somebody else than the agent."""
        return self.uid != ANYBODY

    def work_folder(self, own: str) -> str:
        """Where a task begins that names no folder; `own` is where those of the agent's own account do."""
        if not self.is_foreign:
            return own
        return self.home if os.path.isdir(self.home) else "/"

    def variables(self) -> dict[str, str]:
        """What its programs expect to find about themselves in their environment."""
        if not self.is_foreign:
            return {}
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


OWN = Account()
EVERYBODY = "*"


def find_account(name: str) -> Account:
    """The account of that name; raises InvalidConfig where there is none, or the agent may not use it."""
    if not name:
        return OWN
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise InvalidConfig(
            f"tasks are to run as {name!r}, and this machine has no such user: make one, or name another"
        ) from None
    if found.pw_uid == os.geteuid():
        return Account(name)
    if os.geteuid() != 0:
        raise InvalidConfig(
            f"tasks are to run as {name!r}, and this worker runs as uid {os.geteuid()}: only one that root starts "
            "can run them as somebody else"
        )
    return Account(name, found.pw_uid, found.pw_gid, found.pw_dir, found.pw_shell)


class Accounts:
    """Which dray user's tasks run in which account, as Machine has it by names (`account_of`)."""

    def __init__(self, task_users: Mapping[str, str]) -> None:
        self._users = {user: find_account(name) for user, name in (task_users or {EVERYBODY: ""}).items()}
        self.all = tuple(dict.fromkeys(self._users.values()))

    def of(self, user: str) -> Account | None:
        """The account for a user's tasks; None where this machine has none for them."""
        return self._users.get(user, self._users.get(EVERYBODY))

    def named(self, name: str) -> Account:
        """One of these accounts, by its name."""
        return next(account for account in self.all if account.name == name)

    @property
    def are_foreign(self) -> bool:
        """Whether any of them is somebody else's than the agent's."""
        return any(account.is_foreign for account in self.all)

    def describe(self) -> list[dict[str, Any]]:
        """As the hub is told: whose tasks run as whom."""
        own = os.geteuid()
        return [
            {
                "user": user,
                "name": account.name or _name_of(own),
                "uid": account.uid if account.is_foreign else own,
            }
            for user, account in self._users.items()
        ]


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
