"""A whole job on EC2's stand-in: real machines in two regions, a real S3 home, an interruption with its notice.

Two minutes are twenty-four seconds here: the stand-in's time is scaled, nothing of ours is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
from cli.command import Cli
from clouds.aws.metadata import InstanceMetadata
from clouds.aws.server import Aws
from clouds.aws.state import Ami
from clouds.machine import IMAGE, Machine, Machines
from clouds.seaweedfs import SeaweedFS
from crash.harness import Site, wait_for

from broker.access import own
from broker.boot import user_data
from broker.config import load
from broker.home import Home, JobKeys
from broker.job import Job
from broker.offer import Market, OfferQuery, hourly_of
from broker.provider import Cause, Kind, State
from broker.resources import Resources
from broker.task import Task
from broker.task import load as load_task
from broker.testing import wait_for as wait_until
from broker.testing.conformance import request_for
from broker_aws import AwsProvider

NOTICE = 24.0
STEPS = 120
PROGRAM = """
import json, os, signal, sys, time
from broker.guest import progress
path, steps, stop = os.path.join(os.environ["BROKER_CHECKPOINT_DIR"], "state.json"), int(os.environ["STEPS"]), []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))

def save():
    with open(path + ".new", "w") as file:
        json.dump({"step": step}, file)
    os.replace(path + ".new", path)

step = json.load(open(path))["step"] if os.path.exists(path) else 0
while step < steps and not stop:
    step += 1
    print(json.dumps({"step": step, "at": time.time(), "generation": int(os.environ["BROKER_GENERATION"])}), flush=True)
    progress(step, steps)
    if step % 10 == 0:
        save()
    time.sleep(0.05)
if stop:
    save()
    sys.exit(143)
os.makedirs("out", exist_ok=True)
open("out/total.txt", "w").write(str(step))
"""


@pytest.fixture
def installed(aws: Aws, machines: Machines, seaweedfs: SeaweedFS, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes an installation with EC2 as its market, whose machines really run, and S3 as its home."""
    made: list[Site] = []

    def install(packages: Path | None = None, **changed: Any) -> Site:
        def boot(instance_id: str, user_data: bytes, metadata: InstanceMetadata) -> Machine:
            return machines.vm(instance_id[:10], user_data=user_data, metadata=metadata, packages=packages)

        aws.world.machines, aws.world.notice_seconds = boot, NOTICE
        store = machines.reach(seaweedfs.endpoint)
        access = {**seaweedfs.mints("assume-role"), "sts_endpoint": store}
        home_config = {**changed.pop("home_config", access), "endpoint": store}
        site = Site(
            tmp_path,
            home=changed.pop("home", "") or seaweedfs.new_home(),
            home_config=home_config,
            limits={"beat": 1.0, "store_poll": 0.5},
            providers={"aws": {**aws.settings(), **changed}},
        )
        (site.work / "program.py").write_text(PROGRAM)
        made.append(site)
        return site

    yield install
    for site in made:
        site.close()


def lines(site: Site, job: Job) -> list[dict[str, Any]]:
    """What the job's programs printed, by all placements, in the order of the home's log."""
    keys, home = JobKeys(job.id), Home(own(site.config, site.config.home))
    text = b"".join(
        home.get(entry.key)
        for row in job.placements()
        for entry in sorted(home.list(keys.logs(row.generation)), key=lambda entry: entry.key)
    )
    return [json.loads(line) for line in text.splitlines() if line.startswith(b'{"step"')]


