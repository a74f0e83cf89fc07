"""How a contract ends itself: by Python and by a shell with whatever the image has, with the container's own key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds.vast.account import Contract
from clouds.vast.stage import Stage

from broker.boot import user_data
from broker.testing import wait_for
from broker.testing.conformance import request_for
from broker_vast import guest

DESTROY = "DELETE /api/v0/instances/{id}/"


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "state") as stage:
        yield stage


def contract(vast: Stage) -> Contract:
    if not vast.account.hosts:
        vast.host(parts=2)
    instance = vast.provider().launch(request_for(vast.offer()))
    return vast.account.contracts[int(instance.id)]


def environment(vast: Stage, contract: Contract) -> dict[str, str]:
    """What Vast and the adapter put into the container."""
    return {
        **{name: str(value) for name, value in contract.body["env"].items()},
        "CONTAINER_ID": str(contract.id),
        "CONTAINER_API_KEY": contract.api_key,
    }


def inside(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_there_is_no_notice() -> None:
    assert guest.notice() is None


def test_a_contract_ends_itself(vast: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = contract(vast), contract(vast)
    inside(monkeypatch, environment(vast, one))
    guest.end_machine("done")
    assert list(vast.account.contracts) == [other.id]
    assert not any(one.api_key in path for _, path, _, _ in vast.server.asked)
    with pytest.raises(OSError, match="HTTP Error 4"):
        guest.end_machine("again")


@pytest.mark.parametrize("how", ["500", "hang up"])
def test_an_end_that_was_not_taken_raises(vast: Stage, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    inside(monkeypatch, environment(vast, contract(vast)))
    vast.server.lies.broken[DESTROY] = [how]
    with pytest.raises(OSError):  # noqa: PT011 - any, since the guest tries again whatever it is
        guest.end_machine("done")
    assert len(vast.account.contracts) == 1


def test_a_refusal_in_a_success_raises(vast: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    inside(monkeypatch, environment(vast, contract(vast)))
    vast.server.lies.broken[DESTROY] = ["no"]
    with pytest.raises(OSError, match="did not end"):
        guest.end_machine("done")


def test_the_key_of_one_contract_ends_no_other(vast: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = contract(vast), contract(vast)
    inside(monkeypatch, {**environment(vast, one), "CONTAINER_ID": str(other.id)})
    with pytest.raises(OSError, match="401"):
        guest.end_machine("done")
    assert len(vast.account.contracts) == 2


def test_elsewhere_it_says_that_this_is_no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONTAINER_ID", raising=False)
    with pytest.raises(OSError, match="no Vast container"):
        guest.end_machine("done")


# A shell


@pytest.fixture
def only(tmp_path: Path) -> Path:
    """A PATH with nothing in it yet."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def put(folder: Path, tool: str) -> None:
    found = sys.executable if tool == "python3" else shutil.which(tool)
    if found is None:
        pytest.skip(f"{tool} is not here")
    (folder / tool).symlink_to(os.path.realpath(found))


def shell(script: str, folder: Path, values: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", script], env={**values, "PATH": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.parametrize("tool", ["curl", "wget", "python3"])
def test_a_shell_ends_it_with_any_tool(vast: Stage, only: Path, tool: str) -> None:
    put(only, tool)
    rented = contract(vast)
    process = shell(guest.END_COMMAND, only, environment(vast, rented))
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert not vast.account.contracts
    assert vast.server.calls[DESTROY] == 1


@pytest.mark.parametrize("tool", ["curl", "wget", "python3"])
def test_a_refusal_fails_in_a_shell(vast: Stage, only: Path, tool: str) -> None:
    put(only, tool)
    values = {**environment(vast, contract(vast)), "CONTAINER_API_KEY": "wrong"}
    process = shell(guest.END_COMMAND, only, values)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert len(vast.account.contracts) == 1


def test_without_a_tool_or_a_name_the_shell_stays(only: Path) -> None:
    """It is the first process of the container, and must go on to try again."""
    for values in ({}, {"CONTAINER_ID": "7", "CONTAINER_API_KEY": "k", "VAST_URL": "http://127.0.0.1:9"}):
        process = shell(f"{guest.END_COMMAND}\necho still here", only, values)
        said, _ = process.communicate(timeout=30)
        assert b"still here" in said
        assert process.returncode == 0


def test_the_key_is_in_no_list_of_processes(vast: Stage, only: Path) -> None:
    put(only, "curl")
    rented = contract(vast)
    hold = threading.Event()
    vast.server.lies.hold = hold
    process = shell(guest.END_COMMAND, only, environment(vast, rented))
    try:
        assert wait_for(lambda: vast.server.calls[DESTROY] == 1, 10.0)
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert any(b"DELETE" in line for line in lines)
        assert not any(rented.api_key.encode() in line for line in lines)
    finally:
        hold.set()
        process.communicate(timeout=30)


def test_user_data_ends_a_contract_whose_boot_script_never_comes(vast: Stage, only: Path, tmp_path: Path) -> None:
    """The whole first script: its timer fires before anything was fetched, and the contract is destroyed."""
    for tool in ("curl", "mkdir", "cat", "sleep", "date", "sync", "mv"):
        put(only, tool)
    rented = contract(vast)
    script = user_data("http://127.0.0.1:9/never", 1000.0, frozen_at=1000.0, provider="vast")
    assert len(script.encode()) <= 4096
    values = {**environment(vast, rented), "SPOTBROKER_DIR": str(tmp_path / "guest")}
    process = subprocess.Popen(
        ["/bin/sh", "-c", script], env={**values, "PATH": str(only)}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert wait_for(lambda: not vast.account.contracts, 20.0)
        assert process.poll() is None, "the first process ended, which would leave the container stopped and billed"
    finally:
        os.killpg(process.pid, 9)
        process.wait()
