"""A PostgreSQL with a standby of its own: cut off, promoted, with commits that wait for it or do not."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

from tests.e2e.proxy import Relay
from tests.hub.asking import wait_until
from tests.postgres import NOBODY, Server

NAME = "replica"


class Pair:
    """A primary, and a standby that streams from it through a relay."""

    def __init__(self, servers: Callable[..., Server], *settings: str) -> None:
        self.primary = servers("wal_level=replica", "max_wal_senders=4", *settings)
        self.relay = Relay(self.primary.port)
        data = self.primary.data.with_name(self.primary.data.name + "-standby")
        words = [str(self.primary.binaries / "bin" / "pg_basebackup"), "-D", str(data), "--checkpoint=fast"]
        data.mkdir(mode=0o700)
        if NOBODY:
            os.chown(data, 65534, 65534)
        subprocess.run(words, check=True, env=self.primary.environment("postgres"), **NOBODY)
        (data / "standby.signal").touch()
        port, user = self.relay.port, self.primary.environment("postgres")
        source = f"host=127.0.0.1 port={port} user={user['PGUSER']} password={user['PGPASSWORD']} "
        self.standby = Server(
            self.primary.binaries,
            data,
            *settings,
            f"primary_conninfo={source} application_name={NAME}",
            "wal_retrieve_retry_interval=100ms",
        )
        self.standby.start()
        wait_until(self.streams)

    def streams(self) -> bool:
        return self.primary.run("SELECT state FROM pg_stat_replication") == "streaming"

    def wait_for_it(self) -> None:
        """From here on a commit is answered when the standby has it."""
        self.primary.run(f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({NAME})'")
        self.primary.run("SELECT pg_reload_conf()")
        wait_until(lambda: self.primary.run("SELECT sync_state FROM pg_stat_replication") == "quorum")

    def part(self) -> None:
        """The standby hears of nothing any more, and nobody is told."""
        for direction in ("up", "down"):
            self.relay.lose(direction, later_too=True)

    def join(self) -> None:
        """They find each other again."""
        self.relay.heal()
        self.relay.cut()

    def fail_over(self, database: Relay) -> None:
        """The primary dies, the standby is promoted, and the address that hubs know leads there."""
        self.primary.kill()
        self.standby.run("SELECT pg_promote()")
        database.lead_to(self.standby.port)

    def close(self) -> None:
        self.relay.close()
        self.standby.stop()
        shutil.rmtree(self.standby.data, ignore_errors=True)
