"""What a guest fetches and how it reaches its home: the workdir, a real S3 server, fresh access, the hardware."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from clouds.seaweedfs import SeaweedFS
from guest.placements import Job, wait_for

from broker.access import mint, own
from broker.boot import Boot
from broker.config import Config
from broker.guest.clock import Clock
from broker.guest.hardware import difference
from broker.guest.log import Log
from broker.guest.mask import Mask
from broker.guest.status import Status
from broker.guest.uplink import Uplink
from broker.home import Access, Home
from broker.workdir import pack

CHECKPOINT = {"path": "ckpt", "every": None, "keep": 3, "complete": None}


def packed(job: Job, folder: Path) -> dict[str, str]:
    made = pack(folder)
    key = job.keys.artefact(made.sha256)
    job.home.put(key, made.path.read_bytes())
    made.path.unlink()
    return {"key": key, "sha256": made.sha256}


def project(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "run.sh").write_text("#!/bin/sh\necho from the workdir\n")
    (folder / "src" / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("src/run.sh")
    return folder


def test_the_workdir_is_where_the_program_runs(job, tmp_path):
    workdir = packed(job, project(tmp_path / "project"))
    placement = job.task("./link; ls -A", setup="touch made-by-setup").place(workdir=workdir)
    assert placement.until_ended()["outcome"] == "succeeded"
    assert placement.own_log == "from the workdir\nlink\nmade-by-setup\nsrc\n"


def test_a_workdir_of_another_hash_is_not_unpacked(job, tmp_path):
    workdir = {**packed(job, project(tmp_path / "project")), "sha256": "0" * 64}
    placement = job.task("echo never").place(workdir=workdir)
    result = placement.until_ended()
    assert (result["outcome"], placement.own_log) == ("failed", "")
    assert "does not hash" in result["reason"]


def test_on_a_real_store_with_the_jobs_own_key(guest, tmp_path, seaweedfs: SeaweedFS):
    """Boot and guest by presigned URLs, everything else by a key that reaches this job only; a move in between."""
    config = Config(state=tmp_path, file=tmp_path, home_config=seaweedfs.mints("assume-role"))
    url = seaweedfs.new_home("team/home")
    job = Job(tmp_path, guest, Home(own(config, url)))
    try:
        script = (
            "import os, signal, sys, time\nfolder = os.environ['BROKER_CHECKPOINT_DIR']\n"
            "if os.environ['BROKER_RESUMED'] == '1':\n    print(open(folder + '/state').read()); sys.exit()\n"
            "def save(*_):\n    open(folder + '/.state', 'w').write('saved')\n"
            "    os.rename(folder + '/.state', folder + '/state'); sys.exit()\n"
            "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)\n"
        )
        job.task(f"cat >train.py <<'EOF'\n{script}EOF\npython train.py", checkpoint=CHECKPOINT)
        first = job.place(1, home=mint(config, url, job.id, 1, time.time() + 1000))
        wait_for(lambda: "ready" in first.log, what=first.console)
        first.notice(60)
        assert first.until_ended(20)["outcome"] == "moved"
        second = job.place(2, home=mint(config, url, job.id, 2, time.time() + 1000), order={"after": 1})
        assert second.until_ended(20)["outcome"] == "succeeded"
        assert second.own_log == "saved\n"
        assert second.beat["access_expires"] is not None
        assert second.beat["warnings"] == []
    finally:
        for placement in job.placements:
            placement.kill()


@pytest.mark.parametrize("by_url", [True, False])
def test_fresh_access_is_taken_before_the_old_one_ends(job, tmp_path, by_url):
    fresh = tmp_path / "access"
    boot = Boot(
        job=job.id,
        generation=1,
        installation="i",
        provider="testing",
        home=Access(url=job.home.url, expires_at=time.time() + 1),
        spec_sha256="",
        end_by=2e9,
        end_why="",
        guest_url="",
        guest_sha256="",
        access_url=fresh.as_uri() if by_url else "",
        beat=0.05,
    )
    raw = json.dumps(replace(boot.home, expires_at=2e9).to_json())
    fresh.write_text(raw)
    if not by_url:
        job.home.put(job.keys.access(1), raw.encode())
    job.live = 1
    job.write_control()
    clock = Clock(boot.end_by, "", boot.frozen_at)
    status = Status(clock, tmp_path / "progress")
    home = Home(boot.home)
    Uplink(home, job.keys, boot, status, Log(tmp_path / "log", Mask([])), clock).start()
    wait_for(lambda: home.access.expires_at == 2e9, 5)
    wait_for(lambda: json.loads(job.home.get(job.keys.beat(1)))["access_expires"] == 2e9, 5)


def smi(folder: Path, *names: str) -> dict[str, str]:
    """A machine whose driver shows these cards."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ncat <<'EOF'\n" + "\n".join(names) + "\nEOF\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_a_machine_with_other_cards_runs_nothing(job, tmp_path):
    offer = {"gpu": "A100-80GB", "gpu_count": 2}
    env = smi(tmp_path, "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")
    placement = job.task("echo never").place(offer=offer, env=env)
    result = placement.until_ended()
    assert (result["outcome"], placement.own_log) == ("moved", "")
    assert result["reason"].startswith("not what was rented: 2 x A100-80GB were rented")
    assert placement.closed["why"] == "hardware"


