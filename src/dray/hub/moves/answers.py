"""What the hub answers about moves: ordered, listed, shown, called off."""

from __future__ import annotations

from typing import NamedTuple

from dray.core.lifecycle.holding.receipts import number_of
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import Receipt
from dray.core.scheduling.rebalancing.worth import look_ahead
from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document
from dray.hub.documents.records import Document as Row
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.moves import decisions
from dray.hub.moves.documents import cursor_of, move_document, plan_document, standing_document
from dray.hub.rows import Rows, job_row


class Wanted(NamedTuple):
    """Which moves a list wants, newest first; empty fields do not filter. `all`: also those that have ended."""

    job: str = ""
    cause: str = ""
    all: bool = False
    limit: int = 50
    before: int = 0


class MoveAnswers:
    """One hub's answers about its moves."""

    def __init__(self, rows: Rows, engine: Engine, clock: HubClock) -> None:
        self._engine, self._rows, self._clock = engine, rows, clock

    async def order(self, caller: Caller, job_id: str, task: int | None, to: str) -> Document:
        """Have what runs of a job go elsewhere."""

        def finish(after: State, uids: list[str]) -> Document:
            named = [
                one for one in after.moving.values() if any(victim.uid in uids for victim in one.victims)
            ]
            return {"moves": [self._document(caller, receipt) for receipt in named]}

        decide = decisions.move(caller, job_id, task, to, self._rows, finish)
        answer: Document = await self._engine.change(
            decide, 4, caller.user, (job_id, task, to), "move", wants=(job_row(job_id),)
        )
        return answer

    async def list(self, caller: Caller, wanted: Wanted) -> Document:
        """Moves, newest first."""

        def look(state: State) -> Document:
            found = [one for one in decisions.visible_moves(state, caller) if _is_wanted(one, wanted)]
            page = [one for one in found if not wanted.before or number_of(one) < wanted.before]
            shown = page[: wanted.limit]
            return {
                "moves": [self._document(caller, receipt) for receipt in shown],
                "next_cursor": cursor_of(shown[-1]) if len(page) > len(shown) else None,
            }

        answer: Document = await self._engine.read(look)
        return answer

    async def show(self, caller: Caller, move_id: str) -> Document:
        """One move."""
        answer: Document = await self._engine.read(
            lambda state: self._document(caller, decisions.find_move(state, caller, move_id))
        )
        return answer

    async def cancel(self, caller: Caller, move_id: str) -> Document:
        """Call a move off."""

        def finish(after: State) -> Document:
            return self._document(caller, decisions.find_move(after, caller, move_id))

        decide = decisions.cancel(caller, move_id, finish)
        answer: Document = await self._engine.change(decide, 1, caller.user, (move_id,), "call off")
        return answer

    def _document(self, caller: Caller, receipt: Receipt) -> Row:
        return move_document(self._rows, caller, receipt, self._clock.read())

    # --- the rebalancer -----------------------------------------------------------------------------------------------

    async def plan(self, caller: Caller, cause: str = "") -> Document:
        """What would be moved now, and what not, with the reasons; nothing is."""
        answer: Document = await self._engine.read(lambda state: self._plan(state, cause))
        return answer

    async def start(self, caller: Caller, etag: str, cause: str = "") -> Document:
        """Carry out a plan that was looked at, if it still comes to the same."""

        def finish(after: State, uids: list[str]) -> Document:
            named = [
                one for one in after.moving.values() if any(victim.uid in uids for victim in one.victims)
            ]
            return {"moves": [self._document(caller, receipt) for receipt in named]}

        decide = decisions.start(caller, etag, cause, finish)
        answer: Document = await self._engine.change(decide, 20, caller.user, (etag, cause), "rebalance")
        return answer

    async def stop(self, caller: Caller) -> Document:
        """Call off all that strategies have decided and for which nobody was asked to stop yet."""

        def finish(after: State, ids: list[str]) -> Document:
            return {
                "moves": [self._document(caller, decisions.find_move(after, caller, name)) for name in ids]
            }

        answer: Document = await self._engine.change(
            decisions.stop(caller, finish), 4, caller.user, (), "stop rebalancing"
        )
        return answer

    async def standing(self, caller: Caller) -> Document:
        """Whether work is moved by itself, how much there is to gain, and what moves have come to."""
        answer: Document = await self._engine.read(standing_document)
        return answer

    def _plan(self, state: State, cause: str) -> Document:
        return plan_document(self._rows, state, look_ahead(state, cause))


def _is_wanted(receipt: Receipt, wanted: Wanted) -> bool:
    named = not wanted.job or any(victim.job_id == wanted.job for victim in receipt.victims)
    caused = not wanted.cause or receipt.cause == wanted.cause
    return named and caused and (wanted.all or receipt.status == "open")
