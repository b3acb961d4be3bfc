"""How the keys of the mirror are spelled, and in which slot of a cluster each of them lies.

All keys of a queue share one hash tag, so that one script may change them together; those of the site share another. A
name that holds anything but letters, digits and `._-~` is quoted as in an address: braces would move the tag.
"""

from __future__ import annotations

import string
from binascii import crc_hqx
from typing import NamedTuple
from urllib.parse import quote

SLOTS = 16384
_LOWEST = (1 << 31) - 1
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-~")


class Names(NamedTuple):
    """The keys of one queue, or of the site: two collections, what is known of them, and the stream of events."""

    first: str
    second: str
    stats: str
    events: str

    @property
    def slot(self) -> int:
        return find_slot(self.stats)

    def draft(self, nonce: str) -> tuple[str, str]:
        """Where the collections are made anew before they take the place of the old ones."""
        return f"{self.first}:new:{nonce}", f"{self.second}:new:{nonce}"


def name_queue(prefix: str, queue: str) -> Names:
    """The keys of a queue: what waits, what runs."""
    stem = f"{prefix}:{{q:{quote(queue, safe='')}}}"
    return Names(f"{stem}:waiting", f"{stem}:running", f"{stem}:stats", f"{stem}:events")


def name_site(prefix: str) -> Names:
    """The keys of the site: its workers, its queues."""
    stem = f"{prefix}:{{site}}"
    return Names(f"{stem}:workers", f"{stem}:queues", f"{stem}:stats", f"{stem}:events")


def name_lock(prefix: str) -> str:
    """Who writes."""
    return f"{prefix}:{{site}}:writer"


def name_job(prefix: str, job_id: str) -> str:
    """The document of a job."""
    return f"{prefix}:{{j:{_quoted(job_id)}}}"


def find_slot(key: str) -> int:
    """The slot of a key: that of its hash tag, where it has one that is not empty."""
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    tag = key[start + 1 : end] if end > start + 1 else key
    return crc_hqx(tag.encode(), 0) % SLOTS


def spell_place(priority: int, seq: int, job_id: str) -> str:
    """The member of a job in `waiting`: in the order of bytes higher priorities come first, then earlier submits.

    A score has 53 bits, which do not hold both. Priorities are those of 32 bits, the lowest of them included.
    """
    return f"{_LOWEST - priority:08x}{seq:012x}:{job_id}"


def _quoted(text: str) -> str:
    return text if _PLAIN.issuperset(text) else quote(text, safe="")
