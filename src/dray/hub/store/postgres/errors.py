"""PostgreSQL's errors in the words of dray's own: what was asked, what is there, what to do.

Two kinds matter to whoever writes. `Unanswered`: nobody knows whether the statement took effect, or the server is not
there at all; it is asked again. All others are answers: nothing of that statement is in the database. A disk that is
full is such an answer, and one that another time may be different (`PASSING`).
"""

from __future__ import annotations

import asyncio

import asyncpg

from dray.errors import NoSpace, StoreAway, StoreError
from dray.hub.store.postgres.address import Address

OLDEST = 14
_BROKEN = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    # Being shut down, started, or asked by too many: the same question may be answered in a moment.
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.OutOfMemoryError,
    # Another one was chosen to lose, or the server was made a standby of another.
    asyncpg.TransactionRollbackError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)


class Unanswered(StoreAway):
    """A statement whose outcome nobody knows, or a server that is not there."""


class Refused(StoreError):
    """The server is there and turns this hub away: at a start that is told, later it is waited for."""


PASSING = (Unanswered, NoSpace)
"""What is asked again until it goes well, by a hub that runs."""


class OddValue(StoreError, ValueError):
    """A value that no column takes."""


def is_broken(error: BaseException) -> bool:
    """Whether a statement was not answered, rather than refused."""
    # The driver's word for a value that no column takes is an error of its interface, too.
    return isinstance(error, _BROKEN) and not isinstance(error, ValueError)


def translate(error: BaseException, address: Address, asked: str) -> StoreError | NoSpace:
    """Turn an error of a statement into the one that callers know."""
    if isinstance(error, asyncpg.DiskFullError):
        return NoSpace(f"cannot {asked}: the disk of the database {address} is full: free space there")
    if is_broken(error):
        return Unanswered(f"cannot {asked}: the database {address} does not answer ({tell(error)})")
    if isinstance(error, asyncpg.DataError):
        return OddValue(f"cannot {asked} in {address}: {tell(error)}")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return StoreError(
            f"cannot {asked}: {tell(error)}: let the user of {address} own the schema dray, or the database"
        )
    return StoreError(f"cannot {asked} in {address}: {tell(error)}")


def tell(error: BaseException) -> str:
    """An error in few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def explain_refusal(error: BaseException, address: Address) -> Refused | None:
    """Why a connection was refused for good, with what to do about it; None where a later try may be taken."""
    if isinstance(error, asyncpg.InvalidPasswordError | asyncpg.InvalidAuthorizationSpecificationError):
        return Refused(
            f"the database {address} does not let this user in: {tell(error)}. Set the password in DRAY_STORE, in "
            f"`store` of [hub] in config.toml, or in the file that PGPASSFILE names; pg_hba.conf of the server "
            f"says who may come"
        )
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return Refused(
            f"there is no such database: {tell(error)} ({address}). Make it with `createdb`, or name another one"
        )
    if isinstance(error, asyncpg.ClientConfigurationError | asyncpg.exceptions.UnsupportedClientFeatureError):
        return Refused(f"the address of the store cannot be used ({address}): {tell(error)}")
    if isinstance(error, asyncpg.UndefinedObjectError | asyncpg.ProtocolViolationError):
        return Refused(
            f"{address} does not take the settings that a hub needs ({tell(error)}): connect to the server itself, "
            f"not through a pooler"
        )
    return None


def tell_absent(error: BaseException, address: Address) -> StoreError:
    """Say that there is no server."""
    return Unanswered(
        f"no PostgreSQL answers at {address} ({tell(error)}): start it, or check host and port in the address"
    )


def tell_old(version: tuple[int, ...], address: Address) -> StoreError:
    """Say that the server is too old."""
    found = ".".join(map(str, version[:2]))
    return StoreError(f"{address} is PostgreSQL {found}: dray needs {OLDEST} or newer, upgrade the server")


def tell_read_only(address: Address) -> Refused:
    """Say that the server takes no writes."""
    return Refused(
        f"{address} takes no writes: it is a standby of another server, or its transactions are read-only by default. "
        f"Name the primary in the address"
    )


def tell_pooler(address: Address) -> StoreError:
    """Say that something stands between."""
    return StoreError(
        f"a connection pooler stands between this hub and {address}: a hub has few connections of its own and needs "
        f"them whole. Name the server's own host and port in the address"
    )
