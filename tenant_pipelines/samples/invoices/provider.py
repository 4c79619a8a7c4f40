"""A payment provider as an HTTP service in a process of its own, which misbehaves as it is told to.

It is the outside world that tests and demos believe. A charge is committed to its SQLite ledger,
through to the disk, before the first byte of an answer, and once per idempotency key where keys
are honoured, however many requests come at once and however often the process is killed. It bills
a request that it has read even when the client is gone by then. Faults and the counts of
``/requests`` live in memory: a restart knows its charges and keys, and strikes and counts anew.

Run it as ``python -m tenant_pipelines.samples.invoices.provider --ledger FILE [--port N]
[--behaviour JSON]``. It listens on 127.0.0.1, prints ``{"url": …}`` when it accepts connections,
and ends when its standard input is closed or on SIGTERM, leaving requests without an answer. One
process at a time uses a ledger. Starting it from Python is left to ``provider_process``.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import socket
import sqlite3
import struct
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple, NoReturn, Self, TypeVar

import uvicorn
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_STRICT = ConfigDict(strict=True, extra="forbid")
_PADDING_BYTES = 10_000_000
# an idle connection that closes by itself is a fault that nobody asked for
_KEEP_ALIVE_SECONDS = 86_400
_BUSY_SECONDS = 60

_T = TypeVar("_T")
_Seconds = Annotated[float, Field(ge=0, le=86_400)]


class FaultKind(StrEnum):
    """What goes wrong with a request.

    Attributes:
        TOO_MANY_REQUESTS: 429 with ``Retry-After``, the fault's ``seconds``; not billed.
        ERROR_BEFORE_BILLING: 500; not billed.
        ERROR_AFTER_BILLING: the same 500; billed.
        HANG_AFTER_BILLING: billed, and not answered for as long as the client waits.
        RESET_BEFORE_BILLING: a TCP reset instead of an answer; not billed.
        RESET_AFTER_BILLING: the same; billed.
        OTHER_AMOUNT: bills twice the amount, and says so.
        OTHER_CURRENCY: bills in EUR, or in USD when asked for EUR, and says so.
        LONG_ANSWER: billed; the answer has 10 MB more, in a field ``padding``.
        INVALID_JSON: billed; answers 200 with text that is no JSON.
        SLOW: billed; answers byte by byte, over the fault's ``seconds``.
    """

    TOO_MANY_REQUESTS = "too_many_requests"
    ERROR_BEFORE_BILLING = "error_before_billing"
    ERROR_AFTER_BILLING = "error_after_billing"
    HANG_AFTER_BILLING = "hang_after_billing"
    RESET_BEFORE_BILLING = "reset_before_billing"
    RESET_AFTER_BILLING = "reset_after_billing"
    OTHER_AMOUNT = "other_amount"
    OTHER_CURRENCY = "other_currency"
    LONG_ANSWER = "long_answer"
    INVALID_JSON = "invalid_json"
    SLOW = "slow"


@dataclass(frozen=True, slots=True, config=_STRICT)
class Fault:
    """What goes wrong with the first requests for an invoice.

    Of several faults that fit a request, the first one with ``times`` left strikes. A request whose
    key is known is not billed again by any of them.

    Attributes:
        invoice: whose requests; None for those of any invoice.
        kind: what goes wrong.
        times: how many requests it strikes, from 1; those that are refused with 400 do not count.
        seconds: 0 to 86,400 for ``slow``; the same, and whole, for ``too_many_requests``; else 0.
    """

    invoice: str | None
    kind: FaultKind
    times: Annotated[int, Field(ge=1)] = 1
    seconds: _Seconds = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind is FaultKind.TOO_MANY_REQUESTS and self.seconds % 1:
            raise ValueError("Retry-After takes whole seconds")
        if self.seconds and self.kind not in {FaultKind.TOO_MANY_REQUESTS, FaultKind.SLOW}:
            raise ValueError(f"{self.kind} takes no seconds")
        return self


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Behaviour:
    """How a provider treats the requests it gets; a ValueError says what is wrong with it.

    Attributes:
        honours_keys: whether a second request with a known idempotency key gets the first answer
            again, and 409 when its invoice, amount or currency reads differently.
        key_ttl_seconds: age, above 0, at which a key is forgotten; None for never.
        latency_seconds: wait before billing, 0 to 86,400.
        latency_after_seconds: wait between billing and the answer, 0 to 86,400.
        faults: what goes wrong.
    """

    honours_keys: bool = True
    key_ttl_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    latency_seconds: _Seconds = 0.0
    latency_after_seconds: _Seconds = 0.0
    faults: tuple[Fault, ...] = ()

    def to_json(self) -> str:
        """Return it as ``--behaviour`` takes it."""
        return _BEHAVIOUR.dump_json(self).decode()


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Charge:
    """One line of the provider's ledger.

    Attributes:
        charge: the provider's name for it.
        at: instant of billing, UTC.
        key: the idempotency key of its request, honoured or not; None without one.
        invoice: what was paid.
        amount: what it cost.
        currency: three capital letters.
    """

    charge: str
    at: datetime
    key: str | None
    invoice: str
    amount: Decimal
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class _Asked:
    """The body of ``POST /charges``."""

    invoice: Annotated[str, Field(min_length=1, max_length=255)]
    # as text: a JSON number is a float to most clients
    amount: Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,11})(\.[0-9]{1,6})?$")]
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")]


class _Known(NamedTuple):
    """A charge, and the request that it was billed for."""

    charge: Charge
    asked: _Asked


CHARGES = TypeAdapter(list[Charge])
_BEHAVIOUR = TypeAdapter(Behaviour)
_ASKED = TypeAdapter(_Asked)


class _KeyReused(Exception):
    """The key was used for another body."""


class _Ledger:
    """The charges in a SQLite file, which a kill leaves complete; for one thread."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode=WAL")
        # each commit reaches the disk: https://www.sqlite.org/pragma.html#pragma_synchronous
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS charges (seq INTEGER PRIMARY KEY AUTOINCREMENT, charge TEXT"
            " NOT NULL UNIQUE, at TEXT NOT NULL, key TEXT, invoice TEXT NOT NULL, amount TEXT NOT"
            " NULL, currency TEXT NOT NULL, asked TEXT NOT NULL) STRICT"
        )
        self._connection.execute(
            "CREATE INDEX IF NOT EXISTS charges_by_key ON charges (key, seq) WHERE key IS NOT NULL"
        )

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Open the one writing transaction; commits at the end, rolls back on any exception."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield

    def add(self, charge: Charge, asked: _Asked) -> None:
        self._connection.execute(
            "INSERT INTO charges (charge, at, key, invoice, amount, currency, asked)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                charge.charge,
                charge.at.isoformat(),
                charge.key,
                charge.invoice,
                str(charge.amount),
                charge.currency,
                _ASKED.dump_json(asked).decode(),
            ),
        )

    def newest(self, key: str) -> _Known | None:
        """Return what was billed last under a key."""
        found = self._read("WHERE key = ? ORDER BY seq DESC LIMIT 1", key)
        return found[0] if found else None

    def charges(self) -> list[Charge]:
        return [known.charge for known in self._read("ORDER BY seq")]

    def charges_of(self, key: str) -> list[Charge]:
        return [known.charge for known in self._read("WHERE key = ? ORDER BY seq", key)]

    def _read(self, which: str, *parameters: str) -> list[_Known]:
        rows = self._connection.execute(
            f"SELECT charge, at, key, invoice, amount, currency, asked FROM charges {which}",  # noqa: S608  (ours)
            parameters,
        )
        return [_known(*row) for row in rows]


