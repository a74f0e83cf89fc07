"""What the program sees, and what nobody may see. Cases 43 and 45."""

from __future__ import annotations

import json
from pathlib import Path

from guest.placements import wait_for

SECRET = "hf_EXAMPLEexampleEXAMPLE0001"
WANDB = "wb-EXAMPLE-0002"


def test_values_come_through_byte_for_byte(job):
    envs = {
        "A": "a=b c",
        "B": "$HOME `whoami` $(id)",
        "C": 'it\'s "quoted" \\n',
        "D": "line1\nline2",
        "E": "ünïcode ✓",
    }
    run = (
        "python3 -c 'import os,json; print(json.dumps([os.environ[k] for k in \"ABCDE\"]))'\n"
        "cat <<'EOT'\n$NOT_EXPANDED\nEOT\nexit 0\n"
    )
    placement = job.task(run, envs=envs).place()
    assert placement.until_ended()["exit"] == 0
    first, second = placement.own_log.splitlines()
    assert json.loads(first) == list(envs.values())
    assert second == "$NOT_EXPANDED"


def test_secrets_stay_out_of_everything_but_the_program(job):
    run = (
        'test "$HF_TOKEN" = hf_"EXAMPLEexampleEXAMPLE0001" && echo got it\n'
        "printf 'split '; printf %s \"${HF_TOKEN%0001}\"; sleep 0.2; echo 0001\n"
        "env | sort; until [ -e ../../go ]; do sleep 0.02; done; exit 1"
    )
    job.task(run, secrets=["HF_TOKEN"], envs={"WANDB_API_KEY": WANDB, "NAME": "plain"})
    placement = job.place(secrets={"HF_TOKEN": SECRET})
    wait_for(lambda: "NAME=plain" in placement.log)
    shown = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (placement.process.pid,)]
    shown += [(placement.folder / "user-data").read_bytes(), (placement.disk / "log").read_bytes()]
    guest_env = Path(f"/proc/{placement.process.pid}/environ").read_bytes()
    (placement.folder / "go").touch()
    placement.until_ended()
    log = placement.own_log
    assert "got it" in log
    assert "split ***\n" in log
    assert "HF_TOKEN=***" in log
    assert "WANDB_API_KEY=***" in log
    assert "provider-key-0003" not in log, "the provider's own key is not the job's"
    for text in (*shown, guest_env, placement.console.encode()):
        assert SECRET.encode() not in text
    for file in (job.folder / "home").rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert SECRET.encode() not in data, file
            assert WANDB.encode() not in data or file.name == "spec", file
    assert (placement.disk / "boot.json").stat().st_mode & 0o077 == 0
    assert (placement.disk / "boot").stat().st_mode & 0o077 == 0


def test_a_reason_that_quotes_a_secret_is_masked(job):
    job.task("true", secrets=["S"], checkpoint={"path": f"../{SECRET}"})
    result = job.place(secrets={"S": SECRET}).until_ended()
    assert result["outcome"] == "failed"
    assert SECRET not in json.dumps(result)


def test_the_job_may_import_the_guests_library(job):
    run = """
cat >train.py <<'EOF'
import time
from broker import guest
seen = []
guest.on_notice(seen.append)
guest.progress(0, 100)
print("ready", guest.resumed(), flush=True)
while not guest.should_stop():
    time.sleep(0.02)
while not seen:
    time.sleep(0.02)
print("stopping", 0 < seen[0] < 60, flush=True)
EOF
python train.py
"""
    placement = job.task(run).place()
    wait_for(lambda: "ready" in placement.log)
    placement.notice(60)
    assert placement.until_ended(10)["outcome"] == "moved"
    assert placement.own_log == "ready False\nstopping True\n"
