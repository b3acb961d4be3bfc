"""The supervisor's loop: messages and exits in, one group sync per turn, then barriers and events out.

Everything that happened in a turn is recorded before any of it is told or let loose: append, sync once, release and
start, write down the pids, send. User code runs only once `starting`, or `started` behind a barrier, is synced; ends
are written at once and synced with the next start or a moment later: a host that dies takes the process with it anyway.
While the journal cannot be written the turn's events and starts are held back and new work is refused; what runs goes
on, limits included.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import time
from typing import TYPE_CHECKING

from dray.agent.supervisor.attempts.lives import Runner
from dray.agent.supervisor.attempts.orphans import Orphan, Orphans, adopt_orphans
from dray.agent.supervisor.attempts.recovery import Recovery
from dray.agent.supervisor.attempts.report import Report
from dray.agent.supervisor.beside import Execs
from dray.agent.supervisor.connection import Connection
from dray.agent.supervisor.prepared import Prepared
from dray.agent.supervisor.processes.cgroup import Groups
from dray.agent.supervisor.processes.identity import HAS_PIDFD, now_ticks
from dray.agent.supervisor.processes.marks import make_mark, make_token
from dray.agent.supervisor.processes.output import OutputLimits
from dray.agent.supervisor.processes.spawn import Spawner, prepare_signals
from dray.agent.supervisor.processes.timers import Timers
from dray.agent.supervisor.records.home import SOCKET, peer_of
from dray.agent.supervisor.records.journal import LAZY, SYNCED, WRITTEN, Journal
from dray.agent.supervisor.records.ledger import KEEP_RECORDS, KEEP_S, Ledger
from dray.agent.supervisor.requests import Requests, describe_stop
from dray.processes import look_up, read_boot_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from dray.agent.supervisor.attempts.attempt import Attempt, Stop
    from dray.agent.supervisor.attempts.exec import Exec
    from dray.agent.supervisor.attempts.spec import TaskSpec
    from dray.agent.supervisor.processes.process import Process
    from dray.agent.supervisor.processes.spawn import Barrier
    from dray.agent.supervisor.processes.timers import Timer
    from dray.agent.supervisor.records.home import Home
    from dray.agent.supervisor.records.journal import Record, Replay
    from dray.processes import ProcessInfo

ALIVE_EVERY_S = 1.0
LAZY_WRITE_S = 1.0
SYNC_WITHIN_S = 0.05
# How long it may take to say that something was accepted and started: its end, told with it, saves the agent a turn.
FIRST_WORDS_S = 0.005
# The same for ends while others wait behind those that run: nobody waits for them, and told together they cost less.
LAST_WORDS_S = 0.01
RETRY_COMMIT_S = 0.5
RESTORE_RESERVE_S = 2.0
HOUSEKEEPING_S = 30.0
IDLE_EXIT_S = 900.0


class Retention:
    __slots__ = ("keep_records", "keep_s")

    def __init__(self, keep_s: float = KEEP_S, keep_records: int = KEEP_RECORDS) -> None:
        self.keep_s = keep_s
        self.keep_records = keep_records


class Outbox:
    """Events of the turn, in the order in which a reader can make sense of them."""

    __slots__ = ("accepted", "due", "exited", "others", "prompt", "started")

    def __init__(self) -> None:
        self.prompt = self.due = False
        self.others: list[Record] = []
        self.accepted: list[str] = []
        self.started: list[Record] = []
        self.exited: list[Record] = []

    def drop_progress(self) -> None:
        self.accepted, self.started, self.exited = [], [], []

    def may_wait(self, more: bool) -> bool:
        """Whether there are first words and nothing else, of nobody for whom they are urgent. `more`: others begin as
        soon as one has ended, so that nothing waits for the word of its end either.
        """
        words = self.accepted or self.started or self.exited
        pressing = self.prompt or self.due or self.others or (self.exited and not more)
        return bool(words) and not pressing

    def take(self, more: bool = False) -> list[Record]:
        """All there is; where `more` follow, without the starts of this moment: most have ended by the next."""
        events, self.others = self.others, []
        young = [] if self.prompt or not more else self._find_young()
        self.prompt = self.due = False
        if self.accepted:
            events.append({"ev": "accepted", "uids": self.accepted})
            self.accepted = []
        if len(young) < len(self.started):
            told = [item for item in self.started if item not in young] if young else self.started
            events.append({"ev": "started", "items": told})
        self.started = young
        if self.exited:
            events.append({"ev": "exited", "items": self.exited})
            self.exited = []
        return events

    def _find_young(self) -> list[Record]:
        since, ended = time.time() - LAST_WORDS_S, {item["uid"] for item in self.exited}
        return [item for item in self.started if item["started_at"] > since and item["uid"] not in ended]


class Server(Report):
    def __init__(
        self, home: Home, limits: OutputLimits, retention: Retention, idle_exit_s: float = IDLE_EXIT_S
    ) -> None:
        self._home = home
        self._retention = retention
        self._idle_exit_s = idle_exit_s
        self._idle_since = time.monotonic()
        self.boot_id = read_boot_id()
        self.journal = Journal(home.place, home.inode, self.boot_id)
        self.ledger = Ledger()
        self.outbox = Outbox()
        self.prepared = Prepared(self)
        self._selector = selectors.DefaultSelector()
        self._timers = Timers()
        self._groups = Groups(home.tag)
        self._connection: Connection | None = None
        self._driver: ProcessInfo | None = None
        self._dismissed = False
        self._barriers: list[Barrier] = []
        self._held = False
        self._stopping = False
        self._ticking = False
        self._write_due = self._sync_due = False
        self._unsynced_since = 0.0
        self._first_words: Timer | None = None
        self._token = make_token()
        self._socket_path = ""
        self._requests = Requests(self)
        self._limits = limits

    # --- beginning and end -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Replay, settle what an earlier supervisor left, listen. The home must be claimed already."""
        replay = self.journal.open()
        if replay.note:
            self._home.log(replay.note)
        for record in replay.records:
            self.ledger.fold(record)
        if replay.is_copied(self._home.inode, self.boot_id):
            self._begin_anew()
        else:
            self._settle(replay)
        self._listen_to_signals()
        self._listener, self._socket_path = self._home.listen()
        spawner = Spawner([self._home.lock_fd, self._listener.fileno()])
        self.execs = Execs(self, self._selector, self._timers, spawner)
        self.runner = Runner(
            *(self._selector, self._timers, spawner, self._groups, self, self._home.attempts, self._limits),
            Orphans(self._token, adopt_orphans(), self.execs.leaders),
        )
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        in_home = os.path.dirname(self._socket_path) == self._home.place
        self._home.publish(
            {
                "pid": os.getpid(),
                "socket": SOCKET if in_home else self._socket_path,
                "journal_id": self.journal.journal_id,
                "home": self._home.inode,
            }
        )
        self._remove_strays()
        self._keep_house()
        # No cycles are made on the way of a task; the collector would only unshare pages after every fork.
        gc.disable()

    def _settle(self, replay: Replay) -> None:
        recovery = Recovery(self.boot_id, self._home.alive_ticks, self._groups)
        recovery.stop_orphans([r for r in replay.beyond if r.get("k") in ("starting", "started", "adopted")])
        for record in recovery.settle(self.ledger, self._home.attempt_directory):
            self._home.log(f"{record['uid']}: {record['exit']['exit_class']}, {record['exit']['error']}")
            self.record(record)
        self.journal.commit()

    def _begin_anew(self) -> None:
        """In a copy of a home: what runs is the original's, to be left alone and not spoken for; what ended did so."""
        left = self.ledger.drop_open()
        self._home.log(f"this home is a copy: {len(left)} attempts that run are the original's, left alone")
        self.journal.rewrite(self.ledger.snapshot(), os.urandom(16).hex())

    def _listen_to_signals(self) -> None:
        read_end, write_end = socket.socketpair()
        read_end.setblocking(False)
        write_end.setblocking(False)
        self._wakeup = (read_end, write_end)
        signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        prepare_signals(listen_to_children=not HAS_PIDFD)
        self._selector.register(read_end, selectors.EVENT_READ, self._signalled)

    def _signalled(self) -> None:
        numbers = self._wakeup[0].recv(4096)
        if signal.SIGCHLD in numbers and not HAS_PIDFD:
            self.runner.poll_exits()
            self.execs.poll_exits()
        if signal.SIGTERM in numbers:
            if self.runner.attempts:
                self._home.log(f"SIGTERM ignored: {len(self.runner.attempts)} attempts still run")
            else:
                self._stopping = True

    def run(self) -> None:
        self._home.log(f"supervisor {os.getpid()} serves, journal {self.journal.journal_id}")
        while not self._stopping or self._held:
            self._turn()
        self.journal.commit(sync=True)
        if self._connection is not None:
            self._connection.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket_path)
        if os.path.dirname(self._socket_path) != self._home.place:
            os.rmdir(os.path.dirname(self._socket_path))
        self._groups.close()
        self._home.log("supervisor stopped")

    # --- the turn ----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        now = time.monotonic()
        more = (self.runner.wants_turn or self.journal.wants_commit) and not self._held
        wait_s = 0.0 if more else self._timers.wait_s(now)
        for key, _ in self._selector.select(wait_s):
            self._guard(key.data)
        for call in self._timers.due(time.monotonic()):
            self._guard(call)
        if not self._held:
            if self.runner.wants_turn:
                barrier = self.runner.launch_some()
                if barrier is not None:
                    self._barriers.append(barrier)
            if self.journal.wants_commit:
                self._commit()
        if not self._held:
            self._let_go()
        if self._dismissed and not self.runner.attempts and not self.prepared:
            self._stopping = True

    def _guard(self, call: Callable[[], None]) -> None:
        """One broken callback must not take down the tasks of all the others."""
        try:
            call()
        except Exception:  # noqa: BLE001 - logged whole; the reason stands above
            self._home.log_exception(f"handling {call!r}")

    def record(self, record: Record, urgency: int = SYNCED) -> None:
        self.ledger.fold(record)
        self.journal.append(record, urgency)

    def _commit(self, sync: bool = False) -> None:
        had_reserve = self.journal.reserved
        try:
            if self.journal.suspect:
                self.journal.rewrite(self.ledger.snapshot())
            else:
                self.journal.commit(sync)
            self._held = False
        except OSError as error:
            if not self._held:
                self._home.log(f"journal cannot be written, events are held back: {error}")
            self._held = True
            self._timers.at(time.monotonic() + RETRY_COMMIT_S, self._commit)
        if had_reserve and not self.journal.reserved:
            self._home.log("no space left: the journal lives on its reserve, new work is refused")
            self._timers.at(time.monotonic() + RESTORE_RESERVE_S, self._restore_reserve)
        if self.journal.wants_compaction and not self._held:
            self._compact()
        if not self.journal.unsynced:
            self._unsynced_since = 0.0
        elif not self._unsynced_since:
            self._unsynced_since = time.monotonic()
            if not self._sync_due:
                self._sync_due = True
                self._timers.at(self._unsynced_since + SYNC_WITHIN_S, self._sync)

    def _sync(self) -> None:
        """On a busy worker every start syncs what was written before it: then there is seldom anything to do."""
        self._sync_due = False
        if not self._unsynced_since:
            return
        due = self._unsynced_since + SYNC_WITHIN_S
        if due > time.monotonic():
            self._sync_due = True
            self._timers.at(due, self._sync)
        elif not self._held:
            self._commit(sync=True)

    def _restore_reserve(self) -> None:
        if not self.journal.restore_reserve():
            self._timers.at(time.monotonic() + RESTORE_RESERVE_S, self._restore_reserve)

    def _compact(self) -> None:
        try:
            self.journal.rewrite(self.ledger.snapshot())
        except OSError as error:
            self._home.log(f"journal not compacted: {error}")
            self.journal.put_off_compaction()

    def _let_go(self) -> None:
        if self._barriers and (late := self.runner.withdraw_late()):
            self.outbox.started = [item for item in self.outbox.started if item["uid"] not in late]
        for barrier in self._barriers:
            barrier.release()
        self._barriers.clear()
        self.runner.start_intended()
        self.runner.watch_launched()
        if self.journal.wants_commit:
            self._commit()
        if not self._held:
            self._tell()

    def _tell(self) -> None:
        connection = self._connection
        if connection is None:
            self.outbox.take()
            return
        if connection.state is not None:
            connection.send(connection.state)
            connection.state = None
            connection.greeted = True
        more = bool(self.runner.followers)
        if self.outbox.may_wait(more):
            if self._first_words is None:
                delay_s = LAST_WORDS_S if more else FIRST_WORDS_S
                self._first_words = self._timers.at(time.monotonic() + delay_s, self._hurry)
            return
        events = self.outbox.take(more)
        if events and self._first_words is not None:
            self._timers.cancel(self._first_words)
            self._first_words = None
        if connection.greeted:
            connection.send(*events)
        if connection.closed:
            self._connection = None

    def _hurry(self) -> None:
        self._first_words = None
        self.outbox.due = True

    # --- what requests may do ----------------------------------------------------------------------------------------

    def refusal(self, extra_bytes: int) -> str:
        """Why no new work is taken on now; empty when it is."""
        if self._held or not self.journal.has_room(extra_bytes):
            return f"no space left on the worker for the journal in {self._home.directory}: free some"
        return ""

    def take_on(self, spec: TaskSpec) -> None:
        waits = spec.behind in self.runner.attempts
        record = {"k": "spec", "uid": spec.uid, "task_id": spec.task_id, "meta": spec.meta}
        # Nothing is said of one that waits: its start is the first word, and syncs what was written before.
        self.record(record, WRITTEN if waits else SYNCED)
        if not waits:
            self.outbox.accepted.append(spec.uid)
            self.outbox.prompt = self.outbox.prompt or spec.prompt
        self.launch(spec)
        if spec.behind and not waits and not self._had_place(spec.behind):
            self.runner.give_back(spec.uid)

    def _had_place(self, uid: str) -> bool:
        """Whether an attempt that is gone has left a place: it ran, and did not go while it waited itself."""
        usage = (self.ledger.exit_of(uid) or {}).get("usage") or {}
        return bool(usage.get("wall_s"))

    def launch(self, spec: TaskSpec, lease_ends_at: float | None = None) -> None:
        self.runner.accept(spec, lease_ends_at)
        if not self._ticking:
            self._tick()

    def acknowledge(self, uids: list[str]) -> None:
        known = [uid for uid in uids if uid in self.ledger.entries and self.ledger.phase_of(uid) == "exited"]
        if known:
            self.record({"k": "acked", "uids": known, "at": time.time()}, LAZY)
        self._forget_old()
        if self.journal.pending and not self._write_due:
            self._write_due = True
            self._timers.at(time.monotonic() + LAZY_WRITE_S, self._write_lazily)

    def _write_lazily(self) -> None:
        self._write_due = False
        if not self._held:
            self._commit()

    def dismiss(self) -> None:
        """The agent leaves for good: when the last attempt has ended there is nothing to stay for, unless one comes."""
        self._dismissed = True

    def stop(self) -> None:
        if self.runner.attempts:
            self.outbox.others.append({"ev": "busy", "running": len(self.runner.attempts)})
        else:
            self.outbox.others.append({"ev": "stopped"})
            self._stopping = True

    # --- what the runner reports -------------------------------------------------------------------------------------

    def start_intended(self, attempt: Attempt, pipe_inodes: list[int]) -> str:
        record: Record = {
            "k": "starting",
            "uid": attempt.uid,
            "boot": self.boot_id,
            "ticks": now_ticks(),
            "token": self._token,
            "pipes": pipe_inodes,
        }
        self.record(record)
        return self.mark(attempt)

    def mark(self, attempt: Attempt) -> str:
        return make_mark(self._token, attempt.uid)

    def process_adopted(self, orphan: Orphan) -> None:
        """Put on record whose it is, for a supervisor that comes after this one and inherits nothing."""
        for uid in orphan.owners & self.runner.attempts.keys():
            info = orphan.info
            record = {"k": "adopted", "uid": uid, "pid": info.pid, "start": info.start, "boot": self.boot_id}
            self.record(record, WRITTEN)
            meta = self.runner.attempts[uid].spec.meta
            if orphan.certain and isinstance(meta, dict) and meta.get("runner"):
                self.outbox.others.append({"ev": "littered", "uid": uid})

    def process_started(self, attempt: Attempt, process: Process, first: bool) -> None:
        record: Record = {
            "k": "started",
            "uid": attempt.uid,
            "pid": process.pid,
            "start": process.start,
            "boot": self.boot_id,
            "at": attempt.started_at,
            "stage": attempt.stage,
            "token": self._token,
        }
        if attempt.group is not None:
            record["group"] = attempt.group.path
        self.record(record, SYNCED if process.barred else WRITTEN)
        if first:
            item = {"uid": attempt.uid, "pid": process.pid, "started_at": attempt.started_at}
            self.outbox.started.append(item)
            self.outbox.prompt = self.outbox.prompt or attempt.spec.prompt
            return
        untold = next((item for item in self.outbox.started if item["uid"] == attempt.uid), None)
        if untold is not None:
            # The start itself has not been told of: what is told before it would be forgotten with it.
            untold["pid"] = process.pid
        else:
            self.outbox.others.append({"ev": "next_stage", "uid": attempt.uid, "pid": process.pid})

    def exec_started(self, running: Exec) -> None:
        """For a supervisor that comes after this one; until it is written the mark tells whose it is."""
        info = running.info
        record = {
            "k": "adopted",
            "uid": running.uid,
            "pid": info.pid,
            "start": info.start,
            "boot": self.boot_id,
        }
        self.record(record, WRITTEN)

    def attempt_stopping(self, attempt: Attempt, stop: Stop) -> None:
        self.outbox.others.append({"ev": "stopping", "uid": attempt.uid, **describe_stop(stop)})

    def attempt_ended(self, attempt: Attempt, result: Record) -> None:
        exit_ = {**result, "usage": attempt.usage(time.monotonic()), "out": attempt.out()}
        self.record({"k": "exit", "uid": attempt.uid, "exit": exit_}, WRITTEN)
        self.outbox.exited.append({"uid": attempt.uid, **exit_})
        self.execs.task_ended(attempt)
        self._idle_since = time.monotonic()

    # --- connections and upkeep --------------------------------------------------------------------------------------

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        peer = peer_of(sock)
        if peer is not None and peer[1] not in (os.geteuid(), 0):
            self._home.log(f"a process of user {peer[1]} (pid {peer[0]}) was turned away")
            sock.close()
            return
        driver = look_up(peer[0]) if peer is not None else None
        more = self._connection is not None and not self._connection.closed
        if more and self._driver is not None:
            now = look_up(self._driver.pid)
            lives = now is not None and now.alive and now.start == self._driver.start
            if lives and (driver is None or driver.pid != self._driver.pid):
                self._refuse(sock, self._driver.pid)
                return
            more = lives
        connection = Connection(sock, self._selector, self._requests.receive)
        if not more:
            self.take_over(connection)
        self._driver = driver
        connection.send({"ev": "ready", "pid": os.getpid(), "home": self._home.inode})

    def take_over(self, connection: Connection) -> None:
        """From here on this is the agent's connection. One more of the same agent is not, until it says hello."""
        if self._connection is not None and self._connection is not connection:
            # After its own crash an agent cannot always close what it had.
            self._connection.close()
        self._connection, self._dismissed = connection, False

    def _refuse(self, sock: socket.socket, pid: int) -> None:
        """One agent at a time: two that drive one supervisor would take it from each other for ever."""
        with contextlib.suppress(OSError):
            sock.send(b'{"ev": "taken", "pid": %d}\n' % pid)
        sock.close()

    def _tick(self) -> None:
        self._home.note_alive(now_ticks())
        watched = self.runner.watch_orphans()
        self._ticking = bool(self.runner.attempts) or watched
        if self._ticking:
            self._timers.at(time.monotonic() + ALIVE_EVERY_S, self._tick)

    def _keep_house(self) -> None:
        now = time.monotonic()
        self._timers.at(now + min(HOUSEKEEPING_S, max(0.1, self._idle_exit_s)), self._keep_house)
        self._forget_old()
        connected = self._connection is not None and not self._connection.closed
        if self._home.lost and not self.runner.attempts:
            self._home.log("the home was removed or replaced: nothing to stay for")
            self._stopping = True
        if connected or self.runner.attempts:
            self._idle_since = now
        elif now - self._idle_since > self._idle_exit_s:
            self._home.log("nothing runs and no agent came: leaving the rest to the next supervisor")
            self._stopping = True
        if not self.runner.attempts:
            gc.collect()

    def _remove_strays(self) -> None:
        """Output that no record speaks of (a damaged journal was set aside) goes once it is old enough."""
        oldest = time.time() - self._retention.keep_s
        try:
            entries = list(os.scandir(self._home.attempts))
        except FileNotFoundError:
            return
        for entry in entries:
            if self.ledger.phase_of(entry.name) is None and entry.stat().st_mtime < oldest:
                remove_output(entry.path)

    def _forget_old(self) -> None:
        keep = self._retention
        uids = self.ledger.find_forgettable(time.time(), keep.keep_s, keep.keep_records)
        if uids:
            self.record({"k": "forgotten", "uids": uids}, LAZY)
            for uid in uids:
                remove_output(self._home.attempt_directory(uid))


def remove_output(directory: str) -> None:
    try:
        for entry in os.scandir(directory):
            os.unlink(entry.path)
        os.rmdir(directory)
    except OSError:
        return
