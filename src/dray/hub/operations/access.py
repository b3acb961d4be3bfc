"""Operations on tokens: who may ask at all, and how a worker gets a token of its own."""

from __future__ import annotations

from dray import __version__
from dray.errors import Conflict, Forbidden, InvalidInput, NotFound, Problem, TooManyRequests, Unauthenticated
from dray.hub.access.caller import Caller
from dray.hub.access.tokens import stamp
from dray.hub.answers.service import Document
from dray.hub.operations import asks
from dray.hub.operations.operation import ADMIN, READ, Desk, Operation
from dray.hub.pages.files import build
from dray.hub.pages.sign_in import CODE_S, SignIn
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


def _sign_in(desk: Desk) -> SignIn:
    if desk.sign_in is None:
        raise NotFound("nobody signs in here")
    return desk.sign_in


def _tell_session(desk: Desk, caller: Caller) -> Document:
    tokens = desk.tokens
    return {
        "user": caller.user,
        "scopes": list(caller.scopes),
        "token": caller.token_id,
        "session": bool(tokens.parent_of(caller.token_id)),
        "expires_at": tokens.expires_at(caller.token_id),
        "now": stamp(tokens.clock_ms()),
        "version": __version__,
        "build": build(),
    }


async def open_session(desk: Desk, caller: Caller | None, ask: asks.OpenSession) -> tuple[Document, bytes]:
    opened = await _sign_in(desk).open(*ask)
    return {**_tell_session(desk, opened.caller), "half": opened.half}, opened.cookie


async def show_session(desk: Desk, caller: Caller, ask: asks.Nothing) -> Document:
    return _tell_session(desk, caller)


async def close_session(desk: Desk, caller: Caller, ask: asks.Nothing) -> Document:
    await _sign_in(desk).close(caller)
    return {**_tell_session(desk, caller), "session": False}


async def make_code(desk: Desk, caller: Caller, ask: asks.Nothing) -> Document:
    return {"code": _sign_in(desk).make_code(caller), "expires_s": CODE_S}


ACCESS = (
    Operation("open_session", "Sign a browser in", (), shapes.SessionRequest, shapes.NewSession, open_session,
              repeat="anew", errors=(Unauthenticated, Forbidden, TooManyRequests)),
    Operation("show_session", "Who asks, and which build of the pages is served", READ, asks.Nothing,
              shapes.SessionDocument, show_session),
    Operation("close_session", "Sign a browser out", READ, asks.Nothing, shapes.SessionDocument, close_session,
              repeat="same", errors=(Conflict,)),
    Operation("make_session_code", "Make a word that signs a browser in once", READ, asks.Nothing, shapes.SessionCode,
              make_code, repeat="anew"),
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