def _known(
    charge: str, at: str, key: str | None, invoice: str, amount: str, currency: str, asked: str
) -> _Known:
    billed = Charge(
        charge=charge,
        at=datetime.fromisoformat(at),
        key=key,
        invoice=invoice,
        amount=Decimal(amount),
        currency=currency,
    )
    return _Known(billed, _ASKED.validate_json(asked))


class _Provider:
    """The endpoints; all of them run on the one thread of the event loop."""

    def __init__(self, ledger: _Ledger, behaviour: Behaviour) -> None:
        self._ledger = ledger
        self._behaviour = behaviour
        self._times_left = [fault.times for fault in behaviour.faults]
        self._charge_requests = 0

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/charges", self._charge, methods=["POST"]),
                Route("/charges", self._charges_of_key),
                Route("/ledger", self._whole_ledger),
                Route("/requests", self._requests),
            ]
        )

    async def _charge(self, request: Request) -> Response:
        self._charge_requests += 1
        try:
            asked = _parsed(_ASKED, await request.body())
            key = _key(request.headers.getlist("idempotency-key"))
        except ValueError as error:
            return _error(400, str(error))
        except ClientDisconnect:
            return _error(400, "half a request")
        fault = self._next_fault(asked.invoice)
        await asyncio.sleep(self._behaviour.latency_seconds)
        if fault is not None and (answer := _answer_before_billing(fault)) is not None:
            return answer
        try:
            charge, is_replayed = self._bill(asked, key, fault, at=datetime.now(UTC))
        except _KeyReused:
            return _error(409, "Idempotency-Key: it was used with another body")
        await asyncio.sleep(self._behaviour.latency_after_seconds)
        said = {
            "charge": charge.charge,
            "invoice": charge.invoice,
            "amount": str(charge.amount),
            "currency": charge.currency,
            "replayed": is_replayed,
        }
        return _answer_after_billing(fault, said)

    def _next_fault(self, invoice: str) -> Fault | None:
        for number, fault in enumerate(self._behaviour.faults):
            if self._times_left[number] and fault.invoice in {None, invoice}:
                self._times_left[number] -= 1
                return fault
        return None

    def _bill(
        self, asked: _Asked, key: str | None, fault: Fault | None, *, at: datetime
    ) -> tuple[Charge, bool]:
        """Return the committed charge, and whether it was billed earlier; awaits nothing."""
        with self._ledger.writing():
            known = self._ledger.newest(key) if key and self._behaviour.honours_keys else None
            if known is not None and self._remembers(known.charge, at):
                if known.asked != asked:
                    raise _KeyReused
                return known.charge, True
            charge = _charge_for(asked, key, fault, at=at)
            self._ledger.add(charge, asked)
        return charge, False

    def _remembers(self, charge: Charge, at: datetime) -> bool:
        ttl = self._behaviour.key_ttl_seconds
        return ttl is None or (at - charge.at).total_seconds() < ttl

    async def _charges_of_key(self, request: Request) -> Response:
        try:
            key = _key(request.query_params.getlist("key"))
        except ValueError as error:
            return _error(400, str(error))
        if key is None:
            return _error(400, "found no key; wanted /charges?key=KEY, or /ledger for all charges")
        return _json(CHARGES.dump_json(self._ledger.charges_of(key)))

    async def _whole_ledger(self, _request: Request) -> Response:
        return _json(CHARGES.dump_json(self._ledger.charges()))

    async def _requests(self, _request: Request) -> Response:
        return JSONResponse({"charges": self._charge_requests})


