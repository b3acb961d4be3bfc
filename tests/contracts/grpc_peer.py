"""A hub over gRPC as a stranger has it: the generated stubs, plain grpc, and answers turned back into documents."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from dray.v1 import scheduler_pb2, scheduler_pb2_grpc, workload_manager_pb2, workload_manager_pb2_grpc

PATIENCE_S = 30.0
SERVICES = (
    scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"],
    workload_manager_pb2.DESCRIPTOR.services_by_name["WorkloadManager"],
)
DETAILS = {
    name: getattr(error_details_pb2, name)
    for name in (
        "ErrorInfo",
        "BadRequest",
        "RetryInfo",
        "ResourceInfo",
        "QuotaFailure",
        "PreconditionFailure",
    )
}


class Peer:
    """One channel with one token. `ask(name, …)` makes a request of keywords and gives its response."""

    def __init__(self, home: Path, token: str, channel: grpc.Channel | None = None) -> None:
        self.address = json.loads((home / "hub.json").read_text())["grpc"]
        self.channel = channel or grpc.insecure_channel(self.address)
        self.stub = scheduler_pb2_grpc.SchedulerStub(self.channel)
        self.workloads = workload_manager_pb2_grpc.WorkloadManagerStub(self.channel)
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def ask(self, method: str, timeout_s: float | None = PATIENCE_S, **fields: Any) -> Any:
        return self.send(method, request_of(method, **fields), timeout_s)

    def send(self, method: str, request: Any, timeout_s: float | None = PATIENCE_S) -> Any:
        stub = self.stub if hasattr(self.stub, method) else self.workloads
        return getattr(stub, method)(request, timeout=timeout_s, metadata=self.metadata)

    def refused(self, method: str, **fields: Any) -> tuple[grpc.StatusCode, str, dict[str, Any]]:
        """How a call is refused: code, words, details by their names."""
        return refusal(lambda: self._drain(self.ask(method, **fields)))

    def _drain(self, answer: Any) -> None:
        if isinstance(answer, Iterator):
            for _ in answer:
                pass

    def close(self) -> None:
        self.channel.close()


def request_of(method: str, **fields: Any) -> Any:
    service = next(one for one in SERVICES if method in one.methods_by_name)
    return GetMessageClass(service.methods_by_name[method].input_type)(**fields)


def refusal(call: Any) -> tuple[grpc.StatusCode, str, dict[str, Any]]:
    try:
        call()
    except grpc.RpcError as error:
        found: Any = error
        return found.code(), found.details(), details_of(dict(found.trailing_metadata() or ()))
    raise AssertionError("the call was answered")


def details_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    raw = metadata.get("grpc-status-details-bin")
    if raw is None:
        return {}
    return spell_status(status_pb2.Status.FromString(raw))


def spell_status(status: Any) -> dict[str, Any]:
    """The details of a status as JSON has them."""
    found = {}
    for one in status.details:
        name = one.type_url.rpartition(".")[2]
        detail = DETAILS[name]()
        one.Unpack(detail)
        found[name] = json_format.MessageToDict(detail, preserving_proto_field_name=True)
    return found
