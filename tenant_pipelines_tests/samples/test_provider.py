"""The payment provider, as its own process over HTTP: what it bills, says and survives."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import ValidationError

from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.samples.invoices.provider import Behaviour, Charge, Fault, FaultKind
from tenant_pipelines.samples.invoices.provider_process import Provider, running_provider

pytestmark = pytest.mark.slow

# far above anything that is normal, so that only a hang gets here
SECONDS = 60
# far above SECONDS: who waits for this one waits in vain
FOREVER_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def a_body(invoice: str = "inv-1", amount: str = "0.25", currency: str = "USD") -> dict[str, Any]:
    return {"invoice": invoice, "amount": amount, "currency": currency}


def connected(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(url.removeprefix("http://"), timeout=SECONDS)


def ask(url: str, path: str) -> Answer:
    with contextlib.closing(connected(url)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


def send(connection: http.client.HTTPConnection, body: object, key: str | None = None) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", "/charges", content, {"Idempotency-Key": key} if key else {})


def pay(url: str, body: object = None, *, key: str | None = None) -> Answer:
    with contextlib.closing(connected(url)) as connection:
        send(connection, a_body() if body is None else body, key)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


def paid(url: str, body: object = None, *, key: str | None = None) -> dict[str, Any]:
    answer = pay(url, body, key=key)
    assert answer.status == 200, answer
    document: dict[str, Any] = answer.document
    return document


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < until, f"not within {SECONDS} s: {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def started(*options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the command itself, for those who end it in their own way."""
    with subprocess.Popen(
        [sys.executable, "-m", "tenant_pipelines.samples.invoices.provider", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def url_of(process: "subprocess.Popen[bytes]") -> str:
    assert process.stdout is not None
    url: str = json.loads(process.stdout.readline())["url"]
    return url


def strikes(kind: FaultKind, *, seconds: float = 0) -> Behaviour:
    return Behaviour(faults=(Fault(None, kind, seconds=seconds),))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "provider.db"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """A provider that does as it should; each test has invoices and keys of its own."""
    with running_provider(tmp_path_factory.mktemp("good") / "provider.db") as provider:
        yield provider


def charges_for(provider: Provider, invoice: str) -> list[Charge]:
    return [charge for charge in provider.ledger() if charge.invoice == invoice]


# what it does when nothing goes wrong


def test_a_charge_is_answered_and_stands_in_the_ledger(ledger: Path) -> None:
    """The ledger in order, the answers and the counts agree, and money keeps its digits."""
    before = datetime.now(UTC)
    with running_provider(ledger) as provider:
        first = paid(provider.url, a_body("Ünïcode ☃\0", "10.00", "EUR"), key="key/1")
        second = paid(provider.url)
        assert [first, second] == [
            {
                "charge": first["charge"],
                "invoice": "Ünïcode ☃\0",
                "amount": "10.00",
                "currency": "EUR",
                "replayed": False,
            },
            {"charge": second["charge"], **a_body(), "replayed": False},
        ]
        charges = provider.ledger()
        raw = ask(provider.url, "/ledger")
        assert provider.charge_requests() == 2
    after = datetime.now(UTC)
    assert [charge.at.utcoffset() for charge in charges] == [timedelta(0), timedelta(0)]
    assert before <= charges[0].at <= charges[1].at <= after
    assert charges == [
        Charge(
            charge=first["charge"],
            at=charges[0].at,
            key="key/1",
            invoice="Ünïcode ☃\0",
            amount=Decimal("10.00"),
            currency="EUR",
        ),
        Charge(
            charge=second["charge"],
            at=charges[1].at,
            key=None,
            invoice="inv-1",
            amount=Decimal("0.25"),
            currency="USD",
        ),
    ]
    assert raw.headers["Content-Type"] == "application/json"
    assert [list(line) for line in raw.document] == [
        ["charge", "at", "key", "invoice", "amount", "currency"]
    ] * 2
    assert [line["amount"] for line in raw.document] == ["10.00", "0.25"]


def test_a_known_key_gets_the_first_answer_again(good: Provider) -> None:
    """The order of fields and the spaces of the body do not matter; nothing is billed."""
    first = paid(good.url, a_body("again"), key="again-1")
    reordered = b'{"currency":"USD",  "amount":"0.25","invoice":"again"}'
    second = paid(good.url, reordered, key="again-1")
    assert second == {**first, "replayed": True}
    assert [charge.charge for charge in charges_for(good, "again")] == [first["charge"]]


@pytest.mark.parametrize(
    "other",
    [
        a_body("reused-2"),
        a_body("reused-1", amount="0.250"),
        a_body("reused-1", currency="EUR"),
    ],
    ids=["invoice", "amount", "currency"],
)
def test_a_known_key_with_another_body_is_refused(good: Provider, other: dict[str, Any]) -> None:
    """One key must never stand for two payments."""
    key = f"reused-{secrets_of(other)}"
    first = paid(good.url, a_body("reused-1"), key=key)
    refused = pay(good.url, other, key=key)
    assert (refused.status, list(refused.document)) == (409, ["error"])
    assert [line["charge"] for line in ask(good.url, f"/charges?key={key}").document] == [
        first["charge"]
    ]


def secrets_of(body: dict[str, Any]) -> str:
    return "-".join(body.values())


def test_without_a_key_every_request_is_billed(good: Provider) -> None:
    """There is nothing that a provider could know them by."""
    charges = [paid(good.url, a_body("keyless"))["charge"] for _ in range(2)]
    assert [charge.charge for charge in charges_for(good, "keyless")] == charges
    assert len(set(charges)) == 2


def test_where_keys_are_not_honoured_they_are_only_noted(ledger: Path) -> None:
    """Most paid APIs: a second request is a second bill, and another body no conflict."""
    with running_provider(ledger, Behaviour(honours_keys=False)) as provider:
        answers = [paid(provider.url, key="k"), paid(provider.url, key="k")]
        answers.append(paid(provider.url, a_body("inv-2"), key="k"))
        assert [answer["replayed"] for answer in answers] == [False, False, False]
        assert [(charge.charge, charge.key) for charge in provider.ledger()] == [
            (answer["charge"], "k") for answer in answers
        ]


def test_a_key_leads_to_the_charges_under_it(good: Provider) -> None:
    """How a step asks what became of a request whose answer it never saw."""
    key = "asked/for?&+%"
    charge = paid(good.url, a_body("asked-for"), key=key)["charge"]
    paid(good.url, a_body("asked-for"), key="another")
    found = ask(good.url, f"/charges?key={quote(key, safe='')}")
    assert found.document == [
        line for line in ask(good.url, "/ledger").document if line["charge"] == charge
    ]
    assert len(found.document) == 1
    unknown = ask(good.url, "/charges?key=unknown")
    assert (unknown.status, unknown.document) == (200, [])
    assert [ask(good.url, path).status for path in ("/charges", "/charges?key=")] == [400, 400]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"invoice": "\\ud800", "amount": "1", "currency": "USD"}',
        [],
        None,
        {"invoice": "inv-1", "amount": "0.25"},
        {**a_body(), "tip": "1"},
        {**a_body(), "amount": 0.25},
        {**a_body(), "invoice": None},
        a_body(invoice=""),
        *(a_body(amount=amount) for amount in ("", "-1", "1e3", "NaN", ".5", "1,0", "٣", "1\n")),
        *(a_body(currency=currency) for currency in ("", "usd", "EURO", "USD\n")),
    ],
    ids=lambda body: repr(body)[:60],
)
def test_a_bad_body_is_refused_and_not_billed(good: Provider, body: object) -> None:
    """The refusal says what is wrong; the request is still one on the wire."""
    before = (good.ledger(), good.charge_requests())
    refused = pay(good.url, json.dumps(body).encode() if body is None else body, key="bad")
    assert (refused.status, list(refused.document)) == (400, ["error"])
    assert re.search("found|invalid", refused.document["error"])
    assert (good.ledger(), good.charge_requests()) == (before[0], before[1] + 1)


