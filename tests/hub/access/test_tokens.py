"""Tokens: what opens, what does not, and what is left on disk."""

from __future__ import annotations

import stat
from typing import Any

import pytest

from dray.errors import Conflict, InvalidInput, NotFound, Unauthenticated
from dray.hub.access.caller import Caller
from dray.hub.access.tokens import Tokens, ensure_first_token, hash_token, make_token, stamp, write_private

NOW_MS = 1_800_000_000_000
ADMIN = Caller("a", "root", ("admin",))


class Clock:
    def __init__(self):
        self.now_ms = NOW_MS

    def __call__(self):
        return self.now_ms


class MemoryStore:
    def __init__(self):
        self.rows = {}
        self.fails = False

    def tokens(self):
        return list(self.rows.values())

    def save_token(self, token):
        if self.fails:
            raise OSError("the disk is full")
        self.rows[token.id] = token


def make_tokens(*rows, clock=None, saved=None):
    async def save(row, record):
        (saved if saved is not None else []).append((row, record))

    return Tokens(rows, clock or Clock(), save)


def test_a_token_has_a_public_id_and_a_long_secret():
    text, row = make_token("ann", ("read", "admin"), NOW_MS)
    prefix, token_id, secret = text.split("_", 2)
    assert (prefix, token_id, len(token_id)) == ("dray", row.id, 8)
    assert len(secret) == 43
    assert row.scopes == ("admin", "read")
    assert row.hash == hash_token(text)
    assert secret.encode() not in row.hash
    assert make_token("ann", ("read",), NOW_MS)[0] != text


def test_the_owner_of_a_token_is_found():
    text, row = make_token("ann", ("submit",), NOW_MS)
    tokens = make_tokens(row)
    assert tokens.authenticate(f"Bearer {text}") == Caller(row.id, "ann", ("submit",))
    assert tokens.authenticate(f"bearer  {text}").user == "ann"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic abc",
        "Bearer dray_x",
        "Bearer dray_00000000_secret",
        "Bearer \udcff",
        "dray",
    ],
)
def test_anything_else_is_refused_with_what_to_do(header):
    with pytest.raises(Unauthenticated, match=r"token|Authorization"):
        make_tokens(make_token("ann", ("read",), NOW_MS)[1]).authenticate(header)


def test_a_known_id_with_another_secret_is_refused_and_not_repeated():
    text, row = make_token("ann", ("read",), NOW_MS)
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    with pytest.raises(Unauthenticated) as refused:
        make_tokens(row).authenticate(f"Bearer {wrong}")
    assert wrong not in refused.value.message
    assert wrong.split("_", 2)[2] not in refused.value.message


def test_expiry_counts_at_once():
    clock = Clock()
    text, row = make_token("ann", ("read",), NOW_MS, NOW_MS + 1000)
    tokens = make_tokens(row, clock=clock)
    clock.now_ms += 999
    assert tokens.authenticate(f"Bearer {text}")
    assert tokens.fault_of(row.id) == ""
    clock.now_ms += 1
    with pytest.raises(Unauthenticated, match="expired at 2027"):
        tokens.authenticate(f"Bearer {text}")
    assert "expired at" in tokens.fault_of(row.id)


async def test_revoking_counts_at_once_and_is_saved_with_an_audit_record():
    saved: list[Any] = []
    text, row = make_token("ann", ("read",), NOW_MS)
    tokens = make_tokens(row, saved=saved)
    assert tokens.authenticate(f"Bearer {text}")
    document = await tokens.revoke(ADMIN, row.id)
    assert document["revoked"] is True
    with pytest.raises(Unauthenticated, match="revoked"):
        tokens.authenticate(f"Bearer {text}")
    assert tokens.fault_of(row.id) == f"token {row.id} was revoked"
    ((stored, record),) = saved
    assert (stored.revoked, stored.hash) == (True, row.hash)
    assert (record.action, record.target, record.user, record.token_id) == (
        "token.revoke",
        row.id,
        "root",
        "a",
    )
    assert (await tokens.revoke(ADMIN, row.id))["revoked"] is True
    assert len(saved) == 1, "revoking twice writes nothing twice"


