"""Rehearsals through the command line: the verdict is right about good programs and about bad ones."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from cli.command import Cli, wait_for
from clouds.engine import IMAGE, Podman, podman
from clouds.seaweedfs import SeaweedFS

from broker.home import Access, Home

__all__ = ["podman"]


@pytest.mark.slow
def test_a_good_program_survives(cli: Cli) -> None:
    cli.task(steps=60, pause=0.15)
    done = cli("rehearse", "counter", "-y", "--seed", "5", "--notice", "aws", "--notice", "vast", code=None)
    assert done.stdout.splitlines()[-1] == "survives preemption", f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0
    assert "equals the run without interruption, bit for bit" in done.stdout
    assert done.stderr.count("TAKE BACK") == 2
    assert not (cli.state / "rehearsals").exists(), "nothing is left of a rehearsal that went well"
    assert not (cli.state / "jobs.db").exists(), "nothing of it mixes with real jobs"


@pytest.mark.slow
def test_a_program_that_forgets_its_checkpoints_does_not(cli: Cli) -> None:
    cli.task(steps=25, habit="forgets")
    done = cli("rehearse", "counter", "-y", "--preempt", "1", "--notice", "vast", code=100)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("does not survive preemption: move 1 → 2: it began again at step 1 although the snapshot of")
    assert (cli.state / "rehearsals").exists()
    assert "kept  " in done.stderr


@pytest.mark.slow
def test_one_whose_result_differs_does_not(cli: Cli) -> None:
    cli.task(steps=25, habit="differs")
    data = cli.json("rehearse", "counter", "--preempt", "1", "--notice", "vast", code=100)
    assert data["verdict"].startswith("does not survive preemption: outputs/word.txt is not what the run without")
    assert [take["notice"] for take in data["taken"]] == ["vast"]
    assert data["report"]["moves"][0]["restored_step"] > 0


@pytest.mark.slow
def test_one_that_never_saves_does_not(cli: Cli) -> None:
    cli.task(steps=10, habit="lazy")
    done = cli("rehearse", "counter", "--preempt", "1", code=100)
    assert (
        done.stdout.splitlines()[-1] == "does not survive preemption: it never saved anything complete into checkpoints"
    )


@pytest.mark.slow
def test_too_short_a_run_proves_nothing(cli: Cli) -> None:
    cli.task(steps=12)
    done = cli("rehearse", "counter", "--preempt", "5", "--notice", "vast", code=101)
    assert done.stdout.splitlines()[-1].startswith("not proven: it ended ")


@pytest.mark.slow
def test_a_program_that_reports_no_steps_is_seen_by_its_log(cli: Cli) -> None:
    """One that takes longer to begin than its task says lies between two saves is not taken back before its first."""
    task = cli.task(steps=20, habit="mute") / "task.yaml"
    text = task.read_text().replace("complete: DONE", "complete: DONE, every: 1s")
    task.write_text(text.replace("run: python3", "run: test $BROKER_GENERATION != 1 || sleep 6; exec python3"))
    done = cli("rehearse", "counter", "--preempt", "1", "--notice", "aws", code=0)
    assert "by the log" in done.stdout
    assert "bit for bit" in done.stdout


def test_ctrl_c_ends_a_rehearsal_and_its_machines(cli: Cli) -> None:
    cli.task(steps=200)
    process = cli.start("rehearse", "counter")
    assert process.stderr is not None
    for line in process.stderr:
        if "the program runs" in line:
            break
    folder = next((cli.state / "rehearsals").iterdir())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "every machine of the rehearsal was ended" in err
    assert not folder.exists()
    assert not [e for e in Path("/proc").glob("[0-9]*/environ") if str(folder).encode() in read(e)]


def read(path: Path) -> bytes:
    """A process's environment; nothing where it has just ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_a_program_that_fails_by_itself_proves_nothing(cli: Cli) -> None:
    cli.task(steps=6, habit="fails")
    done = cli("rehearse", "counter", code=101)
    assert done.stdout.splitlines()[-1].startswith("not proven: already the run without interruption did not succeed")
    assert "something broke" in done.stderr


def test_a_task_without_checkpoints_needs_no_rehearsal(cli: Cli) -> None:
    (cli.folder / "plain.yaml").write_text("run: echo hello\nspot: never\n", encoding="utf-8")
    done = cli("rehearse", "plain.yaml", code=100)
    assert done.stdout.splitlines()[-1].startswith("does not survive preemption: the task names no checkpoint.path")


def test_what_is_mounted_from_a_bucket_is_there_while_it_is_rehearsed(cli: Cli, seaweedfs: SeaweedFS) -> None:
    bucket = seaweedfs.new_home("set")
    home = Home(Access(bucket, seaweedfs.settings()))
    home.put("deep/word.txt", b"from the bucket")
    home.put("more", b"x")
    folder = cli.task(steps=30, pause=0.1)
    text = (folder / "task.yaml").read_text(encoding="utf-8").replace("rehearse:", "# rehearse:")
    run = 'run: test "$(cat ~/data/deep/word.txt)" = "from the bucket" && exec python3 counter.py'
    text = text.replace("run: python3 counter.py", run)
    (folder / "task.yaml").write_text(f"{text}file_mounts: {{~/data: {bucket}}}\n", encoding="utf-8")
    settings = "\n".join(f'{key} = "{value}"' for key, value in seaweedfs.settings().items())
    (cli.folder / "config.toml").write_text(f"[home_config]\n{settings}\n", encoding="utf-8")
    cli("rehearse", "counter", "--preempt", "1", "--notice", "vast", code=0)
    home.delete(["deep/word.txt", "more"])
    refused = cli("rehearse", "counter", code=78)
    assert "file_mounts.~/data" in refused.stderr
    assert "is empty, or not there" in refused.stderr
    assert "kept" not in refused.stderr


def test_a_task_is_rehearsed_in_its_own_container(cli: Cli, podman: Podman) -> None:
    cli.env |= podman.environ
    options = json.dumps(podman.settings["run"])
    (cli.folder / "config.toml").write_text(
        f"[providers.local]\ncontainer = 'podman'\ncontainer_run = {options}\n", encoding="utf-8"
    )
    (cli.folder / "config.toml").chmod(0o600)
    folder = cli.task(steps=40, pause=0.1)
    text = (folder / "task.yaml").read_text(encoding="utf-8")
    text = text.replace("rehearse:", "# rehearse:").replace("{infra: local}", f"{{image_id: 'docker:{IMAGE}'}}")
    text = text.replace("run: python3", "setup: echo in a container >/made\nrun: cat /made && exec python3")
    (folder / "task.yaml").write_text(text, encoding="utf-8")
    done = cli("rehearse", "counter", "--container", "--preempt", "1", "--notice", "vast", code=0)
    assert "it was taken back once and succeeded" in done.stdout
    assert "is not used" not in done.stdout + done.stderr
    assert not Path("/made").exists()
    wait_for(lambda: not podman.running(), "the end of its containers", 20)


def test_without_an_image_there_is_no_container(cli: Cli) -> None:
    cli.task()
    refused = cli("rehearse", "counter", "--container", code=78)
    assert "names no container image to be rehearsed in" in refused.stderr
    assert "names no container image" in cli("run", "counter", "--container", code=2).stderr
    assert "--container is for this computer" in cli("run", "counter", "--container", "--infra", "aws", code=2).stderr
