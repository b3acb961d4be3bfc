"""Several users on one hub: whose tasks share an account, who must say yes to that, and what no yes can do."""

from __future__ import annotations

import os

import pytest

from dray.errors import Conflict, SharedAccount
from dray.hub.access.task_accounts import Said, TaskAccounts
from dray.wire.local.blob_folder import name_machine
from dray.wire.messages.worker import Offered, Register, TaskAccount

OWN = os.geteuid()
OTHER = OWN + 12345


def register(*accounts: tuple[str, str, int], here: bool = False, name: str = "w1") -> Register:
    boot = name_machine() if here else "another machine"
    said = [TaskAccount(*account) for account in accounts]
    return Register(id=name, capabilities=Offered(), boot_id=boot, accounts=said)


def read(accounts: TaskAccounts, body: Register) -> Said:
    return accounts.read(body.id, body.boot_id or "", body.accounts or ())


def accounts_of(*bodies: Register, own_allowed: bool = False) -> TaskAccounts:
    made = TaskAccounts(own_allowed)
    for number, body in enumerate(bodies):
        made.note(number, read(made, body))
    return made


ONE, TWO = {"ada": True}, {"ada": True, "eve": False}


@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("uid", [OWN, OTHER, 0])
def test_one_user_is_asked_nothing(here: bool, uid: int) -> None:
    accounts = accounts_of(register(("*", "jobs", uid), here=here), register())
    accounts.check(ONE, agreed=False)
    assert accounts.tell_shared(ONE) == []


def test_a_second_user_in_the_same_account_needs_a_yes() -> None:
    accounts = accounts_of(register(("*", "jobs", OTHER)))
    with pytest.raises(SharedAccount, match="w1 runs tasks of ada and eve as 'jobs': they can read and stop"):
        accounts.check(TWO, agreed=False)
    accounts.check(TWO, agreed=True)
    accounts.forget(0)
    accounts.check(TWO, agreed=False)


def test_accounts_of_their_own_need_none() -> None:
    accounts_of(register(("ada", "ada", OTHER), ("*", "jobs", OTHER + 1))).check(TWO, agreed=False)
    accounts_of(register(("ada", "ada", OTHER))).check(TWO, agreed=False)  # eve has no tasks there
    with pytest.raises(SharedAccount):
        accounts_of(register(("ada", "x", OTHER), ("eve", "y", OTHER))).check(TWO, agreed=False)


def test_a_worker_that_says_nothing_counts_as_one_account() -> None:
    with pytest.raises(SharedAccount, match="does not say"):
        accounts_of(register()).check(TWO, agreed=False)


@pytest.mark.parametrize("uid", [OWN, 0])
def test_no_yes_opens_the_hub_s_home(uid: int) -> None:
    body = register(("*", "me", uid), here=True)
    accounts = accounts_of(body)
    with pytest.raises(Conflict, match="read its home with the admin token"):
        accounts.check(TWO, agreed=True)
    assert "share_own_account" in accounts.refusal(read(accounts, body), TWO)
    # Admins can do no more by it than they may anyway; elsewhere there is no such home.
    accounts.check({"ada": True, "bob": True}, agreed=True)
    accounts_of(register(("*", "me", uid))).check(TWO, agreed=True)
    accounts_of(body, own_allowed=True).check(TWO, agreed=True)
    accounts_of(register(("ada", "me", uid), ("*", "jobs", OTHER), here=True)).check(TWO, agreed=False)
