import os
import threading
from pathlib import Path

import pytest

from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.errors import LocksUnusable
from tenant_pipelines_tests.engine.lock_children import (
    TIMEOUT_SECONDS,
    Children,
    tell,
    wait_for_parent,
)


def hold(folder: str, tenant: str) -> None:
    leases = TenantLeases(Path(folder))
    tell(leases.try_take(tenant))
    wait_for_parent()
    leases.give_back(tenant)
    tell("given back")
    wait_for_parent()


def use_after_fork(folder: str) -> None:
    leases = TenantLeases(Path(folder))
    assert leases.try_take("acme")
    # what another thread may hold at the instant of the fork
    with leases._mutex:
        pid = os.fork()
        if pid == 0:
            for use in (leases.try_take, leases.give_back, leases.is_leased):
                try:
                    use("globex")
                except LocksUnusable:
                    tell("refused")
            os._exit(0)
    os.waitpid(pid, 0)
    leases.give_back("acme")
    tell("still the parent's")


def test_of_all_threads_one_gets_the_lease(tmp_path: Path) -> None:
    """A kernel lock does not exclude threads that share its descriptor; the object must."""
    leases = TenantLeases(tmp_path)
    barrier = threading.Barrier(8)
    won: list[int] = []

    def race(number: int) -> None:
        barrier.wait(TIMEOUT_SECONDS)
        if leases.try_take("acme"):
            won.append(number)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert len(won) == 1
    leases.close()


def test_a_lease_excludes_other_processes_until_it_is_given_back(tmp_path: Path) -> None:
    """Two runs of one shard never work on one tenant at once."""
    leases = TenantLeases(tmp_path)
    with Children() as children:
        child = children.start(hold, str(tmp_path), "acme")
        assert child.hear() == "True"
        assert not leases.try_take("acme")
        assert leases.try_take("globex")
        child.say()
        assert child.hear() == "given back"
        assert leases.try_take("acme")
    leases.close()


def test_a_killed_holder_has_no_lease(tmp_path: Path) -> None:
    """What was running there is interrupted from that instant on."""
    leases = TenantLeases(tmp_path)
    with Children() as children:
        child = children.start(hold, str(tmp_path), "acme")
        assert child.hear() == "True"
        assert leases.holder_alive("acme")
        child.kill()
        assert not leases.holder_alive("acme")
        assert leases.try_take("acme")
    leases.close()


def test_status_sees_every_holder_and_the_holder_only_others(tmp_path: Path) -> None:
    """A chain that has the lease knows that earlier attempts of the tenant are dead."""
    query = TenantLeases(tmp_path / "absent", query_only=True)
    assert not query.is_leased("acme")
    assert not (tmp_path / "absent").exists()
    leases = TenantLeases(tmp_path / "absent")
    assert leases.try_take("acme")
    assert [query.is_leased("acme"), query.holder_alive("acme")] == [True, True]
    assert [leases.is_leased("acme"), leases.holder_alive("acme")] == [True, False]
    leases.give_back("acme")
    assert not query.is_leased("acme")
    leases.close()
    query.close()


@pytest.mark.parametrize("tenant", ["", "a/b", "../x", "Ünïcode ☃", "line\nbreak", "\udcff"])
def test_any_text_is_a_tenant(tmp_path: Path, tenant: str) -> None:
    """Tenant names are free text and no file names here."""
    leases = TenantLeases(tmp_path)
    assert leases.try_take(tenant)
    assert leases.try_take("acme")
    leases.give_back(tenant)
    assert [path.name for path in tmp_path.iterdir()] == ["leases.lock"]
    leases.close()


def test_a_lease_is_given_back_once(tmp_path: Path) -> None:
    """A second release would free what another thread has taken meanwhile."""
    leases = TenantLeases(tmp_path)
    assert leases.try_take("acme")
    leases.give_back("acme")
    with pytest.raises(ValueError, match="'acme'"):
        leases.give_back("acme")
    leases.close()


def test_a_forked_child_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    """The child has a copy of a mutex that nobody will ever release."""
    with Children() as children:
        child = children.start(use_after_fork, str(tmp_path))
        assert [child.hear() for _ in range(4)] == ["refused"] * 3 + ["still the parent's"]