@pytest.mark.parametrize(
    ("wanted", "memory", "lines", "right"),
    [
        ("RTX3080-12GB", 12.0, ["NVIDIA GeForce RTX 3080, 12288"], True),
        ("RTX3080-12GB", 12.0, ["NVIDIA GeForce RTX 3080, 10240"], False),
        ("RTX3080", 10.0, ["NVIDIA GeForce RTX 3080, 10240"], True),
        ("RTX4060-Ti-16GB", 16.0, ["NVIDIA GeForce RTX 4060 Ti, 16380"], True),
        ("RTX4060-Ti-16GB", 16.0, ["NVIDIA GeForce RTX 4060 Ti, 8188"], False),
        ("RTX4090", 24.0, ["NVIDIA GeForce RTX 4090, 24564"] * 2, True),
        ("RTX4090", 24.0, ["NVIDIA GeForce RTX 4090, 24564", "NVIDIA GeForce RTX 4090, 12282"], False),
        ("RTX4090", 0.0, ["NVIDIA GeForce RTX 4090, 12282"], False),
        ("RTX4090", 24.0, ["NVIDIA GeForce RTX 4090 Laptop GPU, 16376"], False),
        ("RTX4090", 24.0, ["NVIDIA GeForce RTX 4090 D, 24564"], False),
        ("A10G", 24.0, ["NVIDIA A10G, 22888"], True),
        ("L4", 3.0, ["NVIDIA L4, 3072"], True),
        ("H100-SXM", 80.0, ["NVIDIA H100 80GB HBM3, [N/A]"], True),
        ("B300", 288.0, ["NVIDIA B300 SXM6 AC, 275040"], True),
        ("Some-New-Card", 40.0, ["Some New Card, 40960"], True),
        ("Some-New-Card", 40.0, ["Some New Card, 20480"], False),
    ],
)
def test_the_memory_of_the_cards_is_what_was_rented(tmp_path, monkeypatch, wanted, memory, lines, right):
    """A host may promise more than its cards have, and one name may be several cards."""
    monkeypatch.setenv("PATH", smi(tmp_path, *lines)["PATH"])
    offer = {"gpu": wanted, "gpu_count": len(lines), "gpu_memory": memory}
    found = difference(offer)
    assert (not found) is right, found
    assert right or lines[-1] in found


def test_a_machine_with_the_rented_cards_runs(job, tmp_path):
    env = smi(tmp_path, "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3")
    placement = job.task("echo ran").place(offer={"gpu": "H100", "gpu_count": 2}, env=env)
    placement.until_ended()
    assert placement.own_log == "ran\n"