@pytest.mark.parametrize("key", [" ", "two words", "ünïcode", "x" * 256])
def test_a_bad_key_is_refused_and_not_billed(good: Provider, key: str) -> None:
    """A key that is dropped or changed on the way would be no key at all."""
    before = good.ledger()
    refused = pay(good.url, key=key)
    assert (refused.status, list(refused.document)) == (400, ["error"])
    assert good.ledger() == before


def test_two_keys_in_one_request_are_refused(good: Provider) -> None:
    """Nobody could say which of them counts."""
    before = good.ledger()
    content = json.dumps(a_body()).encode()
    with contextlib.closing(connected(good.url)) as connection:
        connection.putrequest("POST", "/charges")
        for name, value in (("Content-Length", len(content)), *[("Idempotency-Key", "k")] * 2):
            connection.putheader(name, str(value))
        connection.endheaders(content)
        assert connection.getresponse().status == 400
    assert good.ledger() == before


def test_it_listens_on_loopback_alone(good: Provider) -> None:
    """A server on every address of the machine would listen there too."""
    host, port = good.url.removeprefix("http://").split(":")
    assert host == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), timeout=SECONDS)


# at once


@pytest.mark.parametrize("latency_seconds", [0.0, 0.05], ids=["at once", "after a wait"])
def test_requests_with_one_key_at_one_moment_bill_once(
    ledger: Path, latency_seconds: float
) -> None:
    """Eight threads, twenty keys: one is billed, seven get its answer again."""
    threads, keys = 8, [f"key-{number}" for number in range(20)]
    barrier = threading.Barrier(threads)
    with running_provider(ledger, Behaviour(latency_seconds=latency_seconds)) as provider:

        def race(_thread: int) -> list[dict[str, Any]]:
            answers = []
            for key in keys:
                barrier.wait(SECONDS)
                answers.append(paid(provider.url, a_body(key), key=key))
            return answers

        with ThreadPoolExecutor(threads) as pool:
            answers = list(pool.map(race, range(threads)))
        billed = provider.ledger()
        assert provider.charge_requests() == threads * len(keys)
    assert [charge.key for charge in billed] == keys
    for number, charge in enumerate(billed):
        of_key = [answered[number] for answered in answers]
        assert {answer["charge"] for answer in of_key} == {charge.charge}
        assert sorted(answer["replayed"] for answer in of_key) == [False] + [True] * (threads - 1)


