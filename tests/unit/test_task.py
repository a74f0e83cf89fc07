"""Task: what a task file and a Python program may say, and what is said back where they are wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broker
from broker import quantity
from broker.config import load as load_config
from broker.errors import TaskError
from broker.offer import Market, Trust
from broker.task import Checkpoint, Rehearse, Resources, Task, Work, load

SHARED = Path(__file__).parents[3] / "shared"
NEVER = "run: echo\nspot: never\n"


def read(folder: Path, text: str, **given_values: dict[str, str]) -> Task:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, environ={}, **given_values)


def refused(folder: Path, text: str, **given_values: dict[str, str]) -> TaskError:
    with pytest.raises(TaskError) as caught:
        read(folder, text, **given_values)
    return caught.value


TYPED = """\
name: répétition-é
envs:
  EPOCHS: 10
  LR: 1e-4
  DEBUG: on
  COUNTRY: NO
  VERSION: 3.10
  MODE: 0755
  AT: 12:30:45
  NAME: "ünïcode ✓"
  A: "a=b c"
  B: "$HOME `whoami` $(id)"
  C: 'it''s "quoted" \\n'
  D: "line1\\nline2"
  NOTHING: ""
run: echo
spot: never
"""


def test_values_stay_as_typed(tmp_path: Path) -> None:
    task = read(tmp_path, TYPED)
    envs = dict(task.envs)
    assert "|".join(list(envs.values())[:8]) == "10|1e-4|on|NO|3.10|0755|12:30:45|ünïcode ✓"
    assert (envs["A"], envs["B"]) == ("a=b c", "$HOME `whoami` $(id)")
    assert (envs["C"], envs["D"], envs["NOTHING"]) == ('it\'s "quoted" \\n', "line1\nline2", "")
    assert task.name == "répétition-é"
    assert task.slug == "repetition-e"


def test_the_case_of_values_that_are_no_strings(tmp_path: Path) -> None:
    path = SHARED / "cases" / "inputs" / "c41_task.yaml"
    if not path.is_file():
        pytest.skip("the shared cases are not here")
    with pytest.raises(TaskError) as caught:
        load(path, environ={})
    text = str(caught.value)
    assert "envs.EMPTY: must be given: --env EMPTY=" in text
    assert "envs.WANDB: must be given: --env WANDB=" in text
    assert "resources.disk_size: must be a size above zero" in text
    assert "on: unknown field" in text
    mended = path.read_text(encoding="utf-8").replace("disk_size: 0", "disk_size: 1").replace("on: {push: main}", "")
    task = read(tmp_path, mended + "checkpoint: {path: c}\n", envs={"EMPTY": "e", "WANDB": "w"})
    assert [wish.gpu for wish in task.resources] == ["A100", "L4"]
    assert task.spot == "auto"
    assert "|".join(task.envs.values()) == "10|1e-4|on|NO|3.10|0755|12:30:45|e|ünïcode ✓|w"


def test_an_a100_is_not_an_a100_80gb(tmp_path: Path) -> None:
    both = 'resources: {accelerators: "%s", use_spot: true}\nrun: nvidia-smi\ncheckpoint: {path: c}\n'
    assert read(tmp_path, both % "A100:8").resources[0] == Resources(gpu="A100", gpu_count=8)
    assert read(tmp_path, both % "A100-80GB:8").resources[0].gpu == "A100-80GB"
    error = refused(tmp_path, both % "A100-40G")
    assert "unknown GPU 'A100-40G'; did you mean A100?" in str(error)
    assert error.field == "resources.accelerators"


def test_a_misspelt_field_is_shown_its_place_and_the_right_name(tmp_path: Path) -> None:
    error = refused(tmp_path, NEVER + "resources:\n  acelerators: A100\n")
    assert str(error) == f"{tmp_path}/job.yaml:4:3: resources.acelerators: unknown field; did you mean accelerators?"
    assert (error.line, error.column, error.field) == (4, 3, "resources.acelerators")


def test_every_wrong_field_is_told(tmp_path: Path) -> None:
    error = refused(
        tmp_path,
        "run: ''\nspot: sometimes\nmax_price: 0\nmax_hours: .inf\nmax_moves: -1\nwork: {hours: nan}\n"
        "checkpoint: {path: ../up, every: 0s, keep: 0}\noutputs: [/etc/passwd]\nrehearse: {deterministic: maybe}\n"
        "resources: {cpus: 1_0, memory: big, disk_size: -3, infra: aws//x, any_of: [{cpu: 1}, {memory: 4x}]}\n",
    )
    text = str(error)
    for field in (
        "run: is missing", "spot: must be", "max_price: must be above zero", "max_hours: must be a number",
        "max_moves: must be a whole number", "work.hours: must be a number", "checkpoint.path: must be a folder inside",
        "checkpoint.every: must be a time", "checkpoint.keep: must be at least 1", "outputs: must be a path or glob",
        "rehearse.deterministic: must be true or false", "resources.cpus: must be a number",
        "resources.memory: must be a size", "resources.disk_size: must be a size", "resources.infra: must be provider",
        "resources.any_of.0.cpu: unknown field; did you mean cpus?", "resources.any_of.1.memory: 4x is so much",
    ):  # fmt: skip
        assert field in text, text
    assert error.line == 1


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        (NEVER + "max_moves: 3\nmax_moves: 4\n", "max_moves: given twice: in line 3 and again in line 4", 4),
        (NEVER + "envs:\n  A: 1\n  A: 2\n", "envs.A: given twice: in line 4 and again in line 5", 5),
        (NEVER + "? [a, b]\n: 1\n", "a key must be text", 3),
        (NEVER + "1: x\n", "1: unknown field", 3),
        (NEVER + "null: x\n", "null: unknown field", 3),
        (NEVER + "envs: &a\n  X: *a\n", "an alias that contains itself", 3),
        (NEVER + "<<: *nowhere\n", "undefined alias", 3),
        (NEVER + "<<: text\n", "`<<` takes a map", 3),
        (NEVER + "name: !python/object x\n", "the tag !python/object means nothing here", 3),
        (NEVER + "name: 'x\n", "not readable as YAML: found unexpected end of stream", 3),
        (NEVER + "\tname: x\n", "not readable as YAML: found character", 3),
        (NEVER + "name: a\x01b\n", "not readable as YAML: a character that YAML does not allow", 3),
        (NEVER + "---\nrun: two\n", "single document", 3),
        ("- run\n", "a task must be a map of fields, not a list", 1),
        ("# nothing\n", "the file is empty", None),
        (NEVER + "resources: {accelerators: {A100:1, L4:1}}\n", "a space is missing after the colon in 'A100:1'", 3),
        (NEVER + "resources: {accelerators: 'A100:0'}\n", "must be a whole number above zero", 3),
        (NEVER + "resources: {accelerators: 'A100:1.5'}\n", "must be a whole number above zero", 3),
        (NEVER + "resources: {disk_size: NaN}\n", "resources.disk_size: must be a size", 3),
        (NEVER + "resources: {memory: 1e999}\n", "resources.memory: must be a size", 3),
        (NEVER + "resources: {cloud: aws, infra: gcp}\n", "resources.cloud: stands beside infra", 3),
        (NEVER + "resources: {spot: only}\n", "resources.spot: unknown field; write `spot` at the top level", 3),
        (NEVER + "resources: {max_price: 1}\n", "max_price: unknown field here; it belongs at the top of the file", 3),
        (NEVER + "cpus: 1\n", "cpus: unknown field here; it belongs under `resources`", 3),
        (NEVER + "num_nodes: 2\n", "num_nodes: 2 machines at once are not carried out yet", 3),
        (NEVER + "resources: {any_of: [], ordered: []}\n", "resources.ordered: stands beside any_of", 3),
        (NEVER + "resources: {any_of: [{max_hourly_cost: 1}, {max_hourly_cost: 2}]}\n", "must be the same for all", 3),
        (NEVER + "resources: {max_hourly_cost: 1}\nmax_price: 2\n", "max_price: is 2, but max_hourly_cost", 4),
        (NEVER + "resources: {job_recovery: {recover_on_exit_codes: 256}}\n", "must be exit codes from 0 to 255", 3),
        (NEVER + "file_mounts: {/a: ./none}\n", "file_mounts./a: no such file or folder", 3),
        (NEVER + "file_mounts: {a: .}\n", "file_mounts.a: must go to a path below ~/ or /", 3),
        (NEVER + "file_mounts: {/a: {source: ., mode: SYNC}}\n", "file_mounts./a.mode: must be 'COPY'", 3),
        (NEVER + "file_mounts: {/a.b: {sorce: .}}\n", "file_mounts./a.b.sorce: unknown field; did you mean source?", 3),
        (NEVER + "file_mounts: {/a: {name: bucket, mode: MOUNT}}\n", "file_mounts./a: has no source", 3),
        (NEVER + "file_mounts: {/a: '${DATA}'}\n", "${DATA}: envs has no DATA", 3),
        (NEVER + "envs: {A: x}\nfile_mounts: {/x: ., '/${A}': .}\n", "becomes /x, which is there already", 4),
        (NEVER + "file_mounts: {/a: '${A:-x}'}\n", "only ${NAME} is filled in here", 3),
        (NEVER + "workdir: {url: u, path: .}\n", "workdir: names a folder and a repository", 3),
        (NEVER + "deadline: soon\n", "deadline: must be a time such as 6h", 3),
        (NEVER + "budget: 0\n", "budget: must be above zero", 3),
        (NEVER + "budget: 1e300\n", "budget: must be at most 1,000,000,000, not '1e300'", 3),
        (NEVER + "work: {hours: 2e6}\n", "work.hours: must be at most 1,000,000 hours", 3),
        (NEVER + "work: {hours: 1e-300}\n", "work.hours: must be at least 1e-09 hours", 3),
        (NEVER + "max_hours: 2e6\n", "max_hours: must be at most 1,000,000 hours", 3),
        (NEVER + "work: {hours: 6, download: 1e300GB}\n", "work.download: must be a size of at most", 3),
        (NEVER + "speed: {H100: 1e9}\n", "speed.H100: must be at most 1,000", 3),
        (NEVER + "speed: {h100: 2, H100: 3}\n", "speed: names a card twice: h100, H100 are H100", 3),
        (NEVER + "deadline: 99999999999999999999h\n", "deadline: must be at most 100 years", 3),
        (NEVER + "deadline: '0001-01-01 00:00'\n", "deadline: must be a time such as 6h", 3),
        (NEVER + "_metadata: {broker: {name: a}}\nname: b\n", "_metadata.broker.name: is given at the top level", 3),
        (NEVER + "_metadata: {broker: {nme: a}}\n", "nme: unknown field; did you mean name?", 3),
        (NEVER + "managed_secrets: [A]\n", "managed_secrets: unknown field; write `secrets: [NAME]`", 3),
        (NEVER + "resources: 3\n", "resources: must be a map, such as `resources: {accelerators: RTX4090:1}`", 3),
        (NEVER + "work: 6h\n", "work: must be a map, such as `work: {hours: 6}`", 3),
        (NEVER + "budget: $5\n", "budget: must be a number, not '$5'; write 5", 3),
        (NEVER + "name: {a: b}\n", "name: must be text", 3),
        (NEVER + "envs: [A]\n", "envs.A: must be given: --env A=", 3),
        (NEVER + "envs: [{A: 1}]\n", "envs: entry 1 must be NAME=VALUE", 3),
        (NEVER + "envs: {A: [1]}\n", "envs.A: must be one value, not a list", 3),
        (NEVER + "envs: {a-b: 1}\n", "'a-b' cannot be the name", 3),
        (NEVER + "envs: {BROKER_JOB: 1}\n", "envs.BROKER_JOB: is set by the broker itself", 3),
        (NEVER + "envs: {A: 1}\nsecrets: {A: 2}\n", "envs.A: is among secrets too", 3),
        (NEVER + "secrets:\n  HF_TOKEN:\n", "secrets.HF_TOKEN: has no value, and the environment has no HF_TOKEN", 4),
        (NEVER + "workdir: nowhere\n", "workdir: no such folder", 3),
        (NEVER + "work: {on: A100}\n", "work: needs hours or steps", 3),
        ("name: x\nspot: never\n", "run: is missing", 1),
        ("run: x\nresources: {use_spot: true}\nspot: never\n", "spot: is never, but use_spot", 3),
        ("run: x\ncheckpoint: {path: c}\nspot: only\nresources: {use_spot: false}\n", "spot: is only, but use_spot", 3),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, words: str, line: int | None) -> None:
    error = refused(tmp_path, text)
    assert words in str(error)
    assert error.line == line
    assert error.file == str(tmp_path / "job.yaml")
    assert error.exit_code == 78


def test_spot_without_a_checkpoint_is_refused_with_both_ways_out(tmp_path: Path) -> None:
    for text in ("run: x\n", "run: x\nresources: {use_spot: true}\n", "run: x\ncheckpoint: {keep: 2}\n"):
        error = refused(tmp_path, text)
        assert error.field == "checkpoint.path"
        assert "checkpoint: {path:" in error.fix
        assert "spot: never" in error.fix
    assert read(tmp_path, "run: x\nresources: {use_spot: false}\n").markets == (Market.ON_DEMAND,)


def test_a_file_that_is_no_text_or_huge_or_deep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    for raw, words in (
        (b"run: x\nname: \xff\xfe\n", "job.yaml:2: not UTF-8"),
        (b"#" * 1_000_001, "too big"),
        (b"a: " + b"[" * 5000, "not readable"),
        (b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
            f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n".encode() for a, b in zip("abcdefg", "bcdefgh", strict=True)
        ), "too big"),
    ):  # fmt: skip
        path.write_bytes(raw)
        with pytest.raises(TaskError, match=words):
            load(path)
    with pytest.raises(TaskError, match="no task file"):
        load(tmp_path / "none.yaml")


def test_anchors_and_merges(tmp_path: Path) -> None:
    task = read(
        tmp_path,
        "run: x\nspot: never\nresources: &r\n  cpus: 2\n  any_of:\n  - &a {accelerators: A100, cpus: 8}\n"
        "  - {<<: *a, accelerators: L4}\n  - {<<: [{memory: 4}, {memory: 8, cpus: 3}], image_id: i:1}\n"
        "rehearse: {envs: &e {A: 1e3, B: 2}}\nenvs: {<<: *e, B: on}\n",
    )
    assert task.resources == (
        Resources(gpu="A100", gpu_count=1, cpus=8),
        Resources(gpu="L4", gpu_count=1, cpus=8),
        Resources(cpus=3, memory=4, image="i:1"),
    )
    assert task.envs == {"B": "on", "A": "1e3"}


def test_every_spelling_of_resources(tmp_path: Path) -> None:
    def one(text: str) -> Resources:
        return read(tmp_path, NEVER + f"resources: {text}\n").resources[0]

    assert one("{accelerators: A100}") == one("{accelerators: {A100: }}") == one("{accelerators: {A100: 1}}")
    assert one("{accelerators: 'RTX 4090:2'}") == Resources(gpu="RTX4090", gpu_count=2)
    assert one("{accelerators: null, cpus: 4+, memory: 16+}") == Resources(cpus=4, memory=16)
    assert one("{memory: 32GB+, disk_size: 200GB}") == Resources(memory=32, disk=200)
    assert one("{memory: 512MB, disk_size: 1TiB}") == Resources(memory=0.5, disk=1024)
    assert one("{infra: runpod/NO}").infra == ("runpod/NO",)
    assert one("{infra: [aws/*/us-east-1a, 'vast']}").infra == ("aws/*/us-east-1a", "vast")
    assert one("") == Resources()
    anyone = read(tmp_path, NEVER + "resources: {accelerators: [A100:2, {L4: 1, T4: 3}], disk_size: 50}\n").resources
    assert [(wish.gpu, wish.gpu_count, wish.disk) for wish in anyone] == [("A100", 2, 50), ("L4", 1, 50), ("T4", 3, 50)]


def test_every_field_is_read(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    task = read(
        tmp_path,
        "name: all\nworkdir: code\nsetup: make\nrun: |\n  train\nenvs: [A=b=c, B=]\nsecrets: {S: s}\n"
        "resources: {accelerators: H100:8}\ncheckpoint: {path: ~/ckpt, every: 1h30m, keep: 5, complete: DONE}\n"
        "outputs: out/*.bin\nwork: {hours: 6, on: a100, steps: 100}\nspot: only\nmax_price: 2.5\nmax_hours: 12\n"
        "max_moves: 7\nmax_restarts_on_errors: 2\nhome: s3://b/p\n"
        "rehearse: {deterministic: yes, compare: out/w.bin, envs: {STEPS: 010}, step: 'it (\\d+)', "
        "resources: {accelerators: [T4, L4]}}\n",
    )
    assert task == Task(
        name="all", workdir=tmp_path / "code", setup="make", run="train\n", envs={"A": "b=c", "B": ""},
        secrets={"S": "s"}, resources=(Resources(gpu="H100", gpu_count=8),),
        checkpoint=Checkpoint("~/ckpt", every=5400, keep=5, complete="DONE"), outputs=("out/*.bin",),
        work=Work(hours=6, on="A100", steps=100), spot="only", max_price=2.5, max_hours=12, max_moves=7,
        max_restarts_on_errors=2, home="s3://b/p",
        rehearse=Rehearse(
            deterministic=True, compare=("out/w.bin",), envs={"STEPS": "010"}, step=r"it (\d+)",
            resources=(Resources(gpu="T4", gpu_count=1), Resources(gpu="L4", gpu_count=1)),
        ),
        source=tmp_path / "job.yaml",
    )  # fmt: skip
    (query,) = task.queries
    assert (query.gpu, query.gpu_count, query.disk, query.markets) == ("H100", 8, 20.0, (Market.SPOT,))


def test_data_is_counted_as_it_is_charged_for(tmp_path: Path) -> None:
    """A GB of data is 1000^3 bytes, as on the bill; GiB are told apart."""
    task = read(tmp_path, NEVER + "work: {hours: 10, download: 400GB, upload: 50GiB}\n")
    assert task.work is not None
    assert task.work.download == pytest.approx(400e9 / 2**30)
    assert task.work.upload == 50
    assert [quantity.data(text) * 2**30 for text in ("400", "1.5 TB", "20 MB", "2KiB")] == pytest.approx(
        [400e9, 1.5e12, 20e6, 2048]
    )
    (tmp_path / "again.yaml").write_text(task.to_yaml())
    assert Task.from_yaml(tmp_path / "again.yaml").work == task.work
    assert "work.upload: must be a size above zero" in str(refused(tmp_path, NEVER + "work: {hours: 1, upload: -1}\n"))
    with pytest.raises(TaskError, match=r"work.download: must be zero or more GiB, not nan"):
        Task(run="x", spot="never", work=Work(hours=1, download=float("nan")))


def test_a_rehearsals_own_resources_and_step_go_through_json_and_yaml(tmp_path: Path) -> None:
    task = read(tmp_path, NEVER + "rehearse: {resources: {any_of: [{cpus: 2}, {infra: local}]}, step: 's=(\\d+)'}\n")
    assert task.rehearse == Rehearse(resources=(Resources(cpus=2), Resources(infra=("local",))), step=r"s=(\d+)")
    assert Task.from_json(task.to_json()) == task
    (tmp_path / "again.yaml").write_text(task.to_yaml())
    assert Task.from_yaml(tmp_path / "again.yaml").rehearse == task.rehearse


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("step: 'it (\\d+'", "rehearse.step: is no regular expression"),
        ("step: 'it [0-9]+'", "rehearse.step: finds no number"),
        ("resources: {accelerators: Z99}", "rehearse.resources.accelerators: "),
        ("resources: {disk_size: -1}", "rehearse.resources.disk_size: "),
        ("resources: {cpu: 1}", "rehearse.resources.cpu: unknown field; did you mean cpus?"),
    ],
)
def test_what_is_wrong_in_a_rehearsal_is_named(tmp_path: Path, field: str, message: str) -> None:
    assert message in str(refused(tmp_path, NEVER + f"rehearse: {{{field}}}\n"))


def test_what_is_given_at_launch_fills_and_wins(tmp_path: Path) -> None:
    text = NEVER + "envs: {A: , B: file}\nsecrets: [S, T=x]\n"
    task = read(tmp_path, text, envs={"A": "", "B": "given", "C": "new"}, secrets={"S": "given"})
    assert task.envs == {"A": "", "B": "given", "C": "new"}
    assert task.secrets == {"S": "given", "T": "x"}
    path = tmp_path / "job.yaml"
    assert load(path, envs={"A": "1"}, environ={"S": "from outside"}).secrets["S"] == "from outside"
    assert load(task, envs={"B": "again"}).envs["B"] == "again"
    assert read(tmp_path, NEVER, secrets={"N": "v"}, envs={"E": "w"}).secrets == {"N": "v"}


def test_secrets_are_in_no_repr_no_json_no_file_and_no_error(tmp_path: Path) -> None:
    text = NEVER + "secrets: {HF_TOKEN: hf_EXAMPLE}\nenvs: {WANDB_API_KEY: wb-EXAMPLE, PLAIN: seen}\n"
    task = read(tmp_path, text)
    assert "EXAMPLE" not in repr(task)
    assert set(task.hidden) == {"hf_EXAMPLE", "wb-EXAMPLE"}
    assert "hf_EXAMPLE" not in json.dumps(task.to_json())
    assert "hf_EXAMPLE" not in task.to_yaml()
    for wrong in (
        text + "envs: {}\n", text + "nam: x\n",
        NEVER + "secrets: [hf_EXAMPLE x]\n", NEVER + "secrets: {T: 'hf_EXAMPLE\n",
        NEVER + "secrets: hf_EXAMPLE\n", NEVER + "secrets: {BROKER_JOB: hf_EXAMPLE}\n",
        NEVER + "secrets: [[hf_EXAMPLE]]\n",
    ):  # fmt: skip
        assert "EXAMPLE" not in str(refused(tmp_path, wrong))
    assert Task.from_json(task.to_json(), {"HF_TOKEN": "hf_EXAMPLE"}) == task


def test_a_task_from_python_keeps_the_same_rules() -> None:
    task = Task(run="x", checkpoint=Checkpoint("c"), resources=(Resources(gpu="nvidia a100", cpus=2),))
    assert task.resources[0] == Resources(gpu="A100", gpu_count=1, cpus=2)
    assert task.name == "task"
    with pytest.raises(TaskError, match=r"checkpoint\.path: is missing"):
        Task(run="x")
    with pytest.raises(TaskError, match="max_price: must be above zero"):
        Task(run="x", spot="never", max_price=float("nan"))
    for endless in (float("inf"), float("nan"), 1e300):
        for changed in (
            {"budget": endless},
            {"max_price": endless},
            {"max_hours": endless},
            {"speed": {"A100": endless}},
        ):
            with pytest.raises(TaskError, match="must be a"):
                Task(run="x", spot="never", **changed)  # type: ignore[arg-type]
        with pytest.raises(TaskError, match=r"work\.hours: must be a"):
            Task(run="x", spot="never", work=Work(hours=endless))
    with pytest.raises(TaskError, match=r"envs\.A: must be text, not int"):
        Task(run="x", spot="never", envs={"A": 3})  # type: ignore[dict-item]
    with pytest.raises(TaskError, match="did you mean A100"):
        Task(run="x", spot="never", resources=(Resources(gpu="A100-40"),))
    with pytest.raises(TaskError, match="must be above zero"):
        Task(run="x", spot="never", resources=(Resources(disk=float("inf")),))
    with pytest.raises(TaskError, match="max_moves"):
        replace(task, max_moves=-1)


def test_json_keeps_everything() -> None:
    task = load("quickstart")
    assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@settings(max_examples=150, deadline=None)
@given(envs=st.dictionaries(names, text, max_size=4), run=text.filter(str.strip), setup=text)
def test_a_written_task_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, envs: dict[str, str], run: str, setup: str
) -> None:
    task = Task(name="t", run=run, setup=setup, envs=envs, spot="never", rehearse=Rehearse(envs=envs))
    path = tmp_path_factory.mktemp("w") / "job.yaml"
    path.write_bytes(task.to_yaml().encode())
    assert replace(load(path), source=None) == task


@settings(max_examples=200, deadline=None)
@given(value=st.text(alphabet="abcXYZ019.:-+_eE~", min_size=1, max_size=12))
def test_a_plain_value_is_the_text_as_typed(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    path = tmp_path_factory.mktemp("w") / "job.yaml"
    path.write_text(f"{NEVER}envs:\n  A: {value}\n", encoding="utf-8")
    try:
        got = load(path).envs["A"]
    except TaskError as error:
        # `~`, `a: b` and `- x` are something else in YAML, and are refused with their place.
        got, place = value, error.line
    else:
        place = 4
    assert (got, place) in ((value, 4), (value, 3))


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=60) | st.text("{}[]:,-&*!|>'\"%@`#?\n ab~<", max_size=40).map(str.encode))
def test_no_text_makes_it_crash(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("w") / "job.yaml"
    for data in (raw, NEVER.encode() + raw, NEVER.encode() + b"resources: " + raw, NEVER.encode() + b"envs: " + raw):
        path.write_bytes(data)
        with suppress(TaskError):
            load(path, environ={})


def test_importing_it_is_quick() -> None:
    code = "import sys, broker.task; print([m for m in ('pydantic', 'ruamel.yaml', 'pathspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_real_task_files_of_others_never_crash() -> None:
    files = sorted((SHARED / "cases").rglob("*.y*ml")) if SHARED.is_dir() else []
    if not files:
        pytest.skip("the shared cases are not here")
    for path in files:
        with suppress(TaskError):
            load(path, environ={})


def test_a_secret_may_name_the_trust_that_it_needs(tmp_path: Path) -> None:
    text = (
        NEVER + "secrets:\n  HF_TOKEN: {trust: community}\n  KEPT: {value: hf_EXAMPLE, trust: cloud}\n  PLAIN: p\n"
        "envs: {WANDB_API_KEY: wandb-key-0123, TOKENIZERS_PARALLELISM: 'false', STEPS: 4}\n"
    )
    (tmp_path / "job.yaml").write_text(text)
    task = load(tmp_path / "job.yaml", environ={"HF_TOKEN": "from outside"})
    assert task.secrets == {"HF_TOKEN": "from outside", "KEPT": "hf_EXAMPLE", "PLAIN": "p"}
    assert task.trust == {"HF_TOKEN": Trust.COMMUNITY, "KEPT": Trust.CLOUD}
    assert task.readers == {
        "HF_TOKEN": Trust.COMMUNITY,
        "KEPT": Trust.CLOUD,
        "PLAIN": Trust.DATACENTER,
        "TOKENIZERS_PARALLELISM": Trust.COMMUNITY,
        "WANDB_API_KEY": Trust.DATACENTER,
    }
    sealed = task.with_hidden_sealed()
    assert Task.from_json(sealed.to_json()).readers == task.readers
    (tmp_path / "again.yaml").write_text(task.to_yaml())
    again = load(tmp_path / "again.yaml", environ=dict.fromkeys(("HF_TOKEN", "KEPT", "PLAIN"), "v"))
    assert again.trust == task.trust
    over = load(tmp_path / "job.yaml", secrets={"HF_TOKEN": "given"})
    assert (over.secrets["HF_TOKEN"], over.trust["HF_TOKEN"]) == ("given", Trust.COMMUNITY)
    assert Task.from_json({k: v for k, v in task.to_json().items() if k != "trust"}).trust == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": "20"}, "budget: must be a number or None, not str"),
        ({"max_hours": None}, "max_hours: must be a number, not None"),
        ({"max_moves": True}, "max_moves: must be a whole number, not bool"),
        ({"deadline": 3600}, "deadline: must be text, not int"),
        ({"checkpoint": "ckpt"}, "checkpoint: must be a Checkpoint or None, not str"),
        ({"resources": "A100:1"}, "resources: must be a list, each a Resources, not a tuple of str"),
        ({"resources": Resources(disk="20")}, "resources.disk: must be a number, not str"),
        ({"work": Work(hours="6")}, "work.hours: must be a number or None, not str"),
        ({"speed": {"A100": "2"}}, "speed: must be a map from text to a number, not a map to str"),
        ({"secrets": ["hf_0001"]}, "secrets: must be a map of names and values"),
        ({"run": ["hf_0001"]}, "run: must be text, not a list of str"),
        ({"checkpoint": Checkpoint("/")}, "checkpoint.path: must be a folder"),
    ],
)
def test_values_of_another_type_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as told:
        Task(**{"run": "x", "spot": "never", **given})
    assert message in str(told.value)
    assert "hf_0001" not in str(told.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("$HOME/ckpt", "$HOME in '$HOME/ckpt' is filled in only as ${NAME} of envs: the program would save elsewhere"),
        ("runs/$SLURM_JOB_ID", "$SLURM_JOB_ID in"),
        ("$BROKER_CHECKPOINT_DIR", "$BROKER_CHECKPOINT_DIR in '$BROKER_CHECKPOINT_DIR' is set by the broker itself"),
        ("/proc/ckpt", "/proc/ckpt lies in a folder of the system's own"),
        ("/var/lib/spotbroker/x", "/var/lib/spotbroker/x lies in a folder of the broker's own"),
    ],
)
def test_a_checkpoint_folder_that_can_be_none_is_refused(tmp_path: Path, path: str, message: str) -> None:
    assert f"checkpoint.path: {message}" in str(refused(tmp_path, f"run: x\ncheckpoint: {{path: {path}}}\n"))


@pytest.mark.parametrize("path", ["/dev/shm/ckpt", "/ckpt", "~/a b", "price$/x", "/mnt"])
def test_a_checkpoint_folder_that_may_be_one_is_taken(tmp_path: Path, path: str) -> None:
    task = read(tmp_path, f"run: x\ncheckpoint: {{path: '{path}'}}\n")
    assert task.checkpoint == Checkpoint(path)


def test_an_output_with_a_variable_is_refused(tmp_path: Path) -> None:
    told = refused(tmp_path, NEVER + "envs: {RUN: '7'}\noutputs: ['${RUN}/w', $RUN/w]\n")
    assert "outputs: $RUN in '$RUN/w' is filled in only as ${NAME} of envs" in str(told)


def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(TaskError, match="a task is a Task, a task file or the name of a bundled one, not int"):
        load(5)  # type: ignore[arg-type]


def test_one_value_stands_for_a_list_of_one() -> None:
    given: dict[str, Any] = {"outputs": "out", "resources": Resources(infra="local"), "envs": None, "setup": None}
    task = Task(run="x", spot="never", **given)
    assert task.outputs == ("out",)
    assert task.resources[0].infra == ("local",)
    assert (task.envs, task.setup) == ({}, "")
    assert task.within("aws/us-*").resources[0].infra == ("aws/us-*",)


def test_a_job_keeps_no_secret_in_the_open() -> None:
    """Not for its name, not for an address in it, and not what only a rehearsal would set."""
    envs = {"DB_PASSWD": "pw-0001", "DATABASE_URL": "postgres://bob:pw-0002@db/x", "SHOWN": "yes"}
    rehearsed = Rehearse(envs={"OTHER_API_KEY": "pw-0003", "MAX_STEPS": "9"})
    task = Task(run="x", spot="never", envs=envs, rehearse=rehearsed).with_hidden_sealed()
    assert "pw-0" not in json.dumps(task.to_json())
    assert set(task.secrets) == {"DB_PASSWD", "DATABASE_URL"}
    assert task.rehearse is not None
    assert task.rehearse.envs == {"MAX_STEPS": "9"}


def test_a_password_in_a_repositorys_address_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("run: x\nspot: never\nworkdir: {url: 'https://me:ghp_0001@git.example/x.git'}\n")
    with pytest.raises(TaskError, match=r"t.yaml:3:16: workdir.url: holds a password") as caught:
        Task.from_yaml(file)
    assert "ghp_0001" not in str(caught.value)
    told = refused(tmp_path, NEVER + "file_mounts: {~/d: 'https://me:pw_0001@host/d'}\n")
    assert "file_mounts.~/d: holds a password" in str(told)
    assert "pw_0001" not in str(told)


def test_a_bare_tilde_is_not_taken_for_no_workdir(tmp_path: Path) -> None:
    assert "job.yaml:3:1: workdir: is empty: YAML reads a bare ~ as nothing" in str(
        refused(tmp_path, NEVER + "workdir: ~\n")
    )
    assert read(tmp_path, NEVER + "workdir:\n").workdir is read(tmp_path, NEVER + "workdir: null\n").workdir is None
    assert read(tmp_path, NEVER + "workdir: ~/\n").workdir == Path.home()


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ("{trust: everybody}", "secrets.A.trust: must be one of cloud, datacenter, community, not 'everybody'"),
        ("{trust: [cloud]}", "secrets.A.trust: must be one of cloud, datacenter, community"),
        ("{value: x, trsut: cloud}", "secrets.A.trsut: unknown field"),
        ("{value: {b: hf_EXAMPLE}}", "secrets.A: must be one value, not a map"),
    ],
)
def test_a_wrong_trust_is_named(tmp_path: Path, secret: str, message: str) -> None:
    error = str(refused(tmp_path, NEVER + f"secrets: {{A: {secret}}}\n"))
    assert message in error
    assert "EXAMPLE" not in error


def test_a_trust_from_python_is_checked() -> None:
    with pytest.raises(TaskError, match=r"secrets\.B: has a trust, and is no secret"):
        Task(run="x", spot="never", trust={"B": Trust.CLOUD})
    with pytest.raises(TaskError, match=r"secrets\.A\.trust: must be one of"):
        Task(run="x", spot="never", secrets={"A": "a"}, trust={"A": "anybody"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("run: x\nspot: nevr\n", "spot: must be 'auto', 'only' or 'never', not 'nevr'"),
        ("RUN: x\nspot: never\n", "RUN: unknown field; did you mean run?"),
        ("run: x\nresources: {use_spot: maybe}\n", "resources.use_spot: must be true or false, not 'maybe'"),
        ("run: !!binary aGVsbG8=\nspot: never\n", "run: the tag !!binary means nothing here"),
        ("run: !!python/name:os.system\nspot: never\n", "run: the tag !!python/name:os.system means nothing here"),
    ],
)
def test_one_mistake_is_one_line(tmp_path: Path, text: str, only: str) -> None:
    """What is missing only because of a mistake is not told beside it."""
    with pytest.raises(TaskError) as raised:
        read(tmp_path, text)
    assert str(raised.value).count("\n") == 0
    assert only in str(raised.value)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("run: x\n---\nrun: y\n", "one task in a file"),
        ("run: echo a: b\n", "needs quotes, or the block form"),
        ("run: x\nenvs:\n\tA: 1\n", "YAML takes no tabs"),
    ],
)
def test_text_that_is_no_yaml_says_what_to_do(tmp_path: Path, text: str, fix: str) -> None:
    with pytest.raises(TaskError) as raised:
        read(tmp_path, text)
    assert fix in raised.value.fix


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("checkpoint: {path: /ckpt}\n", True),
        ("checkpoint: {path: c}\nfile_mounts: {/data: .}\n", True),
        ("checkpoint: {path: ~/ckpt}\nfile_mounts: {~/data: .}\n", False),
    ],
)
def test_absolute_paths_ask_for_a_machine_of_the_jobs_own(tmp_path: Path, text: str, alone: bool) -> None:
    """Bare, this computer's machines share it with its owner: they are not offered for such a task."""
    from broker_local import LocalProvider

    (query,) = read(tmp_path, f"run: x\nresources: {{infra: local}}\n{text}").queries
    assert query.alone is alone
    assert bool(LocalProvider({}, tmp_path).offers(query)) is not alone


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("deadline: 6h\n", (4, 11), "deadline: cannot be held"),
        ("file_mounts:\n  data: no/such\n", (5, 9), "file_mounts.data: no such file or folder"),
        ("file_mounts:\n  ~/big.d/x: sparse\nresources: {disk_size: 1}\n", (5, 3), "file_mounts: 2.0 GiB do not fit"),
        ("workdir: linked\n", (4, 10), "workdir: "),
    ],
)
def test_what_is_found_wrong_only_by_a_plan_has_its_place_too(
    tmp_path: Path, text: str, place: tuple[int, int], words: str
) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "link").symlink_to("/etc/hostname")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2 * 1024**3)
    path = tmp_path / "t.yaml"
    path.write_text(f"# a comment\nrun: echo\nspot: never\n{text}", encoding="utf-8")
    config = load_config(state=tmp_path / "state", file=tmp_path / "config.toml")
    with pytest.raises(TaskError, match=re.escape(words)) as caught:
        broker.plan(path, config=config, infra=["local"])
    assert (caught.value.line, caught.value.column) == place
    assert caught.value.message.startswith(f"{path}:{place[0]}:{place[1]}: {words}")