def _key(given: list[str]) -> str | None:
    """Return the key of a header or a query; ValueError when it is none, or more than one."""
    if given and (len(given) > 1 or not re.fullmatch("[!-~]{1,255}", given[0])):
        raise ValueError(f"key: found {given!r:.200}; wanted one of 1 to 255 ASCII characters")
    return given[0] if given else None


def _parsed(adapter: TypeAdapter[_T], text: str | bytes) -> _T:
    """Return what JSON says; ValueError with the first complaint, in one line."""
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "JSON"
    raise ValueError(f"{place}: found {first['input']!r:.200}; {first['msg']}")


def _charge_for(asked: _Asked, key: str | None, fault: Fault | None, *, at: datetime) -> Charge:
    kind = fault and fault.kind
    amount, currency = Decimal(asked.amount), asked.currency
    if kind is FaultKind.OTHER_AMOUNT:
        amount *= 2
    if kind is FaultKind.OTHER_CURRENCY:
        currency = "USD" if currency == "EUR" else "EUR"
    return Charge(
        charge=f"ch_{secrets.token_hex(8)}",
        at=at,
        key=key,
        invoice=asked.invoice,
        amount=amount,
        currency=currency,
    )


def _answer_before_billing(fault: Fault) -> Response | None:
    match fault.kind:
        case FaultKind.TOO_MANY_REQUESTS:
            return _error(429, "too many requests", {"Retry-After": str(int(fault.seconds))})
        case FaultKind.ERROR_BEFORE_BILLING:
            return _error(500, "internal error")
        case FaultKind.RESET_BEFORE_BILLING:
            return _Reset()
        case _:
            return None