def test_requests_without_keys_at_one_moment_are_all_billed(ledger: Path) -> None:
    """None is lost, and the ledger has each answer's charge."""
    threads, rounds = 8, 10
    with running_provider(ledger) as provider:
        with ThreadPoolExecutor(threads) as pool:
            answers = list(pool.map(lambda _: paid(provider.url), range(threads * rounds)))
        assert sorted(charge.charge for charge in provider.ledger()) == sorted(
            answer["charge"] for answer in answers
        )
    assert len({answer["charge"] for answer in answers}) == threads * rounds


# when


def test_before_its_latency_has_passed_nothing_is_billed(ledger: Path) -> None:
    """A process that dies here was not charged, and cannot know it."""
    behaviour = Behaviour(latency_seconds=FOREVER_SECONDS)
    with (
        running_provider(ledger, behaviour) as provider,
        contextlib.closing(connected(provider.url)) as connection,
    ):
        send(connection, a_body())
        wait_until(lambda: provider.charge_requests() == 1, "the request's arrival")
        assert provider.ledger() == []


def test_a_charge_is_billed_before_its_answer(ledger: Path) -> None:
    """A process that dies here was charged, and cannot know it."""
    behaviour = Behaviour(latency_after_seconds=FOREVER_SECONDS)
    with (
        running_provider(ledger, behaviour) as provider,
        contextlib.closing(connected(provider.url)) as connection,
    ):
        send(connection, a_body())
        wait_until(lambda: provider.ledger() != [], "the charge")
        assert connection.sock is not None
        connection.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.sock.recv(1)


def test_a_request_whose_client_is_gone_is_billed_all_the_same(ledger: Path) -> None:
    """The death of a client does not call back what it has sent."""
    with running_provider(ledger, Behaviour(latency_seconds=0.3)) as provider:
        with contextlib.closing(connected(provider.url)) as connection:
            send(connection, a_body(), "left-behind")
        wait_until(lambda: provider.ledger() != [], "the charge")
        assert [charge.key for charge in provider.ledger()] == ["left-behind"]
        assert paid(provider.url, key="left-behind")["replayed"]


