"""An executor: a program that runs the commands of a hub with plain gRPC and the protos, nothing else of
dray. It asks for tasks, keeps its leases alive, stops what it is told to stop, and tells each result until it is
answered; a hub that goes away for a while is waited for.

    python examples/foreign_executor.py 127.0.0.1:7374 TOKEN [NAME] [SLOTS]
"""

import os
import subprocess
import sys
import time
import uuid
from typing import Any

import grpc

from dray.v1 import executors_pb2 as pb
from dray.v1 import resources_pb2 as resources
from dray.v1.scheduler_pb2_grpc import SchedulerStub

STATES = {True: resources.JOB_STATE_SUCCEEDED, False: resources.JOB_STATE_FAILED}


class Executor:
    def __init__(self, address: str, token: str, name: str, slots: int) -> None:
        self.stub = SchedulerStub(grpc.insecure_channel(address))
        self.metadata = (("authorization", f"Bearer {token}"),)
        self.name, self.slots, self.incarnation, self.session = name, slots, uuid.uuid4().hex, ""
        self.running: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        self.ended: dict[str, pb.TaskResult] = {}

    def call(self, method: str, request: Any) -> Any:
        return getattr(self.stub, method)(request, metadata=self.metadata, timeout=30)

    def register(self) -> None:
        held = {lease: task for lease, (task, _) in self.running.items()}
        held |= {lease: result.task for lease, result in self.ended.items()}
        active = [pb.RegisterWorkerRequest.Active(lease=lease, task=task) for lease, task in held.items()]
        offer = pb.RegisterWorkerRequest(
            worker=self.name, incarnation=self.incarnation, slots=self.slots, active=active
        )
        offer.capabilities.cpu_count = os.cpu_count() or 1
        self.session = self.call("RegisterWorker", offer).session

    def said(self, kind: Any, **more: Any) -> Any:
        return kind(worker=self.name, session=self.session, **more)

    def step(self) -> None:
        room = self.slots - len(self.running) - len(self.ended)
        if room:
            wait_s = 0.1 if self.running else 5
            got = self.call("DequeueTasks", self.said(pb.DequeueTasksRequest, max_tasks=room, wait_s=wait_s))
            for lease in got.leases:
                self.running[lease.lease] = (lease.task, subprocess.Popen(list(lease.spec.command)))
        reports = [pb.LeaseReport(lease=lease) for lease in self.running]
        for order in self.call("RenewLeases", self.said(pb.RenewLeasesRequest, leases=reports)).orders:
            if order.lease in self.running:
                self.running[order.lease][1].terminate()
        for lease, (task, process) in list(self.running.items()):
            if (code := process.poll()) is not None:
                del self.running[lease]
                self.ended[lease] = pb.TaskResult(
                    lease=lease, task=task, state=STATES[code == 0], exit_code=code
                )
        results = list(self.ended.values())
        if results:
            told = self.call("CompleteTasks", self.said(pb.CompleteTasksRequest, results=results))
            self.ended = {lease: result for lease, result in self.ended.items() if lease not in told.verdicts}

    def run(self) -> None:
        while True:
            try:
                self.step() if self.session else self.register()
            except grpc.RpcError as error:
                print(error.code().name, error.details(), flush=True)
                self.session = (
                    "" if error.code().name in ("FAILED_PRECONDITION", "UNAVAILABLE") else self.session
                )
                time.sleep(0.2)


if __name__ == "__main__":
    address, token, name, slots = (*sys.argv[1:3], *(sys.argv[3:] + ["executor", "4"][len(sys.argv) - 3 :]))
    Executor(address, token, name, int(slots)).run()
