"""Tokens of running work: they speak for their job's user while the job lives, and for nobody else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from tests.hub.calls_desk import client_of, lanes_of, new_job

from dray.core.model.records.records import Job, JobState
from dray.errors import Unauthenticated
from dray.hub.access.task_tokens import TaskTokens, ensure_secret
from dray.hub.access.tokens import write_private
from dray.hub.files.local import LocalFiles
from dray.testing import make_spec, running_hub
from dray.wire.messages import client as wire


def make_job(job_id: str = "j1", seq: int = 7) -> Job:
    return Job(
        id=job_id,
        seq=seq,
        user="ana",
        name="",
        queue="q",
        priority=0,
        tier="t",
        spec=b"",
        numbered=False,
        total=1,
    )


def test_a_token_speaks_for_its_job_while_that_lives() -> None:
    jobs = {"j1": make_job()}
    tokens = TaskTokens(b"s" * 32, jobs.get)
    text = tokens.make(jobs["j1"])
    caller = tokens.authenticate(text)
    assert (caller.user, caller.scopes, caller.token_id) == ("ana", ("submit", "read"), "task:j1")
    assert tokens.fault_of(caller.token_id) == ""
    jobs["j1"].state = JobState.SUCCEEDED
    assert "has ended" in tokens.fault_of(caller.token_id)
    with pytest.raises(Unauthenticated, match="has ended"):
        tokens.authenticate(text)
    jobs["j1"] = make_job(seq=8)
    with pytest.raises(Unauthenticated, match="has ended"):
        tokens.authenticate(text)


@pytest.mark.parametrize("bad", ["", "dray_task_", "dray_task_.", "dray_task_a.b", "dray_task_ä.ö"])
def test_what_was_not_signed_here_is_refused(bad: str) -> None:
    tokens = TaskTokens(b"s" * 32, {"j1": make_job()}.get)
    with pytest.raises(Unauthenticated):
        tokens.authenticate(bad)
    good = tokens.make(make_job())
    for other in (TaskTokens(b"t" * 32, {"j1": make_job()}.get).make(make_job()), good[:-2], good + "A"):
        with pytest.raises(Unauthenticated):
            tokens.authenticate(other)


def test_the_secret_is_private_and_stays(tmp_path: Path) -> None:
    keep = LocalFiles(tmp_path, write_private).keep_secret
    secret = ensure_secret(tmp_path, keep)
    assert ensure_secret(tmp_path, keep) == secret
    assert stat.S_IMODE((tmp_path / "task_secret").stat().st_mode) == 0o600
    (tmp_path / "task_secret").write_bytes(b"cut")
    assert len(ensure_secret(tmp_path, keep)) == 32


async def test_running_work_may_submit_and_read_as_its_user() -> None:
    job = new_job()
    with running_hub() as hub:
        async with client_of(hub, hub.make_token("ana")) as client, lanes_of(hub) as lanes:
            await client.add(job, [b"a", b"b"], close=True)
            await lanes.take(1)
            token = lanes.messages[0]["token"]
            async with client_of(hub, token) as inner:
                child = (await inner.ask("submit", {"specs": [make_spec("true")]})).payload["ids"][0]
                assert (await client.ask("get", {"ids": [child]})).payload["jobs"][0]["user"] == "ana"
                grandchild = new_job()
                await inner.add(grandchild, [b"x"])
                refused = await inner.refused("submit", {"specs": [make_spec("true") | {"user_id": "bob"}]})
                assert refused["code"] == "forbidden"
                await client.ask("cancel", {"id": grandchild})
                await lanes.serve(2)
                assert (await client.recv(kind=wire.ENDED)).payload["job"] == job
                with pytest.raises(Exception, match=f"4401.*job {job}, whose token this is, has ended"):
                    await inner.recv(99)
            with pytest.raises(Exception, match="401"):
                async with client_of(hub, token):
                    pass
