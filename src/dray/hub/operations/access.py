"""Operations on tokens: who may ask at all, and how a worker gets a token of its own."""

from __future__ import annotations

from dray.errors import Conflict, InvalidInput, Problem
from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document
from dray.hub.operations import asks
from dray.hub.operations.operation import ADMIN, Desk, Operation
from dray.wire.schemas import jobs as shapes


async def list_tokens(desk: Desk, caller: Caller, ask: asks.Nothing) -> Document:
    listed = desk.tokens.documents()
    for token in listed["tokens"]:
        if "worker" in token["scopes"]:
            token["worker"] = desk.owners.worker_of(token["id"]) or None
    return listed


async def create_token(desk: Desk, caller: Caller, ask: shapes.TokenRequest) -> Document:
    user = ask.user or caller.user
    if ask.worker:
        if ask.scopes != ["worker"]:
            what = "goes with the scope worker and no other"
            raise InvalidInput(f"no token was made: worker: {what}", [Problem("worker", what)])
        return await desk.owners.issue(caller, ask.worker, user, ask.expires_s, on_purpose=True)
    made = await desk.tokens.create(
        caller, user, ask.scopes, ask.expires_s, shared_account=ask.shared_account
    )
    if "join" in ask.scopes:
        made["join"] = desk.owners.tell_join(made["token"])
    return made


ACCESS = (
    Operation("list_tokens", "List tokens", ADMIN, asks.Nothing, shapes.TokenList, list_tokens),
    Operation("create_token", "Make a token; its text is shown once", ADMIN, shapes.TokenRequest, shapes.NewToken,
              create_token, repeat="anew", errors=(Conflict,)),
    Operation("revoke_token", "Revoke a token", ADMIN, asks.Named, shapes.TokenDocument,
              lambda desk, caller, ask: desk.tokens.revoke(caller, ask.id),
              repeat="same", errors=(Conflict,)),
    Operation("join_worker", "Make a worker a token of its own, for a join token", ("join",), asks.Named,
              shapes.NewToken,
              lambda desk, caller, ask: desk.owners.issue(caller, ask.id), repeat="anew", errors=(Conflict,)),
)  # fmt: skip
