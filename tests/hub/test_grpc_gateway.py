"""gRPC at a hub that stands by: passed on to the leader as its own calls, also once that is another one."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from tests.contracts.grpc_peer import Peer
from tests.hub.several_hubs import Hubs, hubs, stand_by

__all__ = ["hubs"]


def test_a_gateway_answers_as_the_leader_does_and_goes_on_with_the_next(hubs: Hubs) -> None:
    leader, gateway = hubs(grpc_port=0), stand_by(hubs, grpc_port=0)
    peer, direct = Peer(gateway.home, leader.token), Peer(leader.home, leader.token)
    spec: dict[str, Any] = {"id": "a", "command": ["true"], "hold": True}
    assert peer.ask("SubmitJob", job=spec).created
    assert not peer.ask("SubmitJob", job=spec).created
    assert peer.ask("GetJob", job="a") == direct.ask("GetJob", job="a")
    code, _, details = peer.refused("GetJob", job="none")
    assert (code, details["ErrorInfo"]["reason"]) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    stranger = Peer(gateway.home, "dray_00000000_nope")
    assert stranger.refused("GetHub")[0] is grpc.StatusCode.UNAUTHENTICATED
    # A stream, and an executor, whose session is the leader's.
    watch = peer.ask("WatchJobs", jobs=["a"])
    next(watch)
    peer.ask("ReleaseJob", job="a")
    session = peer.ask("RegisterWorker", worker="ex", slots=1, capabilities={"cpu_count": 2}).session
    said = {"worker": "ex", "session": session}
    (lease,) = peer.ask("DequeueTasks", max_tasks=1, wait_s=20, **said).leases
    result = {"lease": lease.lease, "task": lease.task, "state": "JOB_STATE_SUCCEEDED", "exit_code": 0}
    assert dict(peer.ask("CompleteTasks", results=[result], **said).verdicts) == {lease.lease: "recorded"}
    assert [row.state for message in watch for row in message.jobs][-1] == 3
    leader.kill()
    gateway.wait()
    assert peer.ask("GetJob", job="a").job.state == 3
    for one in (peer, direct, stranger):
        one.close()
