"""What a job may be told about, and to whom: events, webhook addresses, mail addresses, names of receivers.

One reader of addresses for specs, policies and whoever dials them: two readers that disagree about where a host ends
are how a hub is led to where it must not go.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from dray.core.model.ids import ID_RULE, is_id

# What happens to a job, in words that people ask for. `ended` is any of the three ends.
ENDS = ("done", "failed", "killed")
JOB_EVENTS = ("started", *ENDS, "ended", "preempted", "idle")
ENDED = "ended"
MAX_TARGETS = 8
MAX_ADDRESS = 1024
_URL = re.compile(
    r"(https?)://([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?"
    r"(/[\x21\x24-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e]*)?"
)
_MAIL = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@([A-Za-z0-9](?:[A-Za-z0-9-]{0,62})(?:\.[A-Za-z0-9-]{1,63}){0,16})"
)


class Url(NamedTuple):
    """Where a webhook goes. `host` is without the brackets of an IPv6 address, `path` with its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.scheme == "https" else 80
        return host if self.port == usual else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """For lists: what follows the host may be a secret of its own."""
        return f"{self.scheme}://{self.authority}/…"


def read_url(text: str) -> Url | None:
    """Take an address apart; None where it is none that may be dialled."""
    found = _URL.fullmatch(text) if len(text) <= MAX_ADDRESS else None
    if found is None:
        return None
    scheme, host, port, path = found.groups()
    number = int(port) if port else 443 if scheme == "https" else 80
    return Url(scheme, host.strip("[]").lower(), number, path or "/") if 0 < number < 65536 else None


def url_problem(text: Any) -> str:
    """What is wrong with a webhook's address; empty where nothing is."""
    if isinstance(text, str) and read_url(text) is not None:
        return ""
    return "must be an address such as https://host/path, without a user, a password, blanks or `#`"


def mail_domain(text: str) -> str:
    """The part behind the @ of a mail address in small letters; empty where it is none."""
    found = _MAIL.fullmatch(text) if len(text) <= 254 else None
    return found[1].lower() if found is not None else ""


def target_problem(text: Any) -> str:
    """What is wrong with one of those who are to be told."""
    if not isinstance(text, str):
        return f"must be text, got {text!r:.40}"
    if "://" in text:
        return url_problem(text)
    if "@" in text:
        return "" if mail_domain(text) else f"{text[:64]!r} is not a mail address"
    return "" if is_id(text) else f"must be a receiver ({ID_RULE}), an https address or a mail address"


def targets_problem(value: Any) -> str:
    """What is wrong with a list of them."""
    if not isinstance(value, list):
        return f"must be a list of receivers, got {value!r:.40}"
    if len(value) > MAX_TARGETS:
        return f"names {len(value)}, the limit is {MAX_TARGETS}"
    return next(
        (f"item {place} {fault}" for place, item in enumerate(value) if (fault := target_problem(item))), ""
    )


def events_problem(value: Any) -> str:
    """What is wrong with a list of events."""
    if not isinstance(value, list):
        return f"must be a list of {', '.join(JOB_EVENTS)}, got {value!r:.40}"
    bad = [item for item in value if item not in JOB_EVENTS]
    return f"knows {', '.join(JOB_EVENTS)}, not {bad[0]!r:.40}" if bad else ""
