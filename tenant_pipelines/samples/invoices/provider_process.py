"""Starts a payment provider for the length of a block, and asks it what really happened.

The provider runs in a process group of its own and is gone when the block is left, however it is
left: on the way out it is killed, which its ledger survives. When the process that started it is
killed instead, the pipe to the provider's standard input closes with it and with whatever it forked
without an exec, and the provider ends itself.
"""

import contextlib
import json
import select
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.samples.invoices.provider import CHARGES, Behaviour, Charge

_MODULE = "tenant_pipelines.samples.invoices.provider"
# far above what is normal on a busy machine, so that only a hang gets here
_HANG_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Provider:
    """A running provider, asked over HTTP.

    Attributes:
        url: where it is, without a slash at the end.
    """

    url: str

    def ledger(self) -> list[Charge]:
        """Return every charge it ever billed, oldest first."""
        return CHARGES.validate_json(self._get("/ledger"))

    def charge_requests(self) -> int:
        """Return how many ``POST /charges`` have reached this process, failed ones included."""
        counts: dict[str, int] = json.loads(self._get("/requests"))
        return counts["charges"]

    def _get(self, path: str) -> bytes:
        # whatever proxy the environment names, it does not lead to this machine
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.url + path, timeout=_HANG_SECONDS) as answer:
            content: bytes = answer.read()
        return content


@contextlib.contextmanager
def running_provider(ledger: Path, behaviour: Behaviour = Behaviour()) -> Iterator[Provider]:
    """Run a provider on a free port of 127.0.0.1 while the block runs.

    Args:
        ledger: its SQLite file, made when missing, in a folder that exists; no other provider uses
            it meanwhile.
        behaviour: how it treats requests.

    Raises:
        InvalidRequest: it did not start; its own words are on standard error.
    """
    command = [sys.executable, "-m", _MODULE]
    command += ["--ledger", str(ledger), "--behaviour", behaviour.to_json()]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield Provider(_announced_url(process, ledger))
        finally:
            process.kill()


def _announced_url(process: "subprocess.Popen[bytes]", ledger: Path) -> str:
    """Return what the process says when it accepts connections."""
    pipe: Any = process.stdout
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    is_silent = not poller.poll(_HANG_SECONDS * 1000)
    line = b"" if is_silent else pipe.readline()
    if not line:
        raise InvalidRequest(
            place=f"provider with the ledger {ledger}",
            found=f"no word within {_HANG_SECONDS} s" if is_silent else "an end without a word",
            wanted="the URL of a running provider",
            fix="Read its standard error and run it again.",
        )
    url: str = json.loads(line)["url"]
    return url
