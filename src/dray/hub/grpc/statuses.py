"""Refusals as gRPC has them: a code by the class of the error, and what it is about as details.

The same words, problems and codes as everywhere: `ErrorInfo.reason` is dray's code in capitals. A fault that nobody
foresaw leaves as INTERNAL without any of its own text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from dray import errors

DOMAIN = "dray"
DETAILS = "grpc-status-details-bin"
# Beyond that, a header is too large for some clients.
MOST_DETAIL_BYTES = 6 << 10
MOST_TEXT = 1024
AGAIN_S = 1.0

CODES: dict[type[errors.DrayError], grpc.StatusCode] = {
    errors.InvalidSpec: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidConfig: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TooLarge: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    errors.KeyReused: grpc.StatusCode.ALREADY_EXISTS,
    errors.Stale: grpc.StatusCode.ABORTED,
    errors.TooManyRequests: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NoSpace: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unreachable: grpc.StatusCode.UNAVAILABLE,
    errors.NotReady: grpc.StatusCode.UNAVAILABLE,
    errors.StoreError: grpc.StatusCode.UNAVAILABLE,
    errors.HubUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.OutcomeUnknown: grpc.StatusCode.UNKNOWN,
}
_NUMBERS = {code: code.value[0] for code in grpc.StatusCode}


class Refusal(NamedTuple):
    """How a call ends that was not answered."""

    code: grpc.StatusCode
    message: str
    metadata: tuple[tuple[str, bytes], ...] = ()


def code_of(error: errors.DrayError) -> grpc.StatusCode:
    """Find the code of an error by its class or the nearest one above it."""
    kinds = type(error).__mro__
    return next((CODES[kind] for kind in kinds if kind in CODES), grpc.StatusCode.INTERNAL)


def refusal_of(error: errors.DrayError, about: str = "") -> Refusal:
    """Spell an error; `about` is the resource that was asked for, such as `jobs/train-42`."""
    status = status_of(error, about)
    return Refusal(code_of(error), status.message, ((DETAILS, status.SerializeToString()),))


def status_of(error: errors.DrayError, about: str = "") -> status_pb2.Status:
    """An error as `google.rpc.Status`; details that make it too large for a header are left out, the largest first."""
    text = error.message if len(error.message) <= MOST_TEXT else f"{error.message[: MOST_TEXT - 1]}…"
    status = status_pb2.Status(code=_NUMBERS[code_of(error)], message=text)
    for detail in _details(error, about):
        packed = any_pb2.Any()
        packed.Pack(detail)
        if status.ByteSize() + packed.ByteSize() <= MOST_DETAIL_BYTES:
            status.details.append(packed)
    return status


def _details(error: errors.DrayError, about: str) -> Sequence[Any]:
    reason = error.reason if isinstance(error, errors.KeyReused) else error.code
    info = error_details_pb2.ErrorInfo(reason=reason.upper(), domain=DOMAIN)
    if isinstance(error, errors.NotLeader) and error.leader:
        info.metadata["leader"] = error.leader
    found: list[Any] = [info]
    if (wait_s := _wait_s(error)) is not None:
        found.append(error_details_pb2.RetryInfo(retry_delay=_duration(wait_s)))
    if isinstance(error, errors.NotFound) and about:
        kind = about.partition("/")[0]
        found.append(
            error_details_pb2.ResourceInfo(
                resource_type=kind, resource_name=about, description=error.message[:256]
            )
        )
    if isinstance(error, errors.NoSpace):
        violation = error_details_pb2.QuotaFailure.Violation(subject="disk", description=error.message[:256])
        found.append(error_details_pb2.QuotaFailure(violations=[violation]))
    if error.problems:
        found.append(_problems(error))
    return found


def _problems(error: errors.DrayError) -> Any:
    """What is wrong, field by field; of a request that the present state rules out, what would have to hold."""
    told = list(error.problems)
    while True:
        if isinstance(error, errors.Conflict):
            violations = [
                error_details_pb2.PreconditionFailure.Violation(
                    type=error.code.upper(), subject=one.where[:256], description=one.what[:MOST_TEXT]
                )
                for one in told
            ]
            detail: Any = error_details_pb2.PreconditionFailure(violations=violations)
        else:
            faults = [
                error_details_pb2.BadRequest.FieldViolation(
                    field=one.where[:256], description=one.what[:MOST_TEXT]
                )
                for one in told
            ]
            detail = error_details_pb2.BadRequest(field_violations=faults)
        if detail.ByteSize() < MOST_DETAIL_BYTES // 2 or len(told) <= 1:
            return detail
        told = told[: len(told) // 2]


def _wait_s(error: errors.DrayError) -> float | None:
    if isinstance(error, errors.TooManyRequests):
        return max(0.0, error.retry_after_s)
    if isinstance(error, (errors.NotReady, errors.StoreError, errors.HubUnavailable)):
        return AGAIN_S
    return None


def _duration(seconds: float) -> duration_pb2.Duration:
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))
