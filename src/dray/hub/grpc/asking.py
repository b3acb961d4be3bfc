"""What a request says, read and bounded field by field: ids, pages, filters, masks. Specs have a check of their own.

A page's token holds the place to go on from and a digest of everything else that was asked, so that it cannot be taken
to another question.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dray.core.model.ids import ID_RULE, is_id, split_task_id
from dray.errors import InvalidInput, Problem
from dray.hub.grpc.spelling import to_document, word_of
from dray.hub.http.view_calls import EVENT_ID
from dray.hub.store.base import JobFilter

PAGE, MOST_PAGE = 100, 1000
MOST_TEXT = 256
MOST_LABELS = 64
MAX_WAIT_S = 300.0
_KEY = re.compile(r"[\x20-\x7e]{1,128}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DIGEST_BYTES = 8
_NOT_ASKED = ("page_size", "page_token")


def wrong(where: str, what: str) -> InvalidInput:
    """The refusal of one field."""
    return InvalidInput(f"{where}: {what}", [Problem(where, what)])


def read_id(request: Any, field: str) -> str:
    """The id of something, which has to be given."""
    text: str = getattr(request, field)
    if not is_id(text):
        raise wrong(field, f"must be {ID_RULE}, got {text[:64]!r}")
    return text


def read_task(request: Any) -> tuple[str, int | None]:
    """The job and the index that a task id names; None for the only task of its job."""
    found = split_task_id(request.task)
    if found is None:
        raise wrong("task", f"must be the id of a task, JOB or JOB/INDEX, got {request.task[:64]!r}")
    return found[0], None if found[1] < 0 else found[1]


def read_text(request: Any, field: str) -> str:
    """Some text that may be left out."""
    text: str = getattr(request, field)
    if len(text) > MOST_TEXT or _CONTROL.search(text):
        raise wrong(field, f"must be at most {MOST_TEXT} characters, without control characters")
    return text


def read_after(request: Any) -> str:
    """The event behind which somebody goes on; empty: from the first."""
    after: str = request.after
    if after and re.fullmatch(EVENT_ID, after) is None:
        raise wrong("after", f"must be the id of an event, like 1024.3, got {after[:64]!r}")
    return after


def read_choice(request: Any, field: str, choices: Sequence[str], default: str) -> str:
    """One of a few words."""
    text: str = getattr(request, field) or default
    if text not in choices:
        raise wrong(field, f"must be one of {', '.join(choices)}, got {text[:64]!r}")
    return text


def read_key(request: Any) -> str:
    """What makes a request safe to send again."""
    key: str = request.request_id
    if key and _KEY.fullmatch(key) is None:
        raise wrong("request_id", "must be 1 to 128 printable ASCII characters")
    return key


def read_seconds(request: Any, field: str, most: float = MAX_WAIT_S) -> float:
    """A span of time."""
    value: float = getattr(request, field)
    if not math.isfinite(value) or not 0 <= value <= most:
        raise wrong(field, f"must be from 0 to {most:g} seconds, got {value:g}")
    return value


def read_whole(request: Any, field: str, most: int, least: int = 0) -> int:
    """A whole number."""
    value: int = getattr(request, field)
    if not least <= value <= most:
        raise wrong(field, f"must be from {least} to {most}, got {value}")
    return value


def read_grace(request: Any) -> float | None:
    """How long a task has between TERM and KILL; None for what its tier says."""
    return read_seconds(request, "grace_s", 86400) if request.HasField("grace_s") else None


def read_words(request: Any, field: str) -> tuple[str, ...]:
    """States as documents spell them."""
    kind = request.DESCRIPTOR.fields_by_name[field].enum_type
    words = tuple(dict.fromkeys(word_of(kind, number) for number in getattr(request, field)))
    for word in words:
        if word == "unspecified" or word.isdigit():
            raise wrong(field, f"{word} is no state")
    return words


def read_labels(labels: Mapping[str, str], field: str) -> tuple[tuple[str, str], ...]:
    """Labels, few and short."""
    if len(labels) > MOST_LABELS:
        raise wrong(field, f"holds {len(labels)} labels, the limit is {MOST_LABELS}")
    for name, value in labels.items():
        if not name or len(name) > MOST_TEXT or len(value) > MOST_TEXT or _CONTROL.search(name + value):
            raise wrong(field, f"a label has 1 to {MOST_TEXT} characters, without control characters")
    return tuple(labels.items())


def read_spec(message: Any) -> dict[str, Any]:
    """A job as a document, to be checked like any other."""
    return to_document(message)


def read_changes(changes: Any, mask: Any) -> dict[str, Any]:
    """What a mask and a message make of a job: a field of the mask that is not set is to have its default again."""
    given = to_document(changes)
    if not mask.paths:
        return given
    known = changes.DESCRIPTOR.fields_by_name
    for path in mask.paths:
        if path not in known:
            raise wrong("update_mask", f"{path[:64]!r} is no field of a job: a mask names whole fields of it")
    return {path: given.get(path) for path in mask.paths}


class Page(NamedTuple):
    """Which part of a list is wanted."""

    size: int
    cursor: str


def read_page(request: Any, most: int = MOST_PAGE, default: int = PAGE) -> Page:
    """The page that is asked for; a size beyond the limit is the limit."""
    if request.page_size < 0:
        raise wrong("page_size", f"must be 0 or more, got {request.page_size}")
    size = min(request.page_size or default, most)
    if not (token := request.page_token):
        return Page(size, "")
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii", "strict"))
        digest, cursor = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:].decode("ascii")
    except (binascii.Error, ValueError):
        raise wrong("page_token", "is none that this hub has given") from None
    if digest != _digest(request):
        raise wrong("page_token", "belongs to another question: give it with the filter of the page before")
    return Page(size, cursor)


def write_token(request: Any, cursor: str | None) -> str:
    """The token of the next page; empty where there is none."""
    if not cursor:
        return ""
    return base64.urlsafe_b64encode(_digest(request) + cursor.encode("ascii")).decode("ascii")


def _digest(request: Any) -> bytes:
    asked = type(request)()
    asked.CopyFrom(request)
    for field in _NOT_ASKED:
        asked.ClearField(field)
    text = request.DESCRIPTOR.full_name.encode() + asked.SerializeToString(deterministic=True)
    return hashlib.sha256(text).digest()[:_DIGEST_BYTES]


def read_cursor(page: Page) -> int:
    """A place that is a number."""
    if page.cursor and not (page.cursor.isdigit() and len(page.cursor) <= 18):
        raise wrong("page_token", "is none that this hub has given")
    return int(page.cursor or 0)


def read_filter(request: Any) -> JobFilter:
    """Which jobs are to be listed, and which part of them."""
    page, asked = read_page(request), request.filter
    return JobFilter(
        states=read_words(asked, "states"),
        user=read_text(asked, "user"),
        queue=read_text(asked, "queue"),
        name=read_text(asked, "name"),
        labels=read_labels(asked.labels, "filter.labels"),
        workload=read_text(asked, "workload"),
        worker=read_text(asked, "worker"),
        exit_class=read_text(asked, "exit_class"),
        q=read_text(asked, "q"),
        before_seq=read_cursor(page),
        limit=page.size,
        count=request.count,
    )
