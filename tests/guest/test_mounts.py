"""What a task brings along is in place before setup, on every machine of the job."""

from __future__ import annotations

import subprocess
from pathlib import Path

from guest.placements import Job, wait_for

from broker.config import Config
from broker.mounts import Mount, pack


def brought(job: Job, tmp_path: Path, *mounts: Mount) -> list[dict]:
    config = Config(state=tmp_path / "state", file=tmp_path / "config.toml")
    return pack(mounts, config, job.home, job.keys.artefact)


def data(folder: Path) -> Path:
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.bin").write_text("a")
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho it runs\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def test_folders_and_files_are_there_before_setup(job, tmp_path):
    single = tmp_path / "one.txt"
    single.write_text("one file\n")
    bucket = data(tmp_path / "bucket")
    mounts = brought(
        job, tmp_path,
        Mount("~/data", str(data(tmp_path / "data"))), Mount("~/data/inner/one.txt", str(single)),
        Mount("~/b", bucket.as_uri()),
    )  # fmt: skip
    setup = "cat ~/data/deep/a.bin ~/data/inner/one.txt; ~/data/run.sh; cat ~/b/deep/a.bin"
    placement = job.task("ls ~/data; ls", setup=setup).place(mounts=mounts)
    assert placement.until_ended()["outcome"] == "succeeded"
    assert placement.own_log == "aone file\nit runs\na\ndeep\ninner\nrun.sh\n"


def test_a_mount_at_the_checkpoint_gives_way_to_the_snapshot(job, tmp_path):
    """A bucket that is both read and saved to: its content at first, the newest snapshot on every later machine."""
    first = tmp_path / "first"
    first.mkdir()
    (first / "state.txt").write_text("from the bucket\n")
    mounts = brought(job, tmp_path, Mount("~/ckpt", str(first), "MOUNT"))
    run = (
        "cat ~/ckpt/state.txt\n"
        '[ "$BROKER_GENERATION" = 2 ] && exit 0\n'
        'echo "saved by generation 1" > ~/ckpt/state.txt; sleep 100'
    )
    job.task(run, checkpoint={"path": "~/ckpt", "every": None, "keep": 3, "complete": None})
    one = job.place(mounts=mounts)
    saved = one.folder / "ckpt" / "state.txt"
    wait_for(lambda: saved.exists() and saved.read_text().startswith("saved"))
    seen = one.beat.get("seq", 0)
    wait_for(lambda: one.beat.get("seq", 0) > seen or (one.beat.get("seq", 0) >= 2))
    one.kill()
    two = job.place(2, mounts=mounts)
    assert two.until_ended()["outcome"] == "succeeded"
    assert two.own_log == "saved by generation 1\n"


def test_an_exit_code_to_recover_from_starts_the_program_again_uncounted(job, tmp_path):
    run = "n=$(cat ~/n 2>/dev/null || echo 0); echo $((n + 1)) > ~/n; [ $n = 1 ] && exit 0; exit 33"
    job.task(run, recover_on_exit_codes=[33])
    result = job.place().until_ended()
    assert (result["outcome"], result["restarts"]) == ("succeeded", 0)


def test_another_exit_code_is_a_failure(job):
    assert job.task("exit 33", recover_on_exit_codes=[34]).place().until_ended()["outcome"] == "failed"


def test_a_git_workdir_is_fetched_beside_the_checkpoints(job, tmp_path):
    from broker.taskfile import read

    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "hello.txt").write_text("from git\n")
    for words in (["init", "-q", "-b", "trunk"], ["add", "."], ["commit", "-q", "-m", "x"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *identity, *words], cwd=repository, check=True)
    file = tmp_path / "task.yaml"
    file.write_text(
        f"workdir: {{url: '{repository.as_uri()}', ref: trunk}}\nrun: cat hello.txt\ncheckpoint: {{path: ckpt}}\n"
    )
    task = read(file)
    placement = job.task(task.run, setup=task.setup, checkpoint={"path": "ckpt", "every": None, "keep": 3}).place()
    assert placement.until_ended()["outcome"] == "succeeded"
    assert placement.own_log == "from git\n"


def test_a_damaged_mount_and_a_foreign_target_are_refused(job, tmp_path):
    mounts = brought(job, tmp_path, Mount("~/data", str(data(tmp_path / "data"))))
    job.task("echo never")
    result = job.place(mounts=[{**mounts[0], "sha256": "0" * 64}]).until_ended()
    assert (result["outcome"], "does not hash" in result["reason"]) == ("failed", True)


def test_a_machine_shared_with_its_owner_takes_no_absolute_target(tmp_path):
    import pytest

    from broker.guest.fetch import _target
    from broker.guest.places import Places

    shared = Places(tmp_path / "guest", tmp_path, boxed=False, shared=True)
    assert _target("~/a/b", shared) == tmp_path / "a" / "b"
    assert _target("/data", Places(tmp_path / "guest", tmp_path, boxed=False, shared=False)) == Path("/data")
    for text, words in (("/data", "absolute"), ("~/../x", r"must not contain")):
        with pytest.raises(ValueError, match=words):
            _target(text, shared)
