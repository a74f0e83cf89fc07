"""When a program last gave a sign of life."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.guest import activity
from broker.guest.activity import Activity, busy


def nvidia_smi(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "works"),
    [
        ("printf '0\\n97\\n'", True),
        ("printf '0\\n1\\n'", False),
        ("echo '[N/A]'", True),  # unknown is not stuck
        ("exit 9", True),
    ],
)
def test_a_gpu_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, works: bool) -> None:
    nvidia_smi(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert busy() is works


def test_gpus_that_cannot_be_asked_are_not_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert busy() is True


def test_every_change_is_a_sign() -> None:
    look = Activity(gpus=False)
    assert look.idle(None, 0, 0) < 0.5
    look._last -= 100
    assert look.idle(None, 0, 0) >= 100
    for signs in ((1, 0, 0), (1, 5, 0), (1, 5, 1)):
        look._last -= 100
        assert look.idle(*signs) == 0


def test_a_gpu_is_a_sign_where_all_else_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, f"echo x >>{tmp_path}/asked; cat {tmp_path}/use")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    look = Activity(gpus=True)
    look.idle(1)
    assert not (tmp_path / "asked").exists()
    for use, idle in (("80", 0.0), ("0", 100.0)):
        (tmp_path / "use").write_text(use)
        look._last -= 100
        look._looked -= 100
        assert look.idle(1) == pytest.approx(idle, abs=5)
    assert (tmp_path / "asked").read_text() == "x\nx\n"
    look.idle(1)  # not again before its time
    assert (tmp_path / "asked").read_text() == "x\nx\n"
    assert activity.GPU_LOOK > 5