@pytest.mark.slow
def test_the_quickstart_is_interrupted_with_notice_and_finished_elsewhere(
    aws: Aws, machines: Machines, installed: Callable[..., Site], tmp_path: Path
) -> None:
    """Its packages are in its container's image, so that its setup finds nothing to do."""
    if machines.python != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"numpy is installed here for another Python than the machines' {machines.python}")
    site = installed(packages=Path(sysconfig.get_path("platlib")))
    wish = Resources(cpus=2, infra=("aws",), instance_type="c5.xlarge", image=IMAGE)
    task = replace(load_task("quickstart", envs={"STEPS": str(STEPS), "SAVE_EVERY": "10"}), resources=(wish,))
    provider = AwsProvider(aws.settings(), site.folder / "other")
    best, next_best = sorted(provider.offers(wish.query()), key=lambda offer: (offer.hourly, offer.key))[:2]
    job = site.submit(task)
    tell = lambda: f"{site.story(job)}\n{[m.log()[-2000:] for m in aws.world.running.values()]}"  # noqa: E731
    with undisturbed(task, tmp_path / "alone") as alone, site.up():
        wait_for(lambda: site.store.events(job.id, kinds=["snapshot"]), "a snapshot", 90.0, tell)
        (first,) = aws.world.running
        aws.world.take_back(first, notice=True)
        noticed = time.time()
        wait_for(lambda: len(aws.world.charges) == 2, "the replacement", NOTICE, tell)
        assert list(aws.world.charges.values())[1].begin < noticed + NOTICE, "launched within the notice"
        wait_for(lambda: job.refresh().done, "the end of the job", 120.0, tell)
        wait_for(lambda: not aws.world.running, "its machines to be gone", 30.0, tell)
    assert job.refresh().status == "succeeded", tell()
    one, two = job.placements()
    assert [row.request["offer"]["zone"] for row in (one, two)] == [best.zone, next_best.zone]
    assert best.region != next_best.region
    # One program at a time: the second went on with what the first had saved last of all.
    text = ["".join(text for generation, _, text in job.logs() if generation == number) for number in (1, 2)]
    (saved,) = re.findall(r"asked to stop: saved step (\d+)", text[0])
    (resumed,) = re.findall(r"resumed at step (\d+)", text[1])
    assert 0 < int(saved) == int(resumed) < STEPS, text
    job.pull(tmp_path / "pulled")
    assert alone.returncode == 0
    assert weights(tmp_path / "pulled") == weights(tmp_path / "alone")
    # The ledger has the prices charged.
    charged = list(aws.world.charges.values())
    assert [row.hourly for row in (one, two)] == pytest.approx([charge.hourly for charge in charged])
    assert all(charge.end is not None for charge in charged)
    total = sum(charge.total(0.0) for charge in charged)
    assert job.spent == pytest.approx(total, abs=15 / 3600 * max(charge.hourly for charge in charged))
    assert [str(one.state) for one in provider.instances()] == ["terminated", "terminated"]
    assert not aws.world.sent("CreateKeyPair")


def weights(folder: Path) -> dict[str, bytes]:
    """What a run has made, bit for bit; two versions of Python pack the same arrays in other ways."""
    with np.load(folder / "outputs" / "model.npz") as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files}


