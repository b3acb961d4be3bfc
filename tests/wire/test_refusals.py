"""What a hub refuses with is read back as it was meant, whoever reads it."""

from __future__ import annotations

import json

import pytest

from dray import errors
from dray.hub.answers.refusals import error_document
from dray.wire.reach.refusals import read_refusal

KINDS = [
    errors.InvalidSpec,
    errors.Unauthenticated,
    errors.Forbidden,
    errors.NotFound,
    errors.Conflict,
    errors.TooLarge,
    errors.NotReady,
    errors.NoSpace,
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_comes_back_as_its_class(kind: type[errors.DrayError]) -> None:
    sent = kind("it cannot be", [errors.Problem("a.b", "is wrong")])
    read = read_refusal(json.dumps(error_document(sent)).encode())
    assert type(read) is kind
    assert (read.code, read.message, read.problems) == (sent.code, sent.message, sent.problems)


def test_when_to_ask_again_is_kept() -> None:
    sent = errors.TooManyRequests("slower", 2.5)
    read = read_refusal(json.dumps(error_document(sent)).encode())
    assert isinstance(read, errors.TooManyRequests)
    assert read.retry_after_s == 2.5


def test_a_code_of_a_later_version_is_kept() -> None:
    read = read_refusal(b'{"error": {"code": "too_blue", "message": "no", "problems": []}}')
    assert read is not None
    assert (type(read), read.code) == (errors.DrayError, "too_blue")


@pytest.mark.parametrize(
    "body", [None, b"", b"<html>", b"[]", b"{}", b'{"error": "no"}', b'{"error": {}}', b"\xff"]
)
def test_what_no_hub_wrote_is_no_refusal(body: bytes | None) -> None:
    assert read_refusal(body) is None
