"""Tasks of several dray users on one worker: each in the account that is named for it, or not at all."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator

import pytest
from tests.agent.calls.call_hub import FOREVER_NS, CallHub, wait_for
from tests.agent.calls.foreign_hub import ForeignHub

from dray.agent.tasks.accounts import Accounts
from dray.errors import InvalidConfig

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run tasks as somebody else")


@pytest.fixture(scope="module")
def hub() -> Iterator[ForeignHub]:
    made = ForeignHub()
    try:
        made.start(DRAY_WORKER_TASK_USER="", DRAY_WORKER_TASK_USERS="u=nobody,v=daemon")
        yield made
    finally:
        made.close()


def run(hub: CallHub, task: str, user: str, *command: str) -> dict[str, object]:
    """A plain task, to its end."""
    spec = {"id": task, "command": list(command), "user_id": user}
    attempt = {"no": 1, "uid": f"8-{task}"}
    hub.send("job_assign", {"spec": spec, "remaining_time": FOREVER_NS, "attempt": attempt})

    def ended() -> list[dict[str, object]]:
        return [body for kind, body in hub.told if kind == "job_result" and body["task_id"] == task]

    return wait_for(ended, f"{task} has ended")[0]


@needs_root
def test_every_user_s_tasks_run_in_the_account_that_is_named_for_them(hub: ForeignHub) -> None:
    registered = hub.registrations[-1]["accounts"]
    assert [(item["user"], item["name"]) for item in registered] == [("u", "nobody"), ("v", "daemon")]
    for user, account in (("u", "nobody"), ("v", "daemon")):
        assert hub.call(os.geteuid, user_id=user)[:2] == ("succeeded", pwd.getpwnam(account).pw_uid)
        assert run(hub, f"as-{user}", user, "id", "-un")["state"] == "succeeded"
    wait_for(lambda: hub.output.get("as-u stdout") == b"nobody\n", "it ran as that user")
    wait_for(lambda: hub.output.get("as-v stdout") == b"daemon\n", "it ran as that user")


@needs_root
def test_who_has_no_account_is_told_so(hub: ForeignHub) -> None:
    state, _, (exit_class, error) = hub.call(os.geteuid, user_id="eve")
    result = run(hub, "as-eve", "eve", "id")
    assert (state, exit_class) == ("failed", "no_account")
    assert (result["state"], result["exit_class"]) == ("failed", "no_account")
    for words in (error, str(result["error"])):
        assert "no account for tasks of user 'eve'" in words
        assert "task_users" in words


@needs_root
def test_one_account_s_processes_reach_nothing_of_another_s(hub: ForeignHub) -> None:
    def look(folder: str) -> list[str]:
        import os
        import socket

        opened = []
        for name in os.environ["DRAY_SESSION"], f"{folder}/{65534}.sock", f"{folder}/runners-{65534}.sock":
            line = socket.socket(socket.AF_UNIX)
            try:
                line.connect(name)
                opened.append(os.path.basename(name))
            except OSError:
                continue
        for parent in (folder, f"{folder}/runners", f"{folder}/blobs"):
            try:
                opened += os.listdir(parent)
            except OSError:
                continue
        return opened

    hub.call(os.geteuid, user_id="u")
    (uid,) = [pwd.getpwnam("daemon").pw_uid]
    assert hub.call(look, str(hub.shared), user_id="v")[:2] == ("succeeded", [f"{uid}.sock"])


@needs_root
def test_a_task_cannot_look_into_a_runner_of_its_own_account(hub: ForeignHub) -> None:
    def wait(folder: str) -> None:
        import os
        import time

        os.write(1, b"%d\n" % os.getpid())
        while not os.path.exists(f"{folder}/done"):
            time.sleep(0.02)

    around = {"user_id": "u", "env": {"VIRTUAL_ENV": str(hub.venv)}}
    hub.assign("7-1", "watched", wait, [(str(hub.folder),)], spec=around)
    pid = int(wait_for(lambda: hub.output.get("watched/0 stdout", b"").strip(), "it runs"))
    looks = {name: run(hub, f"look-{name}", "u", "cat", f"/proc/{pid}/{name}") for name in ("environ", "mem")}
    (hub.folder / "done").touch()
    assert hub.end("watched")[0] == "succeeded"
    assert run(hub, "look-stat", "u", "cat", "/proc/self/environ")["state"] == "succeeded"
    assert {name: result["state"] for name, result in looks.items()} == {"environ": "failed", "mem": "failed"}


def test_an_account_that_nobody_has_is_found_at_the_start() -> None:
    with pytest.raises(InvalidConfig, match="no such user"):
        Accounts({"*": "nobody-is-called-so"})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may be anybody")
def test_only_root_runs_tasks_as_others() -> None:
    with pytest.raises(InvalidConfig, match="only one that root starts"):
        Accounts({"*": "root"})