def _answer_after_billing(fault: Fault | None, said: dict[str, Any]) -> Response:
    match fault and fault.kind:
        case FaultKind.ERROR_AFTER_BILLING:
            return _error(500, "internal error")
        case FaultKind.RESET_AFTER_BILLING:
            return _Reset()
        case FaultKind.HANG_AFTER_BILLING:
            return _Silence()
        case FaultKind.LONG_ANSWER:
            return JSONResponse({**said, "padding": "x" * _PADDING_BYTES})
        case FaultKind.INVALID_JSON:
            return Response("<html>It works!</html>", media_type="text/html")
        case FaultKind.SLOW if fault is not None:
            return _trickling(json.dumps(said).encode(), fault.seconds)
        case _:
            return JSONResponse(said)


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, headers)


def _trickling(content: bytes, seconds: float) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for byte in content:
            await asyncio.sleep(seconds / len(content))
            yield bytes([byte])

    return StreamingResponse(
        pieces(),
        media_type="application/json",
        headers={"Content-Length": str(len(content))},
    )


class _Silence(Response):
    """No answer for as long as the client waits for one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (ASGI)
        while (await receive())["type"] != "http.disconnect":
            pass


class _Reset(_Silence):
    """No answer, and the connection reset (RST, not FIN)."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport: asyncio.Transport = scope["state"]["transport"]
        # closing with SO_LINGER at 0 s sends a reset: socket(7)
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        transport.abort()
        await super().__call__(scope, receive, send)


class _Protocol(H11Protocol):
    """HTTP whose requests know their connection, so that a fault can cut it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        # uvicorn copies it into the scope of every request, as scope["state"]
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)


class _Server(uvicorn.Server):
    """A server that says where it is, and dies of a signal."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            address, port = listener.getsockname()
            sys.stdout.write(json.dumps({"url": f"http://{address}:{port}"}) + "\n")
            sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  (uvicorn's)
        # what was billed is committed, and uvicorn would answer a hanging request with 500
        os._exit(0)


class _Parser(argparse.ArgumentParser):
    """A command line whose complaints take one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main() -> None:
    """Serve until standard input is closed; exit 2 with one line when it cannot."""
    parser = _Parser(prog="provider", description="A payment provider that misbehaves on demand.")
    parser.add_argument("--ledger", type=Path, required=True, help="SQLite file, made when missing")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 for any free one")
    parser.add_argument("--behaviour", default="{}", help="a Behaviour as JSON")
    options = parser.parse_args()
    try:
        behaviour = _parsed(_BEHAVIOUR, options.behaviour)
        ledger = _Ledger(options.ledger)
        listener = socket.create_server(("127.0.0.1", options.port))
    except ValueError as error:
        parser.error(f"argument --behaviour: {error}")
    except sqlite3.Error as error:
        parser.error(f"argument --ledger: found {options.ledger}; {error}")
    except (OSError, OverflowError) as error:
        parser.error(f"argument --port: found {options.port}; {error}")
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    config = uvicorn.Config(
        _Provider(ledger, behaviour).application(),
        loop="asyncio",
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
    _Server(config).run(sockets=[listener])


def _end_with_standard_input() -> None:
    """End the process as soon as nobody can write to its standard input any more."""
    with contextlib.suppress(OSError):
        while sys.stdin is not None and os.read(sys.stdin.fileno(), 65_536):
            pass
    os._exit(0)


if __name__ == "__main__":
    main()
