"""Whom a site tells of what: receivers, rules, what jobs may ask for, and the server that takes its mail.

Secrets are not here: everybody may read the policy. It names files under `secrets/` of the hub's home.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dray.core.model.specs.notifying import JOB_EVENTS, mail_domain

# Beside what happens to jobs: an alarm is raised, and is over.
SITE_EVENTS = ("alarm", "cleared")
EVENTS = (*JOB_EVENTS, *SITE_EVENTS)
# Where a job may have a webhook sent: nowhere, or to addresses of the internet.
WEBHOOKS = ("none", "public")
TLS = ("starttls", "tls", "none")


class Receiver(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One of a webhook, mail addresses, or a command on the hub; `secret` names the key of a webhook's signature."""

    webhook: str = ""
    mail: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    secret: str = ""


class NotifyRule(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Tell these receivers of these events; of jobs of one user, queue or label alone, where it says so."""

    on: tuple[str, ...]
    to: tuple[str, ...]
    user: str = ""
    queue: str = ""
    label: str = ""


class JobNotifications(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a job may ask for. `to`: who is told where it names nobody; `webhooks`: which addresses it may name.

    `networks`: addresses beside those of the internet, such as 10.1.0.0/16. `mail_domains`: whose mail addresses it may
    name. `secret`: the key its webhooks are signed with, none by default.
    """

    to: tuple[str, ...] = ()
    webhooks: str = "public"
    networks: tuple[str, ...] = ()
    mail_domains: tuple[str, ...] = ()
    secret: str = ""


class Smtp(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The server that takes mail. `user` logs in with the password in the file that `secret` names."""

    host: str = ""
    port: int = 25
    sender: str = ""
    tls: str = "starttls"
    user: str = ""
    secret: str = ""


class Notifications(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All of it."""

    receivers: dict[str, Receiver] = {}
    rules: tuple[NotifyRule, ...] = ()
    jobs: JobNotifications = JobNotifications()
    smtp: Smtp = Smtp()


def network_problem(value: Any) -> str:
    """What is wrong with a network as it is written."""
    found = re.fullmatch(r"([0-9.]+|[0-9A-Fa-f:]+)/([0-9]{1,3})", value) if isinstance(value, str) else None
    return "" if found else "must be a network such as 10.1.0.0/16"


def secret_problem(value: Any) -> str:
    """What is wrong with the name of a secret."""
    good = isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", value)
    return "" if good or value == "" else "must be the name of a file under secrets/ of the hub's home"


def host_problem(value: Any) -> str:
    """What is wrong with the name of a machine."""
    good = isinstance(value, str) and (value == "" or re.fullmatch(r"[A-Za-z0-9.:_-]{1,253}", value))
    return "" if good else "must be the name of a machine"


def mail_problem(value: Any) -> str:
    """What is wrong with a mail address."""
    return "" if isinstance(value, str) and (value == "" or mail_domain(value)) else "must be a mail address"
