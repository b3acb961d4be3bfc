"""Ids of jobs, tasks and attempts, and the one place that knows how they are spelled.

An id is never a path: it holds no slash, and a task id's slash is split off here before anything looks at it.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
ID_RULE = "1 to 128 letters, digits, '.', '_' or '-', starting with a letter or digit"
# In place of a user's name: all of them.
EVERYBODY = "*"
# The mark of a worker whose machine is made up: part of its name, so that nothing that names a worker leaves it out.
FAKE_PREFIX = "fake-"
# What its owner calls something, which others call NAME@OWNER.
NAME_PATTERN = f"{ID_PATTERN}(?:@{ID_PATTERN})?"
NAME_RULE = f"{ID_RULE}; of somebody else's NAME@OWNER"
_ID, _NAME = re.compile(ID_PATTERN), re.compile(NAME_PATTERN)
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_MAX_EPOCH, LAST_ATTEMPT = (1 << 23) - 1, (1 << 40) - 1


def is_id(text: str) -> bool:
    """Tell whether `text` may name a job, a worker or a user."""
    return _ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Tell whether `text` may name something that has an owner: an id, or NAME@OWNER."""
    return _NAME.fullmatch(text) is not None


def is_fake(worker_id: str) -> bool:
    """Tell whether a worker only pretends to have what it offers."""
    return worker_id.startswith(FAKE_PREFIX)


def task_id(job_id: str, index: int) -> str:
    """Spell a task's id; `index` is -1 for the only task of its job."""
    return job_id if index < 0 else f"{job_id}/{index}"


def split_task_id(text: str) -> tuple[str, int] | None:
    """Read a task id back as (job id, index), index -1 for a job's only task; None where it is no task id."""
    job_id, slash, rest = text.partition("/")
    if not is_id(job_id):
        return None
    if not slash:
        return job_id, -1
    if _INDEX.fullmatch(rest) is None:
        return None
    return job_id, int(rest)


def attempt_uid(epoch: int, seq: int, key: bytes = b"") -> str:
    """Spell an attempt's uid: drawn from counters, so that no random number is needed and it grows.

    A `key` adds a part that nobody who does not have it can foresee.
    """
    name = f"{epoch}-{seq}"
    if not key:
        return name
    tag = _tags(key).copy()
    tag.update(name.encode())
    return f"{name}-{tag.hexdigest()}"


@lru_cache(maxsize=4)
def _tags(key: bytes) -> hashlib.blake2b:
    """What the tags of uids begin with: taking in the key costs as much again as all the rest."""
    return hashlib.blake2b(key=key, digest_size=6)


def attempt_number(uid: str) -> int:
    """Fold a uid into one integer that grows with it (the attempt's row id and fence); -1 where it is no uid.

    Peers send uids: one that would not fit into the 63 bits of a row id was never drawn here and is no uid. What stands
    behind the number is not looked at: whoever finds an attempt by it compares the whole uid.
    """
    # Asked for each placement: taking it apart by hand takes a third as long as the pattern would.
    first, _, last = uid.partition("-")
    last = last.partition("-")[0]
    base = _base_of(first)
    if base < 0 or not (last.isdigit() and last.isascii() and len(last) <= 13):
        return -1
    seq = int(last)
    return base | seq if seq <= LAST_ATTEMPT else -1


@lru_cache(maxsize=64)
def _base_of(epoch: str) -> int:
    """Where the numbers of an epoch begin; -1 where it is none. The same few are asked for over and over."""
    if not (epoch.isdigit() and epoch.isascii() and len(epoch) <= 7) or int(epoch) > _MAX_EPOCH:
        return -1
    return int(epoch) << 40
