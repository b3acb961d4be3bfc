"""Whose tasks run in whose account, as the workers say, and what that means on a hub with several users.

Tasks of one account can read and stop each other's, and those in the hub's own account its home, with the admin token
in it. So a second user is let in only by a yes to the first, and not at all by a yes to the second: that is for whoever
configures the hub. With one user nothing of this matters and nothing is asked. Surprising rule: a worker that says
nothing is taken to run all of its tasks in one account.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dray.errors import Conflict, SharedAccount
from dray.wire.local.blob_folder import name_machine
from dray.wire.messages.worker import TaskAccount

EVERYBODY = "*"
MOST_LINES = 20
Users = Mapping[str, bool]  # those who may have work run, and whether they are admins


class Said(NamedTuple):
    """What one worker says; `accounts` is empty where it says nothing."""

    worker: str
    is_here: bool
    accounts: Mapping[str, TaskAccount]
    key: tuple[tuple[str, str, int], ...] = ()

    def account_of(self, user: str) -> TaskAccount | None:
        if not self.accounts:
            return TaskAccount(EVERYBODY, "", -1)
        return self.accounts.get(user, self.accounts.get(EVERYBODY))


class TaskAccounts:
    """What the workers of this moment say. `own_allowed`: tasks of several users may run in the hub's own account."""

    def __init__(self, own_allowed: bool = False) -> None:
        self.own_allowed = own_allowed
        self._uid = os.geteuid()
        self._said: dict[int, Said] = {}

    def read(self, worker: str, boot_id: str, accounts: Sequence[TaskAccount]) -> Said:
        """What a worker says of itself when it registers."""
        is_here = bool(boot_id) and boot_id == name_machine()
        told = sorted((item.user, item.name, item.uid) for item in accounts)
        return Said(worker, is_here, {item.user: item for item in accounts}, tuple(told))

    def note(self, session: int, said: Said) -> None:
        self._said[session] = said

    def forget(self, session: int) -> None:
        self._said.pop(session, None)

    def refusal(self, said: Said, users: Users) -> str:
        """Why a worker is not taken; empty where it is."""
        exposed = None if self.own_allowed else self._find_exposed(said, users)
        return _tell_exposed(said, *exposed) if exposed is not None else ""

    def check(self, users: Users, agreed: bool) -> None:
        """Refuse to let these users be those of this hub, unless somebody has said yes to what that means."""
        for said in self._said.values():
            if refused := self.refusal(said, users):
                raise Conflict(f"no token was made: {refused}")
        if not agreed and (shared := self.tell_shared(users)):
            raise SharedAccount(
                f"no token was made, since tasks of several users would share an account: {'; '.join(shared)}. Give "
                "each user an account (task_users of [worker]), or say yes to it: `--shared-account`, in a request "
                "`shared_account: true`"
            )

    def tell_shared(self, users: Users) -> list[str]:
        """Where tasks of several of these users share an account, and what that means, a line for each worker."""
        # Most workers say the same: that is thought through once.
        known: dict[Any, list[str]] = {}
        lines = []
        for said in self._said.values():
            if said.key not in known:
                known[said.key] = _find_shared(said, users)
            lines += [f"worker {said.worker} {words}" for words in known[said.key]]
            if len(lines) > MOST_LINES:
                return [*lines[:MOST_LINES], "and others"]
        return lines

    def tell_worker(self, said: Said, users: Users) -> list[str]:
        """The same of one worker."""
        return [f"worker {said.worker} {words}" for words in _find_shared(said, users)[:MOST_LINES]]

    def _find_exposed(self, said: Said, users: Users) -> tuple[str, str] | None:
        """A user without rights over this hub whose tasks would have them there, and the account."""
        for user, is_admin in sorted(users.items()) if said.is_here else ():
            account = said.account_of(user)
            if not is_admin and account is not None and account.uid in (0, self._uid):
                return user, account.name
        return None


def _find_shared(said: Said, users: Users) -> list[str]:
    together: dict[int, list[str]] = {}
    for user in sorted(users):
        if (account := said.account_of(user)) is not None:
            together.setdefault(account.uid, []).append(user)
    lines = []
    for uid, sharing in together.items():
        account = said.account_of(sharing[0])
        name = (
            f"as {account.name!r}" if account is not None and uid >= 0 else "in one account or does not say"
        )
        if len(sharing) > 1:
            lines.append(f"runs tasks of {_list(sharing)} {name}: they can read and stop each other's")
    return lines


def _tell_exposed(said: Said, user: str, account: str) -> str:
    return (
        f"worker {said.worker} runs tasks of {user} as {account!r} on the hub's own machine, where they could read its "
        "home with the admin token: let it run them in another account (`--task-user`, needs root), run it on another "
        "machine, or set share_own_account of [hub] if all users may have that"
    )


def _list(users: Sequence[str]) -> str:
    shown = list(users[:3]) + ([f"{len(users) - 3} more"] if len(users) > 3 else [])
    return f"{', '.join(shown[:-1])} and {shown[-1]}"
