"""Operations of those who stay connected: submits in columns, many jobs at once, watches, calls and results; and of
workers that ask for their tasks.
"""

from __future__ import annotations

from dray.errors import Conflict, NoSpace
from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document
from dray.hub.operations import asks
from dray.hub.operations.operation import READ, SUBMIT, WORKER, Desk, Operation, Session
from dray.hub.operations.values import values_of
from dray.hub.workers import leases as leasing
from dray.hub.workers.leases import Leases
from dray.wire.messages import client as wire


async def submit_columns(desk: Desk, session: Session, ask: asks.SubmitJobs) -> Document:
    batches = values_of(desk).batches
    async with session.order:
        # Many are read in slices: a submit behind this one, which may refer to it, waits until it is in line.
        checked = await batches.read_specs(session.caller, ask.specs)
    return await batches.submit(session.caller, checked, ask.key)


async def unwatch_jobs(desk: Desk, session: Session, ask: wire.Unwatch) -> Document:
    values_of(desk).batches.drop(ask.ids, session)
    return {}


async def ping(desk: Desk, caller: Caller, ask: wire.Ping) -> Document:
    return {**await desk.service.hub(caller), "user": caller.user}


def _leases(desk: Desk) -> Leases:
    assert desk.leases is not None  # every hub that serves workers has them
    return desk.leases


SESSIONS = (
    Operation("submit_columns", "Submit many jobs, all or none; ids and states come back", SUBMIT, asks.SubmitJobs,
              Document, submit_columns, repeat="key", errors=(Conflict, NoSpace), in_session=True),
    Operation("watch_jobs", "Hear of jobs until they end", READ, wire.Watch, Document,
              lambda desk, session, ask: values_of(desk).batches.watch(session.caller, ask.ids, session),
              streams="out", in_session=True),
    Operation("unwatch_jobs", "Hear no more of jobs", READ, wire.Unwatch, Document, unwatch_jobs, in_session=True),
    Operation("add_calls", "Add calls to a job, and hear of their results", SUBMIT, wire.Calls, Document,
              lambda desk, session, ask: values_of(desk).calls.add(session.caller, ask, session.listener),
              repeat="same", streams="out", errors=(Conflict, NoSpace), in_session=True),
    Operation("collect_calls", "Give results so far, and hear of the others", READ, wire.Collect, Document,
              lambda desk, session, ask: values_of(desk).calls.collect(session.caller, ask, session.listener),
              paged=True, streams="out", errors=(Conflict,), in_session=True),
    Operation("get_jobs", "Show many jobs", READ, wire.Get, Document,
              lambda desk, caller, ask: values_of(desk).batches.documents(caller, ask.ids), weight=0.2),
    Operation("get_results", "Give documents and values of those that have ended", READ, wire.Result, Document,
              lambda desk, caller, ask: values_of(desk).batches.results(caller, ask.ids), weight=0.2),
    Operation("get_values", "Give states and values of a range of tasks", READ, wire.Values, Document,
              lambda desk, caller, ask: values_of(desk).batches.values(caller, ask.id, ask.first, ask.limit),
              weight=0.2, paged=True),
    Operation("ping", "Ask for a sign of life", READ, wire.Ping, Document, ping),
)  # fmt: skip
LEASES = (
    Operation("register_worker", "Be a worker that asks for its tasks", WORKER, leasing.RegisterLeasing, Document,
              lambda desk, caller, ask: _leases(desk).register(caller, ask), repeat="same"),
    Operation("lease_tasks", "Take tasks on lease", WORKER, leasing.Dequeue, Document,
              lambda desk, caller, ask: _leases(desk).dequeue(caller, ask), repeat="anew"),
    Operation("renew_leases", "Keep leases alive, and hear which to stop", WORKER, leasing.Renew, Document,
              lambda desk, caller, ask: _leases(desk).renew(caller, ask), repeat="same"),
    Operation("complete_leases", "End leases with their results", WORKER, leasing.Complete, Document,
              lambda desk, caller, ask: _leases(desk).complete(caller, ask), repeat="same"),
    Operation("return_leases", "Give leases back that were not begun", WORKER, leasing.GiveBack, Document,
              lambda desk, caller, ask: _leases(desk).give_back(caller, ask), repeat="same"),
)  # fmt: skip