def test_half_a_request_is_not_billed(ledger: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A client that dies while it sends has bought nothing, and nobody reads a traceback."""
    with running_provider(ledger) as provider:
        with contextlib.closing(connected(provider.url)) as connection:
            connection.putrequest("POST", "/charges")
            connection.putheader("Content-Length", "1000")
            connection.endheaders(json.dumps(a_body()).encode())
            wait_until(lambda: provider.charge_requests() == 1, "the request's arrival")
        paid(provider.url, a_body("whole"))
        assert [charge.invoice for charge in provider.ledger()] == ["whole"]
    assert capfd.readouterr().err == ""


def test_a_key_is_forgotten_when_its_time_has_passed(ledger: Path) -> None:
    """A blind retry after the provider's time to live pays again."""
    ttl = timedelta(seconds=0.2)
    with running_provider(ledger, Behaviour(key_ttl_seconds=ttl.total_seconds())) as provider:
        first = paid(provider.url, key="k")
        (charge,) = provider.ledger()
        wait_until(lambda: datetime.now(UTC) > charge.at + ttl, "the key's end")
        second = paid(provider.url, a_body("inv-2"), key="k")
        assert [first["replayed"], second["replayed"]] == [False, False]
        found = ask(provider.url, "/charges?key=k").document
        assert [line["charge"] for line in found] == [first["charge"], second["charge"]]


def test_a_key_is_known_until_then_and_the_newest_charge_counts(ledger: Path) -> None:
    """The time to live counts from the charge, also across a restart."""
    with running_provider(ledger, Behaviour(honours_keys=False)) as provider:
        older, newer = (paid(provider.url, key="k")["charge"] for _ in range(2))
    with running_provider(ledger, Behaviour(key_ttl_seconds=FOREVER_SECONDS)) as provider:
        again = paid(provider.url, key="k")
        assert (again["charge"], again["replayed"]) == (newer, True)
        assert [charge.charge for charge in provider.ledger()] == [older, newer]


# what goes wrong when it is told to


def test_too_many_requests(ledger: Path) -> None:
    """Refused with the seconds to wait, not billed, then served."""
    with running_provider(ledger, strikes(FaultKind.TOO_MANY_REQUESTS, seconds=7)) as provider:
        refused = pay(provider.url, key="k")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "7")
        assert provider.ledger() == []
        assert not paid(provider.url, key="k")["replayed"]


def test_errors_before_and_after_billing_look_alike(ledger: Path) -> None:
    """Only the ledger tells them apart."""
    behaviour = Behaviour(
        faults=(
            Fault("before", FaultKind.ERROR_BEFORE_BILLING),
            Fault("after", FaultKind.ERROR_AFTER_BILLING),
        )
    )
    with running_provider(ledger, behaviour) as provider:
        answers = [pay(provider.url, a_body(name), key=name) for name in ("before", "after")]
        assert [answer.status for answer in answers] == [500, 500]
        assert answers[0].body == answers[1].body
        assert [charge.invoice for charge in provider.ledger()] == ["after"]
        again = [paid(provider.url, a_body(name), key=name) for name in ("before", "after")]
        assert [answer["replayed"] for answer in again] == [False, True]
        assert provider.charge_requests() == 4


def test_a_hang_after_billing_lasts_as_long_as_the_client_waits(ledger: Path) -> None:
    """Others are served meanwhile, and so is the client's next try."""
    with (
        running_provider(ledger, strikes(FaultKind.HANG_AFTER_BILLING)) as provider,
        contextlib.closing(connected(provider.url)) as waiting,
    ):
        send(waiting, a_body(), "k")
        wait_until(lambda: provider.ledger() != [], "the charge")
        assert paid(provider.url, key="k")["replayed"]
        assert waiting.sock is not None
        waiting.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            waiting.sock.recv(1)
        assert len(provider.ledger()) == 1


