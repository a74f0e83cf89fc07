"""The JSON Schema agrees with what is really read, and is shipped as it is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from broker import bundled, schema
from broker.errors import TaskError
from broker.task import load

VALIDATOR = Draft202012Validator(schema.schema())
GOOD = """\
name: all
workdir: {url: https://x/y, ref: main}
num_nodes: 1
resources:
  accelerators: {A100: 8, L4: null}
  cpus: 4+
  memory: 32
  image_id: {us-1: 'docker:i'}
  job_recovery: FAILOVER
  use_spot: true
  ordered: [{infra: aws, spot_recovery: {recover_on_exit_codes: [1, 2]}}, {cloud: gcp, disk_size: 100GB, ports: [1, 2]}]
envs: {EPOCHS: 10, ON: true}
file_mounts: {/a: s3://b/c, ~/d: {source: ., mode: COPY}}
outputs: out/*
checkpoint: {path: c, every: 30, keep: 3}
_metadata: {broker: {spot: only}}
setup: x
run: x
"""


def errors(text: str) -> list[str]:
    return [error.json_path for error in VALIDATOR.iter_errors(YAML(typ="safe").load(text))]


def test_the_shipped_schema_is_current() -> None:
    assert schema.FILE.read_text(encoding="utf-8") == schema.text(), "run: python -m broker.schema"
    Draft202012Validator.check_schema(schema.schema())


def test_sound_files_pass() -> None:
    assert errors(GOOD) == []
    for name in bundled.names():
        assert errors((bundled.folder(name) / "task.yaml").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "where"),
    [("name: x\n", "$"), ("run: x\nnme: y\n", "$"), ("run: x\nresources: {cpu: 1}\n", "$.resources"),
     ("run: x\nspot: maybe\n", "$.spot"), ("run: x\nresources: {any_of: {a: 1}}\n", "$.resources"),
     ("run: x\nfile_mounts: {/a: {mode: SYNC}}\n", "$.file_mounts"), ("run: x\ncheckpoint: path\n", "$.checkpoint")],
)  # fmt: skip
def test_wrong_files_do_not(text: str, where: str) -> None:
    assert where in errors(text)


def test_every_field_says_what_it_is() -> None:
    for name, model in {"": schema.schema(), **schema.schema()["$defs"]}.items():
        assert [field for field, what in model["properties"].items() if not what.get("description")] == [], name


def test_a_copied_task_carries_its_schema(tmp_path: Path) -> None:
    folder = bundled.copy_out("quickstart", tmp_path / "q")
    schema.attach(folder / "task.yaml")
    schema.attach(folder / "task.yaml")
    first, second, *_ = (folder / "task.yaml").read_text(encoding="utf-8").splitlines()
    assert first == "# yaml-language-server: $schema=.spotbroker/task.schema.json"
    assert not second.startswith("# yaml")
    assert json.loads((folder / ".spotbroker" / "task.schema.json").read_text(encoding="utf-8")) == schema.schema()
    from broker.workdir import measure

    assert not any(".spotbroker" in path for path, _ in measure(folder).biggest)
    assert load(folder).name == "quickstart"


fields = st.sampled_from(
    ["name", "workdir", "setup", "resources", "file_mounts", "checkpoint", "work", "spot", "max_moves"]
)
values = st.sampled_from(
    ["x", "1", "[]", "{}", "[x]", "{path: x}", "{A: 1}", "{source: .}", "never", "{hours: 1}", "{cpus: 1}"]
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(fields, values, max_size=3))
def test_what_the_reader_takes_the_schema_takes(
    tmp_path_factory: pytest.TempPathFactory, given_fields: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("s")
    (folder / "x").mkdir()
    text = "run: x\n" + "".join(f"{name}: {value}\n" for name, value in {"spot": "never", **given_fields}.items())
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    try:
        load(folder / "job.yaml", environ={})
    except TaskError:
        return
    assert errors(text) == []