async def test_a_failed_save_revokes_and_creates_nothing():
    text, row = make_token("ann", ("read",), NOW_MS)

    async def fail(row, record):
        raise OSError("no room")

    tokens = Tokens([row], Clock(), fail)
    with pytest.raises(OSError, match="no room"):
        await tokens.revoke(ADMIN, row.id)
    with pytest.raises(OSError, match="no room"):
        await tokens.create(ADMIN, "bob", ["read"])
    assert tokens.authenticate(f"Bearer {text}").user == "ann"
    assert len(tokens.documents()["tokens"]) == 1


async def test_the_last_admin_token_stays():
    _, row = make_token("ann", ("admin",), NOW_MS)
    _, expired = make_token("ann", ("admin",), NOW_MS, NOW_MS - 1)
    tokens = make_tokens(row, expired)
    with pytest.raises(Conflict, match="last admin token"):
        await tokens.revoke(ADMIN, row.id)
    await tokens.create(ADMIN, "bob", ["admin"])
    assert (await tokens.revoke(ADMIN, row.id))["revoked"]


async def test_create_shows_the_text_once():
    saved: list[Any] = []
    tokens = make_tokens(saved=saved)
    made = await tokens.create(ADMIN, "bob", ["worker"], expires_s=60)
    assert tokens.authenticate(f"Bearer {made['token']}") == Caller(made["id"], "bob", ("worker",))
    assert made["created_at"] == "2027-01-15T08:00:00.000Z"
    assert made["expires_at"] == "2027-01-15T08:01:00.000Z"
    secret = made["token"].split("_", 2)[2]
    assert secret not in str(tokens.documents())
    assert secret not in str(saved)
    assert saved[0][1].action == "token.create"
    assert tokens.documents()["tokens"][0]["last_used_at"] is not None


async def test_create_names_every_problem():
    with pytest.raises(InvalidInput) as refused:
        await make_tokens().create(ADMIN, "no user", ["sumbit"], expires_s=-1)
    assert [problem.where for problem in refused.value.problems] == ["scopes", "user", "expires_s"]
    assert "did you mean 'submit'?" in refused.value.problems[0].what
    with pytest.raises(InvalidInput, match="names none"):
        await make_tokens().create(ADMIN, "bob", [])


async def test_revoking_what_is_not_there():
    with pytest.raises(NotFound, match="'ffff'"):
        await make_tokens().revoke(ADMIN, "ffff")


def test_first_start_leaves_an_admin_token_for_its_owner_alone(tmp_path):
    store = MemoryStore()
    first = ensure_first_token(tmp_path / "home", "ann", store, NOW_MS)
    assert first.created
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    text = first.path.read_text().strip()
    assert make_tokens(*store.tokens()).authenticate(f"Bearer {text}").scopes == ("admin",)
    assert text.encode() not in b"".join(row.hash for row in store.tokens())
    assert [entry.name for entry in first.path.parent.iterdir()] == ["token"]


def test_a_later_start_keeps_the_token_and_closes_its_file(tmp_path):
    store = MemoryStore()
    path = ensure_first_token(tmp_path, "ann", store, NOW_MS).path
    text = path.read_text()
    path.chmod(0o644)
    assert not ensure_first_token(tmp_path, "ann", store, NOW_MS).created
    assert path.read_text() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_store_with_an_admin_gets_no_second_one(tmp_path):
    store = MemoryStore()
    path = ensure_first_token(tmp_path, "ann", store, NOW_MS).path
    path.unlink()
    assert not ensure_first_token(tmp_path, "ann", store, NOW_MS).created
    assert not path.exists()


def test_a_start_that_died_before_the_store_is_made_good(tmp_path):
    store = MemoryStore()
    store.fails = True
    with pytest.raises(OSError, match="full"):
        ensure_first_token(tmp_path, "ann", store, NOW_MS)
    store.fails = False
    first = ensure_first_token(tmp_path, "ann", store, NOW_MS)
    assert first.created
    assert make_tokens(*store.tokens()).authenticate(f"Bearer {first.path.read_text().strip()}")


def test_a_private_file_is_whole_or_not_there(tmp_path):
    folder = tmp_path / "token"
    folder.mkdir()
    with pytest.raises(OSError, match="irectory"):
        write_private(folder, b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


def test_times_have_milliseconds_and_a_zone():
    assert stamp(1_763_197_849_123) == "2025-11-15T09:10:49.123Z"
    assert stamp(0) is None