def undisturbed(task: Task, folder: Path) -> subprocess.Popen[bytes]:
    """The task's program on this computer, without a broker."""
    assert task.workdir is not None
    shutil.copytree(task.workdir, folder)
    environment = {**os.environ, **task.envs}
    return subprocess.Popen([sys.executable, "train.py"], cwd=folder, env=environment, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_machine_that_nobody_watches_ends_itself(aws: Aws, machines: Machines, tmp_path: Path) -> None:
    """Its shutdown terminates it, disk and all, and EC2 says that it was the machine's own doing."""
    provider = AwsProvider(aws.settings(), tmp_path)
    aws.world.machines = lambda name, user_data, metadata: machines.vm(
        name[:10], user_data=user_data, metadata=metadata
    )
    query = OfferQuery(cpus=2, infra=("aws/us-east-1/*/c5.xlarge",), markets=(Market.SPOT,))
    offer = provider.offers(query)[0]
    nowhere = user_data("http://10.231.0.1:9/boot", time.time() + 2.0, provider="aws", kind=Kind.VM, limit=16_384)
    launched = provider.launch(request_for(offer, user_data=nowhere))

    def ended() -> bool:
        (found,) = provider.instances()
        return found.state is State.TERMINATED

    assert provider.instances()[0].alive
    assert wait_until(ended, 30.0)
    (found,) = provider.instances()
    assert (found.id, found.cause) == (launched.id, Cause.SELF)
    assert aws.world.charges[launched.id].end is not None
    assert not boto3.client("ec2", region_name="us-east-1").describe_volumes()["Volumes"]


@pytest.mark.slow
def test_a_machine_with_an_instance_profile_needs_no_key(
    aws: Aws, installed: Callable[..., Site], machines: Machines, seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    """`home setup` makes the profile. No key goes to the machine; its role's own, of a few seconds, reach the home as
    far as the role's policy says, and are renewed while the job runs."""
    store, home, cli = machines.reach(seaweedfs.endpoint), seaweedfs.new_home(), Cli(tmp_path / "setup")
    cli.folder.mkdir()
    where = ("--store", "s3", "--region", "us-east-1", "--endpoint", store, "--bucket", home.removeprefix("s3://"))
    process = cli.start("home", "setup", *where, "--instance-profile", "ours", "--key-stdin", stdin=subprocess.PIPE)
    _, said = process.communicate("admin\nadmin-secret\n", timeout=60)
    assert process.returncode == 0, said
    aws.world.profile_keys = lambda policy: seaweedfs.role_keys(policy, lasting=5.0, fresh=1.0)
    written = load(state=tmp_path / "none", file=cli.folder / "config.toml")
    site = installed(home=written.home, home_config=written.home_config)
    resources = (Resources(cpus=2, infra=("aws",), instance_type="c5.xlarge", image=IMAGE),)
    job = site.submit(site.task("count", run="exec python3 program.py", envs={"STEPS": "80"}, resources=resources))
    tell = lambda: f"{site.story(job)}\n{[m.log()[-2000:] for m in aws.world.running.values()]}"  # noqa: E731
    with site.up():
        wait_for(lambda: site.store.events(job.id, kinds=["snapshot"]), "a snapshot", 60.0, tell)
        (machine,) = aws.world.running.values()
        told = lambda text: machine.run("grep", "-rqsF", text, "/var/lib/spotbroker").returncode == 0  # noqa: E731
        assert told(store), "the machine knows where the home is"
        assert not told("admin-secret"), "and has no key of its own"
        wait_for(lambda: job.refresh().done, "the end of the job", 60.0, tell)
    assert job.refresh().status == "succeeded", tell()
    (sent,) = aws.world.sent("RunInstances")
    assert sent["IamInstanceProfile.Name"] == "ours"
    (metadata,) = aws.world.metadata.values()
    asked = [path for _, path, status in metadata.asked if "security-credentials/ours" in path and status == 200]
    assert len(asked) > 2, "its keys were renewed"
    assert len(lines(site, job)) == 80


@pytest.mark.slow
def test_an_image_of_the_users_own_runs_bare(aws: Aws, installed: Callable[..., Site]) -> None:
    """An AMI belongs to one region: the job goes there, and its program runs on the machine itself."""
    ami = "ami-0123456789abcdef0"
    aws.world.amis["us-west-2"][ami] = Ami("/dev/xvda", 30, "x86_64")
    try:
        site = installed()
        resources = (Resources(cpus=2, infra=("aws",), instance_type="c5.xlarge", image=ami),)
        job = site.submit(site.task("count", run="exec python3 program.py", envs={"STEPS": "15"}, resources=resources))
        tell = lambda: f"{site.story(job)}\n{[m.log()[-2000:] for m in aws.world.running.values()]}"  # noqa: E731
        with site.up():
            wait_for(lambda: job.refresh().done, "the end of the job", 60.0, tell)
    finally:
        del aws.world.amis["us-west-2"][ami]
    assert job.refresh().status == "succeeded", tell()
    (sent,) = aws.world.sent("CreateLaunchTemplate")  # of several zones any would do
    disk = "LaunchTemplateData.BlockDeviceMapping.1"
    assert (sent["LaunchTemplateData.ImageId"], sent[f"{disk}.DeviceName"]) == (ami, "/dev/xvda")
    assert sent[f"{disk}.Ebs.VolumeSize"] == "30", "as large as the image needs"
    assert [row.request["offer"]["region"] for row in job.placements()] == ["us-west-2"]
    assert len(lines(site, job)) == 15


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["answered", "killed before the answer"])
def test_many_are_asked_for_at_once_and_the_winner_is_booked(
    aws: Aws, installed: Callable[..., Site], killed: bool
) -> None:
    """A broker that dies while the fleet's answer is on its way has rented a machine of which nothing is written down:
    the next finds it by its tags, and sends nothing again."""
    site = installed()
    task = site.task(
        "many",
        run="exec python3 program.py",
        envs={"STEPS": "5"},
        resources=(Resources(cpus=2, infra=("aws/us-east-1",), image=IMAGE),),
    )
    job = site.submit(task)
    provider = AwsProvider(aws.settings(), site.folder / "other")
    best = min(provider.offers(OfferQuery(cpus=2, infra=("aws/us-east-1",))), key=lambda offer: offer.hourly)
    aws.world.no_capacity = {best.key.removeprefix("aws/")}
    tell = lambda: f"{site.story(job)}\n{[m.log()[-2000:] for m in aws.world.running.values()]}"  # noqa: E731
    if killed:
        broker = site.broker("up")
        aws.world.fleet_made = [broker.kill]
        assert broker.wait(60.0) == -signal.SIGKILL
        assert [row.instance for row in job.placements()] == [None], "nothing is written down"
    with site.up():
        wait_for(lambda: job.refresh().done, "the end of the job", 90.0, tell)
        wait_for(lambda: not aws.world.running, "its machines to be gone", 30.0, tell)
    assert job.refresh().status == "succeeded", tell()
    assert len(aws.world.sent("CreateFleet")) == 1
    assert not aws.world.sent("RunInstances")
    (row,) = job.placements()
    ((instance, charge),) = aws.world.charges.items()
    offer = row.request["offer"]
    assert row.instance == instance
    assert len(row.request["any_of"]) > 1
    assert (
        row.request["any_of"][0]["zone"] + row.request["any_of"][0]["instance_type"] == best.zone + best.instance_type
    )
    assert (offer["zone"], offer["instance_type"]) != (best.zone, best.instance_type), "the best one cannot be had"
    assert row.hourly == pytest.approx(charge.hourly)
    assert row.hourly == pytest.approx(hourly_of(offer))


@pytest.mark.slow
def test_after_a_reboot_the_job_goes_on(aws: Aws, installed: Callable[..., Site]) -> None:
    """User data runs at the first boot only; a unit starts the guest at every one, from what lies on the disk."""
    site = installed()
    resources = (Resources(cpus=2, infra=("aws",), instance_type="c5.xlarge", image=IMAGE),)
    job = site.submit(site.task("count", run="exec python3 program.py", envs={"STEPS": "60"}, resources=resources))
    tell = lambda: f"{site.story(job)}\n{[m.log()[-2000:] for m in aws.world.running.values()]}"  # noqa: E731
    with site.up():
        wait_for(lambda: site.store.events(job.id, kinds=["snapshot"]), "a snapshot", 60.0, tell)
        (machine,) = aws.world.running.values()
        machine.reboot()
        wait_for(lambda: job.refresh().done, "the end of the job", 60.0, tell)
    assert job.refresh().status == "succeeded", tell()
    assert len(aws.world.charges) == 1, "on the same machine"
    steps = [line["step"] for line in lines(site, job)]
    assert steps[-1] == 60
    assert len(steps) <= 60 + 20, "from its newest snapshot"
