"""The three ways out: a signed webhook, mail, a command on the hub. Each one try, with an end to its time.

What may be tried again and what never helps is told by the kind of failure. Nothing that a job said goes into a header
or onto a command line as it stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import signal
import smtplib
import ssl
import stat
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from concurrent.futures import Executor
from email.message import EmailMessage
from functools import cache
from pathlib import Path

import dray
from dray.core.model.policies.notifications import Smtp
from dray.core.model.specs.notifying import Url
from dray.hub.notifications.addresses import Forbidden, check_addresses, find_addresses

SEND_S = 15.0
COMMAND_S = 30.0
ANSWER_BYTES = 16 << 10
SECRETS = "secrets"
# Answers after which the same request may do better: everything else of 3xx and 4xx will not.
_AGAIN = frozenset((408, 425, 429))
_KEPT = ("PATH", "HOME", "LANG")


class Failed(Exception):
    """A try that failed; `final` where another one would fail the same way."""

    def __init__(self, what: str, final: bool = False) -> None:
        super().__init__(what)
        self.final = final


def read_secret(home: Path, name: str) -> bytes:
    """Read a secret that only the hub's account may read; one that others can read is none."""
    path = home / SECRETS / name
    try:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Failed(f"{SECRETS}/{name} can be read by others: chmod 600 it")
        found = path.read_bytes().strip()
    except OSError as fault:
        raise Failed(f"{SECRETS}/{name} in the hub's home cannot be read: {fault.strerror}") from None
    if not found:
        raise Failed(f"{SECRETS}/{name} in the hub's home is empty")
    return found


def sign(secret: bytes, at_s: int, body: bytes) -> str:
    """Sign a body with the time at which it is sent, so that an old one cannot be sent again by somebody else."""
    return hmac.new(secret, b"%d." % at_s + body, "sha256").hexdigest()


# --- webhooks ---------------------------------------------------------------------------------------------------------


async def send_webhook(
    url: Url,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    secret: bytes,
    pool: Executor,
    networks: Sequence[str] | None,
) -> str:
    """Post a body and give what was answered. `networks` are a job's; None for a receiver of the policy."""
    at_s = int(time.time())
    sent = [("Host", url.authority), ("User-Agent", f"dray/{dray.__version__}"), ("Connection", "close")]
    sent += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    sent += [*headers, ("X-Dray-Time", str(at_s))]
    if secret:
        sent.append(("X-Dray-Signature", f"v1={sign(secret, at_s, body)}"))
    head = "".join(f"{name}: {value}\r\n" for name, value in sent)
    request = f"POST {url.path} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body
    try:
        async with asyncio.timeout(SEND_S):
            found = await find_addresses(url, pool)
            if networks is not None:
                check_addresses(url, found, networks)
            return await _post(url, found, request)
    except TimeoutError:
        raise Failed(f"no answer within {SEND_S:g} s") from None
    except Forbidden as fault:
        raise Failed(str(fault), final=True) from None
    except (OSError, ssl.SSLError) as fault:
        raise Failed(f"{url.authority} cannot be reached: {fault.strerror or fault}") from None


async def _post(url: Url, addresses: Sequence[str], request: bytes) -> str:
    trust = await asyncio.to_thread(_trust) if url.scheme == "https" else None
    name = url.host if trust is not None else None
    fault: OSError = OSError("its name has no address")
    for address in addresses:
        try:
            reader, writer = await asyncio.open_connection(
                address, url.port, ssl=trust, server_hostname=name, limit=ANSWER_BYTES
            )
            break
        except OSError as error:
            fault = error
    else:
        raise fault
    try:
        writer.write(request)
        await writer.drain()
        line = await reader.readline()
    except ValueError:
        raise Failed("the answer begins with an endless line") from None
    finally:
        writer.close()
    return _judge(line)


def _judge(line: bytes) -> str:
    parts = line.split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/") or not parts[1].isdigit():
        raise Failed("what answers there does not speak HTTP")
    status = int(parts[1])
    if 200 <= status < 300:
        return f"answered {status}"
    if 300 <= status < 400:
        raise Failed(f"answered {status}: redirects are not followed, name the address itself", final=True)
    raise Failed(f"answered {status}", final=status < 500 and status not in _AGAIN)


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


# --- mail -------------------------------------------------------------------------------------------------------------


async def send_mail(
    smtp: Smtp, to: Sequence[str], told_id: str, text: str, details: str, password: bytes, pool: Executor
) -> str:
    """Hand one message to the site's mail server."""
    message = EmailMessage()
    message["From"], message["To"] = smtp.sender, ", ".join(to)
    # One line: a name with a line break in it must not begin a header of its own.
    message["Subject"] = " ".join(text.split())[:200]
    message["Message-ID"] = f"<{told_id}@{smtp.sender.rpartition('@')[2]}>"
    message["X-Dray-Id"] = told_id
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(f"{text}\n\n{details}\n")

    def hand_over() -> str:
        kind = smtplib.SMTP_SSL if smtp.tls == "tls" else smtplib.SMTP
        with kind(smtp.host, smtp.port, timeout=SEND_S) as server:
            if smtp.tls == "starttls":
                server.starttls(context=_trust())
            if smtp.user:
                server.login(smtp.user, password.decode())
            refused = server.send_message(message)
        return f"taken by {smtp.host}" + (f", but not for {', '.join(refused)}" if refused else "")

    try:
        return await asyncio.get_running_loop().run_in_executor(pool, hand_over)
    except smtplib.SMTPRecipientsRefused as fault:
        codes = sorted({code for code, _ in fault.recipients.values()})
        raise Failed(
            f"refused for all receivers: {codes}", final=all(code >= 500 for code in codes)
        ) from None
    except (smtplib.SMTPException, OSError) as fault:
        said = getattr(fault, "smtp_error", b"") or str(fault)
        words = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        raise Failed(f"{smtp.host} did not take it: {words[:200]}") from None


# --- commands ---------------------------------------------------------------------------------------------------------


async def run_command(argv: Sequence[str], env: dict[str, str], body: bytes) -> str:
    """Run a command of the policy with the body on its standard input; exit code 0 means that it was told."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=DEVNULL, stderr=PIPE, env=kept | env, cwd="/", start_new_session=True
        )
    except OSError as fault:
        raise Failed(f"{argv[0]} cannot be run: {fault.strerror}") from None
    try:
        async with asyncio.timeout(COMMAND_S):
            _, said = await process.communicate(body)
    except TimeoutError:
        raise Failed(f"not done within {COMMAND_S:g} s, and ended") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        words = " ".join(said.decode("utf-8", "replace").split())[-200:]
        raise Failed(f"exit code {process.returncode}" + (f": {words}" if words else ""))
    return "exit code 0"
