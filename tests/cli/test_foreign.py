"""Somebody else's task file: what becomes of it is shown, and it runs."""

from __future__ import annotations

from pathlib import Path

from cli.command import Cli

THEIRS = """\
name: theirs
workdir: .
resources:
  cpus: 1
  infra: local
  use_spot: true
  ports: 8888
  job_recovery: {strategy: FAILOVER, max_restarts_on_errors: 1}
envs: {WHAT: data}
file_mounts:
  ~/set: ./${WHAT}
  ~/ckpt: {name: my-bucket, mode: MOUNT_CACHED}
_metadata:
  broker:
    checkpoint: {path: ~/ckpt}
    outputs: [result.txt]
setup: test -f ~/set/a.bin
run: |
  cat ~/set/a.bin > result.txt
  echo saved > ~/ckpt/state
"""


def written(cli: Cli, more: str = "") -> Path:
    folder = cli.folder / "theirs"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a.bin").write_text("brought along\n")
    (folder / ".gitignore").write_text("data/\n")
    (folder / "task.yaml").write_text(THEIRS + more, encoding="utf-8")
    return folder


def test_a_plan_tells_what_becomes_of_each_field(cli: Cli) -> None:
    written(cli)
    done = cli("plan", "theirs")
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "ignored" in rows["resources.ports"]
    assert "no port is opened" in done.stdout
    assert "emulated" in rows["resources.use_spot"]
    assert "~/set (14 B)" in done.stdout
    assert "ignored: resources.ports" in done.stderr
    plan = cli.json("plan", "theirs")
    fields = {report["field"]: report for report in plan["fields"]}
    assert fields["file_mounts.~/ckpt"]["how"] == "emulated"
    assert fields["_metadata.broker.checkpoint.path"] == {
        "field": "_metadata.broker.checkpoint.path",
        "how": "honoured",
        "why": "",
    }
    assert [(mount["target"], mount["bytes"]) for mount in plan["mounts"]] == [("~/set", 14), ("~/ckpt", 0)]
    assert "honoured" not in cli("plan", "quickstart").stdout  # where nothing else is to be told


def test_it_runs_with_what_it_brings_along(cli: Cli) -> None:
    written(cli)
    cli("run", "theirs", "-y")
    (row,) = cli.json("ps", "-a")
    assert row["status"] == "succeeded"
    cli("pull", row["id"], "--to", str(cli.folder / "out"))
    assert (cli.folder / "out" / "result.txt").read_text() == "brought along\n"


def test_a_source_that_cannot_be_reached_is_refused_when_planning(cli: Cli) -> None:
    folder = written(cli)
    task = (folder / "task.yaml").read_text().replace("./${WHAT}", "s3://nobody/has-this")
    (folder / "task.yaml").write_text(task)
    refused = cli("plan", "theirs", code=78)
    assert "file_mounts.~/set: s3://nobody/has-this cannot be reached" in refused.stderr
