"""SkyPilot's task file in all its forms: read as it is meant, or refused by name; nothing is passed over in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker import images, taskfile
from broker.coverage import fields_report
from broker.errors import TaskError
from broker.mounts import Mount
from broker.offer import Market, Offer
from broker.policy import Memory, choose
from broker.schedule import Schedule, Window
from broker.task import Resources, Task, load

SAFE = "run: x\ncheckpoint: {path: ckpt}\n"


def read(folder: Path, text: str, **envs: str) -> Task:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, environ={}, envs=envs)


def resources(folder: Path, text: str) -> Task:
    return read(folder, f"{SAFE}resources: {text}\n")


def cards(task: Task) -> list[tuple[str | None, int]]:
    return [(wish.gpu, wish.gpu_count) for wish in task.resources]


@pytest.mark.parametrize(
    ("form", "expected", "ordered"),
    [
        ("A100", [("A100", 1)], False), ("A100:8", [("A100", 8)], False), ("{A100: 8}", [("A100", 8)], False),
        ("{A100: 1, H100: null}", [("A100", 1), ("H100", 1)], False),
        ("['A100:1', 'H100:2']", [("A100", 1), ("H100", 2)], True), ("[L4]", [("L4", 1)], False),
        ("A100:0.5", [("A100", 1)], False), ("{L4: 0.25}", [("L4", 1)], False),
        ("24GB+", [("24GB+", 1)], False), ("nvidia:40GB+:2", [("nvidia:40GB+", 2)], False),
        ("{'40GB+': 2, L4: 1}", [("40GB+", 2), ("L4", 1)], False), ("null", [(None, 0)], False),
    ],
)  # fmt: skip
def test_accelerators(tmp_path: Path, form: str, expected: list[tuple[str | None, int]], ordered: bool) -> None:
    task = resources(tmp_path, f"{{accelerators: {form}}}")
    assert (cards(task), task.ordered) == (expected, ordered)


def test_alternatives_are_a_cross_product_and_inherit(tmp_path: Path) -> None:
    entries = ", ".join(f"{{infra: {place}}}" for place in ("aws", "gcp/us-*", "'*/*/z1'", "runpod", "vast"))
    task = resources(tmp_path, f"{{accelerators: {{A100: 1, L4: 1}}, cpus: 4+, any_of: [{entries}]}}")
    assert len(task.resources) == 10
    assert {wish.cpus for wish in task.resources} == {4}
    assert task.resources[:2] == tuple(
        Resources(gpu=gpu, gpu_count=1, cpus=4, infra=("aws",)) for gpu in ("A100", "L4")
    )
    assert not task.ordered


def test_ordered_is_a_strict_order_for_the_policy(tmp_path: Path) -> None:
    def offer(gpu: str, price: float) -> Offer:
        return Offer("vast", "r", "", gpu, Market.SPOT, price, gpu=gpu, gpu_count=1, disk=100)

    from broker.outlook import wish_of

    offers = [offer("L4", 0.2), offer("A100", 1.5), offer("H100-SXM", 2.5), offer("H100-PCIe", 2.4)]
    for form in (
        "{ordered: [{accelerators: H100}, {accelerators: A100}, {accelerators: L4}]}",
        "{accelerators: [H100, A100, L4]}",
    ):
        wish = wish_of(resources(tmp_path, form))
        decision = choose(offers, wish=wish, memory=Memory(), now=0.0)
        assert [c.offer.gpu for c in decision.ranked] == ["H100-PCIe", "H100-SXM", "A100", "L4"]
        assert decision.reasons[-1] == "number 1 of 3 in the task's order, which goes before the price"
        assert choose(offers[:2], wish=wish, memory=Memory(), now=0.0).alternative == 1
    loose = wish_of(resources(tmp_path, "{accelerators: {H100: 1, A100: 1, L4: 1}}"))
    assert choose(offers, wish=loose, memory=Memory(), now=0.0).ranked[0].offer.gpu == "L4"


@pytest.mark.parametrize(
    ("form", "infra"),
    [
        ("{cloud: aws}", ("aws",)), ("{cloud: aws, region: us-east-1}", ("aws/us-east-1",)),
        ("{region: eu}", ("*/eu",)),
        ("{zone: eu-1a}", ("*/*/eu-1a",)), ("{cloud: gcp, zone: z}", ("gcp/*/z",)),
        ("{infra: 'aws/*/us-east-1a'}", ("aws/*/us-east-1a",)),
        ("{infra: runpod/NO}", ("runpod/NO",)), ("{cloud: aws, any_of: [{cloud: gcp}]}", ("gcp",)),
        ("{cloud: aws, region: r, any_of: [{cloud: gcp}]}", ("gcp",)),
        ("{cloud: aws, any_of: [{region: r}]}", ("aws/r",)),
        ("{cloud: aws, any_of: [{infra: vast}]}", ("vast",)), ("{infra: aws, any_of: [{cloud: gcp}]}", ("gcp",)),
    ],
)  # fmt: skip
def test_places(tmp_path: Path, form: str, infra: tuple[str, ...]) -> None:
    assert resources(tmp_path, form).resources[0].infra == infra


def test_an_instance_type_narrows_the_places(tmp_path: Path) -> None:
    from broker.policy.infra import matcher

    (query,) = resources(tmp_path, "{instance_type: g6.xlarge, infra: aws/us-*}").queries
    offers = [Offer("aws", region, f"{region}a", kind, Market.SPOT, 1.0) for region, kind in (
        ("us-east-1", "g6.xlarge"), ("us-east-1", "g6.2xlarge"), ("eu-west-1", "g6.xlarge")
    )]  # fmt: skip
    assert [matcher(query.infra)(offer) for offer in offers] == [True, False, False]


def test_images(tmp_path: Path) -> None:
    assert resources(tmp_path, "{image_id: 'docker:pytorch/pytorch:2.9'}").resources[0].image == "pytorch/pytorch:2.9"
    assert resources(tmp_path, "{image_id: null}").resources[0].image is None
    assert resources(tmp_path, "{image_id: ami-0123}").resources[0].image == "ami-0123"
    for written in ("ami-0123", "docker:ami-0123", "docker:a/b:1"):
        task = resources(tmp_path, f"{{image_id: '{written}'}}")
        assert images.parse(task.resources[0].image) == images.parse(written)
        (tmp_path / "again.yaml").write_text(task.to_yaml())
        assert Task.from_yaml(tmp_path / "again.yaml").resources == task.resources
    task = resources(tmp_path, "{infra: [aws, gcp/us-1], image_id: {us-1: 'docker:a', eu-1: 'docker:b'}}")
    assert [(wish.infra, wish.image) for wish in task.resources] == [
        (("aws/us-1", "gcp/us-1"), "a"), (("aws/eu-1",), "b"),
    ]  # fmt: skip


def test_recovery_old_and_new(tmp_path: Path) -> None:
    new = resources(
        tmp_path, "{job_recovery: {strategy: FAILOVER, max_restarts_on_errors: 3, recover_on_exit_codes: [33, 34]}}"
    )
    assert (new.max_restarts_on_errors, new.recover_on_exit_codes) == (3, (33, 34))
    one = resources(tmp_path, "{any_of: [{infra: aws}, {infra: gcp}], spot_recovery: {recover_on_exit_codes: 33}}")
    assert (one.max_restarts_on_errors, one.recover_on_exit_codes) == (0, (33,))
    for name in ("job_recovery", "spot_recovery"):
        assert resources(tmp_path, f"{{{name}: EAGER_NEXT_REGION}}").max_restarts_on_errors == 0
    with pytest.raises(TaskError, match="must be the same for all alternatives"):
        resources(tmp_path, "{any_of: [{job_recovery: {max_restarts_on_errors: 1}}, {}]}")


def test_sizes_and_prices(tmp_path: Path) -> None:
    (wish,) = resources(tmp_path, "{cpus: 8+, memory: 4x, disk_size: 200GB}").resources
    assert (wish.cpus, wish.memory, wish.disk) == (8, 32, 200)
    assert resources(tmp_path, "{max_hourly_cost: 2.5}").max_price == 2.5


def test_use_spot_of_each_alternative(tmp_path: Path) -> None:
    from broker.outlook import wish_of

    task = resources(
        tmp_path, "{accelerators: L4, any_of: [{use_spot: true, infra: aws}, {use_spot: false, infra: gcp}]}"
    )
    assert [wish.on_demand for wish in task.resources] == [False, True]
    assert task.spot == "auto"
    spot, steady = (
        Offer("gcp", "r", "", "m", market, price, gpu="L4", gpu_count=1)
        for market, price in ((Market.SPOT, 0.1), (Market.ON_DEMAND, 0.5))
    )
    decision = choose([spot, steady], wish=wish_of(task), memory=Memory(), now=0.0)
    assert decision.offer == steady
    assert "use_spot: false for these resources" in decision.rejected[0].reason
    assert resources(tmp_path, "{use_spot: false}").spot == "never"
    some = resources(tmp_path, "{any_of: [{infra: aws}, {infra: gcp, use_spot: false}]}")
    assert ([wish.on_demand for wish in some.resources], some.spot) == ([False, True], "auto")
    assert read(tmp_path, f"{SAFE}spot: only\nresources: {{use_spot: true}}\n").spot == "only"


def test_mounts(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "one.txt").write_text("1")
    task = read(
        tmp_path,
        "run: x\nenvs: {WHAT: data, B: bucket}\ncheckpoint: {path: /ckpt/run}\nfile_mounts:\n"
        "  ~/data/: ./${WHAT}\n  /one.txt: one.txt\n  /b: s3://${B}/x\n"
        "  /c: {source: 's3://b/c', mode: copy}\n  /m: {source: 's3://b/m', mode: MOUNT}\n"
        "  /ckpt: {name: my-bucket, store: s3, mode: MOUNT_CACHED}\n",
    )
    assert task.file_mounts == (
        Mount("~/data", str(tmp_path / "data")), Mount("/one.txt", str(tmp_path / "one.txt")), Mount("/b", "s3://bucket/x"),
        Mount("/c", "s3://b/c"), Mount("/m", "s3://b/m", "MOUNT"), Mount("/ckpt", "", "MOUNT_CACHED"),
    )  # fmt: skip
    assert any(text.startswith("file_mounts./m: mounting is emulated by a copy") for text in task.warnings)
    assert Task.from_json(task.to_json()) == task


def test_a_git_workdir_is_fetched_by_setup(tmp_path: Path) -> None:
    task = read(tmp_path, f"{SAFE}workdir: {{url: 'https://x/y.git', ref: 'a b'}}\nsetup: make\n")
    assert task.workdir is None
    assert task.setup.splitlines()[-1] == "make"
    assert "git fetch -q --depth 1 https://x/y.git 'a b'" in task.setup


def test_names_are_filled_in_only_where_the_broker_reads(tmp_path: Path) -> None:
    for name in ("over", "file"):
        (tmp_path / f"w-{name}").mkdir()
    text = (
        "run: echo ${W}\nsetup: echo ${W}\nenvs: {W: file, X: '${W}'}\nworkdir: 'w-${W}'\n"
        "checkpoint: {path: 'ck/${W}'}\noutputs: ['out/${W}/*']\nhome: s3://b/${W}\n"
    )
    task = read(tmp_path, text, W="over")
    assert (task.run, task.setup, task.envs["X"]) == ("echo ${W}", "echo ${W}", "${W}")
    assert task.workdir == tmp_path / "w-over"
    assert task.checkpoint is not None
    assert (task.checkpoint.path, task.outputs, task.home) == ("ck/over", ("out/over/*",), "s3://b/over")
    with pytest.raises(TaskError, match="kept from people"):
        read(tmp_path, f"{SAFE}envs: {{API_KEY: k}}\nhome: 's3://b/${{API_KEY}}'\n")


def test_our_fields_may_stand_in_metadata(tmp_path: Path) -> None:
    task = read(
        tmp_path,
        "run: x\nresources: {accelerators: L4}\n_metadata:\n  theirs: 1\n  broker:\n"
        "    checkpoint: {path: c, keep: 5}\n    spot: only\n    resources: {disk_size: 50}\n",
    )
    assert task.checkpoint is not None
    assert (task.checkpoint.path, task.checkpoint.keep, task.spot) == ("c", 5, "only")
    assert task.resources == (Resources(gpu="L4", gpu_count=1, disk=50),)
    with pytest.raises(TaskError, match=r"job\.yaml:5:14: checkpoint\.keep: must be a whole number"):
        read(tmp_path, "run: x\n_metadata:\n  broker:\n    checkpoint:\n       keep: many\n       path: c\n")


@pytest.mark.parametrize(
    ("field", "values"),
    [("deadline", ["6h", "07:30", "2027-01-31 07:30", "2027-01-31T07:30+01:00"]), ("budget", ["12.5"])],
)
def test_limits_are_read(tmp_path: Path, field: str, values: list[str]) -> None:
    for value in values:
        task = read(tmp_path, f"{SAFE}{field}: {value}\n")
        assert str(getattr(task, field)) == value.strip("'")
        assert Task.from_json(task.to_json()) == task


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("'0 2 * * *'", Schedule("0 2 * * *")),
        ("'@daily'", Schedule("@daily")),
        ("'30 2 * * 1-5 Europe/Paris'", Schedule("30 2 * * 1-5", "Europe/Paris")),
        ("{cron: 30 2 * * 1-5, tz: Europe/Paris}", Schedule("30 2 * * 1-5", "Europe/Paris")),
        (
            '{cron: "0 22 * * 1-5", tz: Europe/Lisbon, deadline: "07:00", max_price: 1, missed: skip, overlap: queue}',
            Schedule("0 22 * * 1-5", "Europe/Lisbon", "07:00", 1.0, "skip", "queue"),
        ),
        (
            "{cron: '0 22 * * *', window: {from: '22:00', to: '07:00'}}",
            Schedule("0 22 * * *", window=Window("22:00", "07:00")),
        ),
    ],
)
def test_a_schedule_is_read_in_all_its_forms(tmp_path: Path, written: str, meant: Schedule) -> None:
    task = read(tmp_path, f"{SAFE}schedule: {written}\n")
    assert task.schedule == meant
    assert Task.from_json(task.to_json()) == task
    assert read(tmp_path, task.to_yaml()).schedule == meant


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("now and then", r"job\.yaml:\d+:\d+: schedule\.cron: must be five fields"),
        ("'0 0 30 2 *'", r"schedule\.cron: never comes: no month of '2' has a day 30"),
        ("'* * * * * *'", "schedule.cron: must be five fields .*, not 6"),
        ("'0 25 * * *'", "its hour '25' is none"),
        ("'@reboot'", "there is no '@reboot'"),
        (
            "'0 22 * * * Europe/Lissabon'",
            r"schedule\.tz: there is no time zone 'Europe/Lissabon'; did you mean Europe/Lisbon",
        ),
        ("{cron: '@daily', tz: Lisbon}", "did you mean Europe/Lisbon"),
        ("{tz: UTC}", r"schedule\.cron: is missing"),
        ("{cron: '@daily', missed: drop}", "schedule.missed: must be 'join' or 'skip', not 'drop'"),
        ("{cron: '@daily', deadline: soon}", "schedule.deadline: must be a time such as 6h"),
        ("{cron: '@daily', window: {from: '22:00'}}", r"schedule\.window\.to: must be a clock time"),
        ("{cron: '@daily', window: {from: '22:00', to: '22:00'}}", "the window is empty"),
        ("{cron: '@daily', window: {from: '22:00', to: '7:00', start: last}}", "must be 'cheapest' or 'first'"),
        ("{cron: '@daily', zone: UTC}", r"schedule\.zone: unknown field"),
    ],
)
def test_a_schedule_that_is_none(tmp_path: Path, written: str, why: str) -> None:
    with pytest.raises(TaskError, match=why):
        read(tmp_path, f"{SAFE}schedule: {written}\n")


def test_speeds_by_card_are_read(tmp_path: Path) -> None:
    task = read(tmp_path, f"{SAFE}speed: {{h100: 2.1, A100: 1}}\n")
    assert task.speed == {"H100": 2.1, "A100": 1.0}
    assert Task.from_json(task.to_json()) == task
    for wrong in ("fast", "{A100: 0}", "{A100: quick}", "{Z9: 1}"):
        with pytest.raises(TaskError, match="speed"):
            read(tmp_path, f"{SAFE}speed: {wrong}\n")


THEIRS = """\
name: train
num_nodes: 1
workdir: {url: https://example.com/repo.git, ref: main}
resources:
  accelerators: {A100: 8, 40GB+: 0.5}
  cpus: 8
  use_spot: true
  job_recovery: {strategy: FAILOVER, max_restarts_on_errors: 2}
  disk_tier: best
  ports: 8888
  autostop: {idle_minutes: 10}
  labels: {team: x}
  any_of: [{cloud: aws, use_spot: false}, {infra: gcp, network_tier: best}]
file_mounts:
  /data.d: {source: s3://bucket/data, mode: MOUNT, persistent: true}
outputs: {s3://out: 5}
config: {kubernetes: {provision_timeout: 5}}
event_callback: curl example.com
service: {replicas: 1}
pool: {workers: 3}
volumes: {/mnt: vol}
api_server_access: true
_metadata: {note: n, broker: {checkpoint: {path: ~/ckpt}, schedule: "@daily"}}
setup: pip list
run: python train.py
"""


def test_the_report_names_every_field(tmp_path: Path) -> None:
    task = read(tmp_path, THEIRS)
    reports = {report.field: report for report in fields_report(taskfile.document(tmp_path / "job.yaml"))}
    how = {field: report.how for field, report in reports.items()}
    assert [how[f] for f in ("name", "num_nodes", "setup", "run", "resources.any_of.0.cloud")] == ["honoured"] * 5
    assert how["resources.any_of.0.use_spot"] == "honoured"
    for field in (
        "resources.use_spot",
        "resources.accelerators",
        "workdir.url",
        "file_mounts./data.d",
    ):
        assert how[field] == "emulated", field
    ignored = [
        "resources.job_recovery.strategy", "resources.disk_tier", "resources.ports", "resources.autostop",
        "resources.any_of.1.network_tier", "file_mounts./data.d.persistent", "outputs", "config", "event_callback",
        "service", "pool", "volumes", "api_server_access", "_metadata.note",
    ]  # fmt: skip
    assert [field for field in how if how[field] == "ignored"] == sorted(ignored, key=list(how).index)
    assert how["_metadata.broker.checkpoint.path"] == "honoured"
    assert how["_metadata.broker.schedule"] == "honoured"
    assert all(report.why for report in reports.values() if report.how != "honoured")
    assert task.warnings[0].startswith("ignored: resources.job_recovery.strategy")
    assert (task.outputs, task.max_restarts_on_errors) == ((), 2)


def test_the_report_survives_a_wrong_file() -> None:
    reports = fields_report(
        {"nope": "1", "resources": {"gpu": "x", "any_of": "y"}, "file_mounts": None, "num_nodes": "3"}
    )
    assert [report.how for report in reports] == ["refused", "refused", "honoured", "honoured", "refused"]


def test_every_ignored_field_is_taken(tmp_path: Path) -> None:
    from broker.fields import MODELS

    for outer in ("", "resources"):
        for name, info in MODELS[outer].model_fields.items():
            if (info.json_schema_extra or {}).get("how") == "ignored":  # type: ignore[union-attr]
                text = f"{SAFE}{name}: {{a: [1]}}\n" if not outer else f"{SAFE}{outer}: {{{name}: {{a: [1]}}}}\n"
                assert any(name in warning for warning in read(tmp_path, text).warnings), name


def test_written_tasks_read_back(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    task = read(
        tmp_path,
        "run: x\ncheckpoint: {path: /c}\nfile_mounts: {/c: {name: n}, ~/d: data}\n"
        "deadline: 6h\nbudget: 3\nschedule: '@daily'\n"
        "resources: {instance_type: t, job_recovery: {recover_on_exit_codes: 3, max_restarts_on_errors: 1}, "
        "ordered: [{use_spot: true, image_id: 'docker:i', accelerators: 24GB+}, {use_spot: false}]}\n",
    )
    path = tmp_path / "again.yaml"
    path.write_text(task.to_yaml(), encoding="utf-8")
    again = load(path)
    assert again.to_json() | {"source": "", "warnings": []} == task.to_json() | {"source": "", "warnings": []}


def test_labels_become_tags_of_the_machines(tmp_path: Path) -> None:
    text = SAFE + "resources: {labels: {team: vision, Cost Center: '12 a', empty: }}\n"
    task = read(tmp_path, text)
    assert task.labels == {"team": "vision", "Cost Center": "12 a", "empty": ""}
    assert Task.from_json(task.to_json()) == task
    assert read(tmp_path, task.to_yaml()).labels == task.labels
    assert "ignored" not in " ".join(task.warnings)
    both = "resources: {labels: {team: a}, any_of: [{infra: aws}, {infra: gcp}]}\n"
    assert read(tmp_path, SAFE + both).labels == {"team": "a"}
    with pytest.raises(TaskError, match=r"resources\.labels: must be the same for all alternatives"):
        read(tmp_path, SAFE + "resources: {any_of: [{infra: aws, labels: {team: a}}, {infra: gcp}]}\n")


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ("{spotbroker-job: mine}", r"job\.yaml:\d+:\d+: resources\.labels\.spotbroker-job: names that start with"),
        ("{SpotBroker-x: mine}", "are the broker's own"),
        ("{'aws:name': x}", "reserved by a cloud"),
        ("{a?b: x}", "cannot stand in a label's name"),
        (f"{{{'n' * 129}: x}}", "has 129 characters"),
        (f"{{n: {'v' * 257}}}", "has 257 characters"),
        ('{n: "a\\nb"}', "one printable line"),
        ("{'': x}", "cannot be a label's name"),
        ("{n: {m: x}}", "the value of n must be one text"),
        ("[a, b]", "must be a map"),
        ("{" + ", ".join(f"n{i}: x" for i in range(41)) + "}", "41 are more than the 40"),
    ],
)
def test_labels_that_no_cloud_would_take(tmp_path: Path, labels: str, why: str) -> None:
    with pytest.raises(TaskError, match=why):
        read(tmp_path, f"{SAFE}resources: {{labels: {labels}}}\n")
