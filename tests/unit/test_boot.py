"""What starts a machine: the zip, the boot script, the user data."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from broker.boot import Boot, boot_script, guest_zipapp, start_command, user_data
from broker.home import Access
from broker.offer import Market, Offer
from broker.provider import Kind
from broker.testing import wait_for

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


def boot(**changes):
    values = {
        "job": "j1",
        "generation": 1,
        "installation": "inst",
        "provider": "local",
        "home": Access(url="file:///nowhere"),
        "spec_sha256": "0" * 64,
        "end_by": 2e9,
        "end_why": "max_hours",
        "guest_url": "file:///nowhere/guest",
        "guest_sha256": "0" * 64,
    }
    return Boot(**{**values, **changes})


def test_the_zip_is_the_same_every_time_and_runs_alone(tmp_path):
    raw, sha256 = guest_zipapp()
    assert (raw, sha256) == guest_zipapp()
    assert sha256 == hashlib.sha256(raw).hexdigest()
    zipped = zipfile.ZipFile(io.BytesIO(raw))
    names = set(zipped.namelist())
    for name in names - {"__main__.py"}:
        for node in ast.walk(ast.parse(zipped.read(name))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "broker":
                wanted = node.module.split(".")[1:2] or [alias.name for alias in node.names]
                assert all({f"broker/{one}.py", f"broker/{one}/__init__.py"} & names for one in wanted), (name, wanted)
    assert {"__main__.py", "broker/home.py", "broker/guest/__init__.py", "broker_local/guest.py"} <= names
    assert not names & {"broker/task.py", "broker/lifecycle.py", "broker/store.py", "broker/job.py"}
    (tmp_path / "guest.pyz").write_bytes(raw)
    code = "import sys; sys.path.insert(0, 'guest.pyz'); import broker.guest.machine as m; print(m.__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "guest.pyz/broker/guest/machine.py" in done.stdout, done.stderr


def test_boot_survives_json():
    offer = Offer("local", "here", "z1", "cpu-2", Market.SPOT, 0.1)
    made = boot(secrets={"A": "b\n'\"$(x)\x00é"}, offer=offer, workdir={"key": "k", "sha256": "s"})
    again = Boot.from_bytes(made.to_bytes())
    assert again.secrets == made.secrets
    assert again.offer["market"] == "spot"
    assert again.provider_guest == "broker_local.guest"
    assert again.workdir == {"key": "k", "sha256": "s"}
    assert Boot.from_bytes(again.to_bytes()) == again
    assert "secret-value" not in repr(boot(secrets={"A": "secret-value"}))


def test_user_data_is_small_posix_and_holds_no_secret():
    url = (
        "https://bucket.s3.eu-central-1.amazonaws.com/some/prefix/jobs/j/gen/1/boot?X-Amz-Security-Token=" + "a" * 1500
    )
    text = user_data(url, time.time() + 3600, provider="local")
    assert len(text.encode()) <= 4096
    for shell in SHELLS:
        subprocess.run([*([shell] if shell != "busybox" else [shell, "sh"]), "-n", "-c", text], check=True)
    with pytest.raises(ValueError, match="4096"):
        user_data(url + "a" * 4000, time.time())


@pytest.mark.parametrize("shell", SHELLS)
def test_the_timer_fires_whatever_the_network_does(tmp_path, shell):
    """Armed before the first fetch: a machine whose boot script never comes is over at its `end_by`."""
    text = user_data(f"file://{tmp_path}/never", time.time() + 3, provider="")
    began = time.monotonic()
    process = subprocess.Popen(
        [shell, *(["sh"] if shell == "busybox" else []), "-c", text],
        env={"PATH": os.environ["PATH"], "SPOTBROKER_DIR": str(tmp_path / "disk")},
        start_new_session=True,
    )
    assert process.wait(15) == -signal.SIGKILL
    assert 1 < time.monotonic() - began < 6


@settings(deadline=None, max_examples=25, phases=(Phase.explicit, Phase.generate))
@given(secret=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_the_boot_script_carries_any_secret(secret):
    """The boot file on disk holds what was put in; nothing of it is run or shown by the shell."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        script = boot_script(boot(secrets={"S": secret}, python=sys.executable, guest_url=f"file://{folder}/guest.py"))
        assert script.isascii()
        guest = Path(folder, "guest.py")
        guest.write_text("import sys; print(open(sys.argv[0].replace('guest.pyz', 'boot.json')).read())")
        sha256 = hashlib.sha256(guest.read_bytes()).hexdigest()
        script = script.replace(b'get "$U" ' + b"0" * 64, b'get "$U" ' + sha256.encode())
        Path(folder, "boot").write_bytes(script)
        done = subprocess.run(
            ["sh", f"{folder}/boot"],
            env={"PATH": os.environ["PATH"], "SPOTBROKER_DIR": folder},
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert Boot.from_bytes(done.stdout).secrets == {"S": secret}, done.stderr
        assert Path(folder, "boot.json").stat().st_mode & 0o777 == 0o600


def test_a_guest_that_does_not_hash_is_never_run(tmp_path):
    (tmp_path / "guest").write_text("open('ran', 'w')")
    script = boot_script(boot(provider="unheard", python=sys.executable, guest_url=f"file://{tmp_path}/guest"))
    (tmp_path / "boot").write_bytes(script.replace(b"+ 600", b"+ 1"))
    process = subprocess.run(
        ["sh", tmp_path / "boot"],
        env={"PATH": os.environ["PATH"], "SPOTBROKER_DIR": str(tmp_path)},
        capture_output=True,
        timeout=30,
        check=False,
        start_new_session=True,
    )
    assert process.returncode == -signal.SIGKILL
    assert b"could not be fetched whole" in process.stderr
    assert not (tmp_path / "ran").exists()


def test_paths_of_any_letters_reach_the_machine(tmp_path):
    """A home below a folder with a letter that is not ASCII is a home like any other."""
    made = boot(guest_url=(tmp_path / "José ✓").as_uri())
    assert "José ✓".encode() in boot_script(made)
    assert "José ✓" in user_data((tmp_path / "José ✓" / "boot").as_uri(), 1e12)


@pytest.mark.parametrize(
    ("provider", "kind", "limit"),
    [("vast", Kind.CONTAINER, 4000), ("runpod", Kind.CONTAINER, 4096), ("aws", Kind.VM, 16_384), ("", Kind.VM, 4096)],
)
def test_every_kind_of_machine_takes_it_with_a_long_signed_address(provider, kind, limit):
    """A session's keys make an address of 1,800 letters and more; AWS's own tokens have about 1,000."""
    address = (
        "https://bucket.s3.eu-central-1.amazonaws.com/prefix/jobs/task-14dfe4/gen/12/boot?X-Amz-Algorithm=AWS4-HMAC-"
    )
    address += "SHA256&X-Amz-Credential=ASIA&X-Amz-Date=20261201T150000Z&X-Amz-Expires=1500&X-Amz-SignedHeaders=host"
    address += f"&X-Amz-Signature={'0' * 64}&X-Amz-Security-Token={'a' * 1200}"
    text = user_data(address, time.time() + 3600, provider=provider, kind=kind, limit=limit)
    for shell in SHELLS:
        subprocess.run([*([shell] if shell != "busybox" else [shell, "sh"]), "-n", "-c", text], check=True)
    assert start_command(text) == ["/bin/sh", "-c", text]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_boot_script_is_posix_with_and_without_a_runtime(shell):
    told = {"url": "https://store/x", "sha256": "0" * 64, "key": "k"}
    for runtime in (
        None,
        {"architecture": "x86_64", "obstore": told, "python": told},
        {"architecture": "aarch64", "obstore": told, "python": None},
        {"architecture": "x86_64", "obstore": None, "python": told},
    ):
        script = boot_script(boot(runtime=runtime, kind="vm")).decode()
        subprocess.run([*([shell] if shell != "busybox" else [shell, "sh"]), "-n", "-c", script], check=True)
        assert ("obstore.whl" in script) == bool(runtime and runtime["obstore"])


def tools(folder: Path, *more: str) -> str:
    """A PATH with what every image has, and nothing that fetches or checks."""
    folder.mkdir()
    for name in ("sh", "cat", "date", "mkdir", "sleep", "sync", "mv", "cp", "rm", "tail", "uname", *more):
        (folder / name).symlink_to(str(shutil.which(name)))
    return str(folder)


def ended(text: str, path: str, disk: Path) -> str:
    """What user data or a boot script says before it ends its machine."""
    process = subprocess.run(
        ["/bin/sh", "-c", text],
        env={"PATH": path, "SPOTBROKER_DIR": str(disk)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        start_new_session=True,
    )
    assert process.returncode == -signal.SIGKILL
    return process.stderr


def test_an_image_that_can_fetch_nothing_is_named(tmp_path):
    text = user_data("https://127.0.0.1:9/boot", time.time() + 600).replace("+ 600", "+ 0")
    said = ended(text, tools(tmp_path / "bin"), tmp_path / "disk")
    assert "the boot script could not be fetched: there is no curl, wget or python3" in said


def test_an_image_that_can_check_nothing_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    told = {"url": f"file://{tmp_path}/file", "sha256": "0" * 64, "key": "k"}
    runtime = {"architecture": os.uname().machine, "obstore": told, "python": told}
    script = boot_script(boot(provider="unheard", runtime=runtime))
    path = tools(tmp_path / "bin", "tar", "gzip")
    # Python is looked for at fixed places too, and this computer has one there.
    said = ended(
        script.decode().replace("/usr/bin/python3.1?", "").replace("/usr/local/bin/python3 ", ""), path, tmp_path
    )
    assert "this image has neither sha256sum nor Python: the static Python cannot be checked" in said


def test_what_is_started_again_and_again_still_ends_in_time(tmp_path):
    """A guest that dies at once is started again by its unit or its container's policy: the first timer counts."""
    disk = tmp_path / "disk"

    def start(end: float) -> str:
        process = subprocess.Popen(
            ["/bin/sh", "-c", user_data(f"file://{tmp_path}/never", time.time() + end)],
            env={"PATH": os.environ["PATH"], "SPOTBROKER_DIR": str(disk)},
            start_new_session=True,
        )
        assert wait_for((disk / "err").exists, 10)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        (disk / "err").unlink()
        return (disk / "deadline").read_text()

    first = start(1000)
    assert start(5000) == first
    (disk / "booted").write_text("another boot\n")
    assert int(start(5000)) > int(first) + 3000
