"""Whom a site tells of what: receivers, rules, what jobs may ask for, and the server that takes its mail.

Secrets are not here: everybody may read the policy. It names files under `secrets/` of the hub's home.
"""

from __future__ import annotations

import msgspec

from dray.core.model.specs.notifying import JOB_EVENTS

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