@pytest.mark.parametrize(
    ("kind", "billed"),
    [(FaultKind.RESET_BEFORE_BILLING, []), (FaultKind.RESET_AFTER_BILLING, ["k"])],
)
def test_a_reset_is_a_real_one(
    ledger: Path, kind: FaultKind, billed: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Not one byte of an answer, and not the orderly end that RemoteDisconnected would be."""
    with running_provider(ledger, strikes(kind)) as provider:
        with pytest.raises(ConnectionResetError) as raised:
            pay(provider.url, key="k")
        assert raised.type is ConnectionResetError
        assert [charge.key for charge in provider.ledger()] == billed
        assert paid(provider.url, key="k")["replayed"] is bool(billed)
    assert capfd.readouterr().err == ""


def test_another_amount_is_billed_and_said(ledger: Path) -> None:
    """And said again for the key, whose body is the one that was sent."""
    with running_provider(ledger, strikes(FaultKind.OTHER_AMOUNT)) as provider:
        first = paid(provider.url, key="k")
        assert first["amount"] == "0.50"
        assert [charge.amount for charge in provider.ledger()] == [Decimal("0.50")]
        assert paid(provider.url, key="k") == {**first, "replayed": True}
        assert pay(provider.url, a_body(amount="0.50"), key="k").status == 409


def test_another_currency_is_billed_and_said(ledger: Path) -> None:
    """EUR for all but EUR."""
    behaviour = Behaviour(faults=(Fault(None, FaultKind.OTHER_CURRENCY, 3),))
    with running_provider(ledger, behaviour) as provider:
        asked = ["USD", "CHF", "EUR"]
        said = [paid(provider.url, a_body(currency=currency))["currency"] for currency in asked]
        assert said == [charge.currency for charge in provider.ledger()] == ["EUR", "EUR", "USD"]


def test_a_long_answer_is_valid(ledger: Path) -> None:
    """It holds what every answer holds, and 10 MB more."""
    with running_provider(ledger, strikes(FaultKind.LONG_ANSWER)) as provider:
        long = paid(provider.url, key="k")
        assert len(long.pop("padding")) == 10_000_000
        assert paid(provider.url, key="k") == {**long, "replayed": True}


def test_an_answer_that_is_no_json_was_billed(ledger: Path) -> None:
    """The money is gone although nobody can read the receipt."""
    with running_provider(ledger, strikes(FaultKind.INVALID_JSON)) as provider:
        answer = pay(provider.url, key="k")
        assert answer.status == 200
        with pytest.raises(json.JSONDecodeError):
            json.loads(answer.body)
        assert paid(provider.url, key="k")["replayed"]


def test_a_slow_answer_trickles(ledger: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A time limit on each read never strikes; the charge is there before the first byte."""
    with running_provider(ledger, strikes(FaultKind.SLOW, seconds=SECONDS)) as provider:
        with contextlib.closing(connected(provider.url)) as connection:
            send(connection, a_body(), "k")
            answer = connection.getresponse()
            (charge,) = provider.ledger()
            assert answer.read(1) == b"{"
            assert len(answer.peek()) < int(answer.headers["Content-Length"]) - 1
        assert paid(provider.url, key="k")["charge"] == charge.charge
    assert capfd.readouterr().err == ""


def test_a_slow_answer_is_whole_in_the_end(ledger: Path) -> None:
    """It is an answer like any other."""
    with running_provider(ledger, strikes(FaultKind.SLOW, seconds=0.1)) as provider:
        slow = paid(provider.url, key="k")
        assert paid(provider.url, key="k") == {**slow, "replayed": True}


def test_faults_strike_in_order_and_as_often_as_they_say(ledger: Path) -> None:
    """Each invoice has its own, any invoice takes the next, refused requests take none."""
    behaviour = Behaviour(
        faults=(
            Fault("inv-1", FaultKind.TOO_MANY_REQUESTS, times=2),
            Fault(None, FaultKind.ERROR_BEFORE_BILLING),
            Fault("inv-2", FaultKind.INVALID_JSON),
        )
    )
    with running_provider(ledger, behaviour) as provider:
        assert pay(provider.url, b"no json").status == 400
        asked = ["inv-1", "inv-2", "inv-1", "inv-1", "inv-2", "inv-2"]
        answers = [pay(provider.url, a_body(invoice)) for invoice in asked]
        assert [answer.status for answer in answers] == [429, 500, 429, 200, 200, 200]
        assert answers[4].body.startswith(b"<html>")
        assert [charge.invoice for charge in provider.ledger()] == ["inv-1", "inv-2", "inv-2"]
        assert provider.charge_requests() == 7


@pytest.mark.parametrize("kind", list(FaultKind))
def test_no_fault_bills_a_known_key_again(ledger: Path, kind: FaultKind) -> None:
    """The faults are in the answers; the promise of the key stands."""
    behaviour = Behaviour(faults=(Fault("inv-1", kind, times=3, seconds=0),))
    with running_provider(ledger, behaviour) as provider:
        for _ in range(4):
            with contextlib.closing(connected(provider.url)) as connection:
                send(connection, a_body(), "k")
                assert connection.sock is not None
                hangs = kind is FaultKind.HANG_AFTER_BILLING
                connection.sock.settimeout(0.1 if hangs else SECONDS)
                with contextlib.suppress(TimeoutError, ConnectionResetError):
                    connection.getresponse().read()
        assert len(provider.ledger()) == 1


# what ends it, and what it survives


def test_charges_and_keys_survive_a_kill(ledger: Path) -> None:
    """Answered or not, what was billed is billed after the restart."""
    fault = Fault("inv-2", FaultKind.HANG_AFTER_BILLING)
    options = ("--ledger", str(ledger), "--behaviour", Behaviour(faults=(fault,)).to_json())
    with started(*options) as process:
        provider = Provider(url_of(process))
        answered = paid(provider.url, key="answered")
        with contextlib.closing(connected(provider.url)) as connection:
            send(connection, a_body("inv-2"), "unanswered")
            wait_until(lambda: len(provider.ledger()) == 2, "the second charge")
            before = provider.ledger()
            process.kill()
            assert process.wait(SECONDS) == -signal.SIGKILL
            with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
                connection.getresponse()
    with running_provider(ledger) as provider:
        assert provider.ledger() == before
        assert paid(provider.url, key="answered") == {**answered, "replayed": True}
        again = paid(provider.url, a_body("inv-2"), key="unanswered")
        assert (again["charge"], again["replayed"]) == (before[1].charge, True)
        assert pay(provider.url, a_body("inv-3"), key="answered").status == 409
        assert provider.ledger() == before


def test_every_answer_before_a_kill_is_in_the_ledger_after_it(ledger: Path) -> None:
    """Killed in the middle of eight clients' requests, ten times on one ledger."""
    for _ in range(10):
        answered: list[str] = []
        with started("--ledger", str(ledger)) as process:
            url = url_of(process)

            def spend(url: str, answered: list[str]) -> None:
                with contextlib.suppress(ConnectionError, http.client.HTTPException):
                    while True:
                        answered.append(paid(url)["charge"])

            clients = [threading.Thread(target=spend, args=(url, answered)) for _ in range(8)]
            for client in clients:
                client.start()
            wait_until(lambda answered=answered: len(answered) > 20, "twenty answers")  # type: ignore[misc]  # mypy#9877
            process.kill()
            for client in clients:
                client.join(SECONDS)
        with running_provider(ledger) as provider:
            kept = [charge.charge for charge in provider.ledger()]
        assert set(answered) <= set(kept)
        assert len(kept) == len(set(kept))


@pytest.mark.parametrize("end", ["standard input", "SIGTERM", "SIGINT"])
def test_it_ends_at_once_and_leaves_a_hanging_request_unanswered(ledger: Path, end: str) -> None:
    """Nobody has to wait for a client that waits for ever."""
    behaviour = strikes(FaultKind.HANG_AFTER_BILLING).to_json()
    with started("--ledger", str(ledger), "--behaviour", behaviour) as process:
        provider = Provider(url_of(process))
        with contextlib.closing(connected(provider.url)) as connection:
            send(connection, a_body())
            wait_until(lambda: provider.ledger() != [], "the charge")
            if end == "standard input":
                assert process.stdin is not None
                process.stdin.close()
            else:
                process.send_signal(signal.Signals[end])
            assert process.wait(SECONDS) == 0
            with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
                connection.getresponse()


def test_it_takes_the_port_that_it_is_given(ledger: Path) -> None:
    """Also the one that its killed predecessor had."""
    with started("--ledger", str(ledger)) as process:
        url = url_of(process)
        paid(url)
    with started("--ledger", str(ledger), "--port", url.rpartition(":")[2]) as process:
        assert url_of(process) == url
        assert len(Provider(url).ledger()) == 1


@pytest.mark.parametrize("leaves_by", ["its end", "an exception"])
def test_leaving_the_block_ends_the_process(ledger: Path, leaves_by: str) -> None:
    """A failing test leaves nothing behind."""
    with contextlib.suppress(ZeroDivisionError), running_provider(ledger) as provider:
        url = provider.url
        if leaves_by == "an exception":
            raise ZeroDivisionError
    with pytest.raises(ConnectionRefusedError):
        ask(url, "/ledger")


def test_a_killed_starter_leaves_no_provider_behind(ledger: Path) -> None:
    """Not even where nothing could be cleaned up, with a request that hangs."""
    script = (
        "import sys; from pathlib import Path\n"
        "from tenant_pipelines.samples.invoices.provider import *\n"
        "from tenant_pipelines.samples.invoices.provider_process import running_provider\n"
        "fault = Fault(None, FaultKind.HANG_AFTER_BILLING)\n"
        "with running_provider(Path(sys.argv[1]), Behaviour(faults=(fault,))) as provider:\n"
        "    print(provider.url, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(ledger)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as starter:
        assert starter.stdout is not None
        url = starter.stdout.readline().decode().strip()
        (pid,) = children_of(starter.pid)
        assert os.getpgid(pid) == pid
        with contextlib.closing(connected(url)) as connection:
            send(connection, a_body())
            wait_until(lambda: Provider(url).ledger() != [], "the charge")
            starter.kill()
            wait_until(lambda: is_refused(url), "the provider's end")


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_refused(url: str) -> bool:
    try:
        ask(url, "/ledger")
    except (ConnectionError, http.client.RemoteDisconnected):
        return True
    return False


# what it refuses to start with


@pytest.mark.parametrize(
    ("behaviour", "complaint"),
    [
        ("{", "JSON: "),
        ("[]", "JSON: found []"),
        ('{"latency": 1}', "latency: "),
        ('{"latency_seconds": "1"}', "latency_seconds: found '1'"),
        ('{"latency_seconds": -1}', "latency_seconds: found -1"),
        ('{"latency_after_seconds": 1e999}', "latency_after_seconds: found inf"),
        ('{"key_ttl_seconds": 0}', "key_ttl_seconds: found 0"),
        ('{"honours_keys": 1}', "honours_keys: found 1"),
        ('{"faults": [{"kind": "slow"}]}', "faults.0.invoice: "),
        ('{"faults": [{"invoice": "a", "kind": "bang"}]}', "faults.0.kind: found 'bang'"),
        ('{"faults": [{"invoice": null, "kind": "slow", "times": 0}]}', "faults.0.times: found 0"),
        (
            '{"faults": [{"invoice": null, "kind": "error_after_billing", "seconds": 1}]}',
            "error_after_billing takes no seconds",
        ),
        (
            '{"faults": [{"invoice": null, "kind": "too_many_requests", "seconds": 0.5}]}',
            "Retry-After takes whole seconds",
        ),
    ],
)
def test_a_bad_behaviour_is_one_line_and_exit_2(
    ledger: Path, behaviour: str, complaint: str
) -> None:
    """The line names the place and what was found; the ledger is not made."""
    line = the_line_of("--ledger", str(ledger), "--behaviour", behaviour)
    assert line.startswith("provider: argument --behaviour: ")
    assert complaint in line
    assert not ledger.exists()


def test_a_bad_ledger_or_port_is_one_line_and_exit_2(tmp_path: Path) -> None:
    """A file of somebody else is left as it is."""
    ledger, foreign = str(tmp_path / "provider.db"), tmp_path / "foreign.txt"
    foreign.write_text("not a database, and long enough for the header of one" * 10)
    absent = str(tmp_path / "absent" / "provider.db")
    before = foreign.read_bytes()
    lines = [
        the_line_of("--ledger", str(foreign)),
        the_line_of("--ledger", absent),
        the_line_of("--ledger", ledger, "--port", "65536"),
        the_line_of("--ledger", ledger, "--port", "http"),
        the_line_of(),
    ]
    assert [line.split(":")[1] for line in lines[:4]] == [
        " argument --ledger",
        " argument --ledger",
        " argument --port",
        " argument --port",
    ]
    assert "--ledger" in lines[4]
    assert foreign.read_bytes() == before


def the_line_of(*options: str) -> str:
    """Return the one line that the command complains with."""
    ended = subprocess.run(
        [sys.executable, "-m", "tenant_pipelines.samples.invoices.provider", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    return line


def test_a_provider_that_does_not_start_is_an_error_and_not_a_wait(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It names the ledger; the process's own words are on standard error."""
    path = tmp_path / "absent" / "provider.db"
    with pytest.raises(InvalidRequest, match=re.escape(str(path))), running_provider(path):
        pass
    assert "unable to open database file" in capfd.readouterr().err


def test_a_bad_behaviour_is_refused_where_it_is_made() -> None:
    """A test that misspells a fault must not test the absence of it."""
    for make in (
        lambda: Fault("inv-1", "bang"),  # type: ignore[arg-type]  # the mistake
        lambda: Fault("inv-1", FaultKind.SLOW, times=0),
        lambda: Behaviour(latency_seconds=float("inf")),
        lambda: Behaviour(faults=("slow",)),  # type: ignore[arg-type]  # the mistake
    ):
        with pytest.raises(ValidationError):
            make()
