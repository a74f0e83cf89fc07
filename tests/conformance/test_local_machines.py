"""Machines of `local` are real: real processes, really killed, found again by anybody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import ConfigError, InvalidRequest, NotFound
from broker.offer import Market, OfferQuery
from broker.provider import Cause, Instance, LaunchRequest, State
from broker.testing import wait_for
from broker.testing.conformance import request_for
from broker_local import LocalProvider, cloud, guest, machine, processes

Local = Callable[..., LocalProvider]

# What could outlive a careless kill: a session of its own, TERM ignored, two forks, each with its number written down.
STUBBORN = """trap '' TERM HUP
setsid sh -c 'trap "" TERM; (sleep 600 & echo $! >> pids; sleep 600 & echo $! >> pids); echo $$ >> pids; sleep 600' &
(setsid sh -c '(sleep 600 & echo $! >> pids)' &)
setsid sleep 600 & echo $! >> pids
touch ready
sleep 600
"""
# Moreover without the mark: only its descent tells whose it is.
UNMARKED = "(setsid sh -c '(env -i sleep 600 & echo $! >> pids)' &)\n"
READY = "touch ready\nexec sleep 600\n"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    opened = []

    def make(**settings: object) -> LocalProvider:
        opened.append(LocalProvider(settings, tmp_path))
        return opened[-1]

    yield make
    last = LocalProvider({}, tmp_path)
    for instance in last.instances():
        last.terminate(instance)
    assert wait_for(lambda: not any(i.alive for i in last.instances()), 20)


def request(provider: LocalProvider, script: str = READY, generation: int = 1) -> LaunchRequest:
    return request_for(provider.offers(OfferQuery())[0], generation=generation, user_data=script)


def folder(provider: LocalProvider, instance: Instance) -> machine.Machine:
    found = machine.find(provider.root, instance.id)
    assert found is not None
    return found


def seen(provider: LocalProvider, instance: Instance) -> Instance:
    (found,) = [i for i in provider.instances() if i.id == instance.id]
    return found


def ready(provider: LocalProvider, script: str = READY) -> Instance:
    """Launch and wait until the script made its file `ready`."""
    instance = provider.launch(request(provider, script))
    disk = folder(provider, instance).disk
    assert wait_for((disk / "ready").exists, 20), (disk.parent / "console.log").read_text()
    return instance


def ended(provider: LocalProvider, instance: Instance, seconds: float = 20) -> Instance:
    assert wait_for(lambda: seen(provider, instance).state is State.TERMINATED, seconds)
    return seen(provider, instance)


def supervisor(provider: LocalProvider, instance: Instance) -> int:
    claim = folder(provider, instance).read("supervisor.json")
    assert claim
    return int(claim["pid"])


def everything(provider: LocalProvider, instance: Instance) -> list[processes.Process]:
    return processes.of_machine(instance.id, below=supervisor(provider, instance))


def stubborn(provider: LocalProvider, script: str, count: int) -> tuple[Instance, list[processes.Process]]:
    """A machine full of stubborn processes, and these as the script itself numbered them."""
    instance = ready(provider, script)
    pids = folder(provider, instance).disk / "pids"
    assert wait_for(lambda: pids.exists() and len(pids.read_text().split()) == count, 10)
    found = [processes.look(int(pid)) for pid in pids.read_text().split()]
    return instance, [process for process in found if process is not None and not process.zombie]


def living(victims: list[processes.Process]) -> list[processes.Process]:
    return [victim for victim in victims if processes.alive(victim.pid, victim.start)]


def test_terminate_kills_whatever_resists(local: Local) -> None:
    provider = local()
    unmarked = processes.LINUX  # elsewhere there is no subreaper
    instance, victims = stubborn(provider, UNMARKED + STUBBORN if unmarked else STUBBORN, 6 if unmarked else 5)
    assert len(living(victims)) == len(victims) >= 5
    provider.terminate(instance)
    assert ended(provider, instance).cause is Cause.BROKER
    assert not living(victims)
    assert not folder(provider, instance).disk.exists()


def test_nothing_of_the_brokers_environment_is_there(
    local: Local, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for machines")
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    leak = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leak, True)
    provider = local(pass_env=["WANTED"])
    script = (
        "env -0 > seen.env; ls -l /proc/self/fd > seen.fds; command -v python > seen.python; touch ready; sleep 600\n"
    )
    instance = ready(provider, script)
    os.close(leak)
    disk = folder(provider, instance).disk
    env = dict(line.split("=", 1) for line in (disk / "seen.env").read_text().split("\0") if line)
    assert env.keys() - {"PWD", "SHLVL", "_", "OLDPWD", "SSL_CERT_FILE"} - {n for n in env if "proxy" in n.lower()} == {
        "PATH", "LANG", "HOME", "TMPDIR", "SPOTBROKER_DIR", "SPOTBROKER_METADATA", "SPOTBROKER_MACHINE", "WANTED",
    }  # fmt: skip
    assert env["HTTPS_PROXY"] == "http://proxy:1"
    assert env["HOME"] == str(disk)
    assert len(env["TMPDIR"]) <= 60
    assert Path(env["TMPDIR"]).is_dir()
    assert Path((disk / "seen.python").read_text().strip()).parent == Path(sys.executable).parent
    if processes.LINUX:
        assert str(tmp_path) + "\n" not in (disk / "seen.fds").read_text()
    provider.terminate(instance)
    ended(provider, instance)
    assert not Path(env["TMPDIR"]).exists()


def test_machine_outlives_its_launcher(local: Local, tmp_path: Path) -> None:
    provider = local()
    frozen = json.dumps(request(provider).to_json())
    code = (
        "import json, os, signal, sys; from pathlib import Path; from broker_local import LocalProvider;"
        "from broker.provider import LaunchRequest;"
        "LocalProvider({}, Path(sys.argv[1])).launch(LaunchRequest.from_json(json.loads(sys.argv[2])));"
        "os.killpg(0, signal.SIGKILL)"
    )
    launcher = subprocess.run([sys.executable, "-c", code, str(tmp_path), frozen], start_new_session=True, check=False)
    assert launcher.returncode == -signal.SIGKILL
    (instance,) = provider.instances()
    assert wait_for(lambda: seen(provider, instance).state is State.RUNNING, 10)
    assert os.getsid(supervisor(provider, instance)) == supervisor(provider, instance)
    os.kill(supervisor(provider, instance), signal.SIGHUP)
    assert wait_for((folder(provider, instance).disk / "ready").exists, 10)
    provider.terminate(instance)
    ended(provider, instance)
    assert (folder(provider, instance).read("ended.json") or {})["why"] == "ordered", "its supervisor did it"


def test_racing_launches_make_one_machine(local: Local, tmp_path: Path) -> None:
    provider = local()
    frozen = json.dumps(request(provider, "echo ran >> ../console.log\nexec sleep 600\n").to_json())
    code = (
        "import json, sys; from pathlib import Path; from broker_local import LocalProvider;"
        "from broker.provider import LaunchRequest;"
        "p = LocalProvider({}, Path(sys.argv[1])); r = LaunchRequest.from_json(json.loads(sys.argv[2]));"
        "sys.stdin.read(); print(p.launch(r).id)"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), frozen],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()  # go
        racer.stdin = None
    ids = {racer.communicate(timeout=30)[0].strip() for racer in racers}
    (instance,) = provider.instances()
    assert ids == {instance.id}
    console = folder(provider, instance).folder / "console.log"
    assert wait_for(lambda: console.exists() and "ran" in console.read_text(), 10)
    assert len(everything(provider, instance)) == 1
    assert console.read_text().count("ran") == 1
    assert [path.name for path in (provider.root / "machines").iterdir()] == [instance.id]


def test_one_token_in_two_roots_is_two_machines(local: Local, tmp_path: Path) -> None:
    here, there = local(), local(root=str(tmp_path / "elsewhere"))
    frozen = request(here)
    kept, ended_ = here.launch(frozen), there.launch(frozen)
    there.terminate(ended_)
    ended(there, ended_)
    assert wait_for((folder(here, kept).disk / "ready").exists, 10)
    assert processes.of_machine(kept.id)


def test_killed_supervisor_is_a_failure_and_leaves_nothing(local: Local) -> None:
    provider = local()
    instance, victims = stubborn(provider, STUBBORN, 5)
    os.kill(supervisor(provider, instance), signal.SIGKILL)
    assert len(living(victims)) == 5
    end = ended(provider, instance)
    assert end.cause is Cause.FAILED
    assert not living(victims)


def test_terminate_after_the_supervisor_was_killed(local: Local) -> None:
    provider = local()
    instance, victims = stubborn(provider, STUBBORN, 5)
    os.kill(supervisor(provider, instance), signal.SIGKILL)
    provider.terminate(instance)
    assert ended(provider, instance).cause is Cause.BROKER
    assert not living(victims)
    assert not folder(provider, instance).disk.exists()


def test_a_later_process_of_the_same_number_is_not_touched(local: Local) -> None:
    provider = local()
    instance = ready(provider)
    os.kill(supervisor(provider, instance), signal.SIGKILL)
    innocent = subprocess.Popen(["sleep", "600"])
    try:
        home = folder(provider, instance)
        (home.folder / "supervisor.json").write_text(json.dumps({"pid": innocent.pid, "start": "long ago"}))
        provider.terminate(instance)
        assert ended(provider, instance).state is State.TERMINATED
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def unstarted(provider: LocalProvider, launched_at: float) -> Instance:
    """A machine whose launcher was killed between record and start."""
    frozen = request(provider)
    instance = provider.launch(frozen)
    home = folder(provider, instance)
    assert wait_for((home.disk / "ready").exists, 10)
    record = {**home.record(), "launched_at": launched_at}
    env = home.read("env.json")
    assert env
    name = f"m-{uuid.uuid4().hex[:12]}"
    env = {**env, processes.MARK: name, "SPOTBROKER_DIR": str(home.folder.with_name(name) / "disk" / "spotbroker")}
    assert machine.create(provider.root, name, record, env, READY)
    return replace(instance, id=name)


def test_launcher_killed_before_the_start_is_made_good(local: Local) -> None:
    provider = local()
    instance = unstarted(provider, time.time())
    assert seen(provider, instance).state is State.PENDING
    assert wait_for(lambda: seen(provider, instance).state is State.RUNNING, 10)


def test_a_machine_that_never_started_has_failed(local: Local) -> None:
    provider = local()
    instance = unstarted(provider, time.time() - 100)
    assert seen(provider, instance).cause is Cause.FAILED
    home = folder(provider, instance)
    machine.start(home)  # a supervisor that comes late starts nothing
    assert not wait_for((home.disk / "ready").exists, 0.5)


def test_terminated_before_it_started(local: Local) -> None:
    provider = local()
    instance = unstarted(provider, time.time())
    provider.terminate(instance)
    assert seen(provider, instance).cause is Cause.BROKER
    machine.start(folder(provider, instance))
    assert not wait_for(lambda: bool(processes.of_machine(instance.id)), 0.3)


def test_first_process_fails_and_takes_all_with_it(local: Local) -> None:
    provider = local()
    instance = ready(provider, "setsid sleep 600 &\ntouch ready\nexit 3\n")
    assert ended(provider, instance).cause is Cause.FAILED
    assert not processes.of_machine(instance.id)


def test_success_waits_for_the_rest(local: Local) -> None:
    provider = local()
    instance = ready(provider, "setsid sh -c 'while [ ! -e go ]; do sleep 0.05; done' &\ntouch ready\nexit 0\n")
    assert not wait_for(lambda: seen(provider, instance).state is not State.RUNNING, 0.6)
    (folder(provider, instance).disk / "go").touch()
    assert ended(provider, instance).cause is Cause.SELF


def test_runpod_gives_a_signal_and_five_seconds(local: Local) -> None:
    provider = local()
    instance = ready(provider, "trap 'date +%s.%N >> term' TERM\ntouch ready\nwhile :; do sleep 0.05; done\n")
    assert cloud.take_back(provider.root, instance.id, "runpod") is None
    term = folder(provider, instance).disk / "term"
    assert wait_for(lambda: term.exists() and bool(term.read_text()), 2)
    assert provider.notice(instance) is None
    end = ended(provider, instance)
    assert end.cause is Cause.PREEMPTED
    assert end.ended_at is not None
    assert 4.5 < end.ended_at - float(term.read_text().split()[0]) < 6.5
    assert len(term.read_text().split()) == 1, "one warning, not several"
    assert term.exists(), "a machine taken back keeps its disk until the broker terminates it"


@pytest.mark.parametrize(("style", "seconds"), [("aws", 120), ("gcp", 30), ("azure", 30)])
def test_notice_can_be_read_inside(local: Local, style: str, seconds: float) -> None:
    """The times are the providers': AWS two minutes, GCP and Azure half a minute at least."""
    provider = local()
    look = f"{sys.executable} -c 'import json; from broker_local import guest; print(json.dumps(guest.notice()))'"
    path = Path(machine.__file__).parents[1]
    script = f"export PYTHONPATH={path}\n{look} > before\ntouch ready\nwhile [ ! -e go ]; do sleep 0.05; done\n"
    instance = ready(provider, script + f"{look} > after.new && mv after.new after\nsleep 600\n")
    notice = cloud.take_back(provider.root, instance.id, style)
    assert cloud.take_back(provider.root, instance.id, style) == notice, "the first word stands"
    disk = folder(provider, instance).disk
    (disk / "go").touch()
    assert wait_for((disk / "after").exists, 10)
    assert json.loads((disk / "before").read_text()) is None
    inside = json.loads((disk / "after").read_text())
    assert notice is not None
    assert notice.ends_at is not None
    assert notice == provider.notice(instance) == seen(provider, instance).notice
    assert inside == {"at": notice.at, "ends_at": notice.ends_at, "kind": notice.kind}
    assert notice.ends_at - notice.at == pytest.approx(seconds)
    assert seen(provider, instance).state is State.RUNNING


def test_guest_ends_its_own_machine(local: Local) -> None:
    provider = local()
    path = Path(machine.__file__).parents[1]
    instance = ready(
        provider,
        f"touch ready; PYTHONPATH={path} exec {sys.executable} -c 'import time; from broker_local import guest; "
        'guest.end_machine("done"); time.sleep(600)\'\n',
    )
    assert ended(provider, instance).cause is Cause.SELF


def test_a_shell_ends_its_own_machine(local: Local) -> None:
    provider = local()
    instance = ready(provider, f"touch ready; why=late; {guest.END_COMMAND}; sleep 600\n")
    assert ended(provider, instance).cause is Cause.SELF


def test_guest_does_not_take_unknown_for_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPOTBROKER_METADATA", raising=False)
    with pytest.raises(OSError, match="SPOTBROKER_METADATA"):
        guest.notice()
    monkeypatch.setenv("SPOTBROKER_METADATA", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError):
        guest.notice()


def test_old_machines_are_put_away_and_remembered(local: Local) -> None:
    provider = local(keep_disks=True)
    frozen = request(provider)
    instance = provider.launch(frozen)
    provider.terminate(instance)
    ended(provider, instance)
    home = folder(provider, instance)
    assert home.disk.exists()
    end = home.read("ended.json")
    assert end
    (home.folder / "ended.json").write_text(json.dumps({**end, "at": time.time() - 3601}))
    assert not provider.instances()
    again = provider.launch(frozen)
    assert (again.id, again.state, again.cause) == (instance.id, State.TERMINATED, Cause.BROKER)
    assert not provider.instances()


def test_half_made_machines_are_swept(local: Local) -> None:
    provider = local()
    provider.launch(request(provider))
    drafts = [provider.root / "machines" / name for name in (".fresh", ".stale")]
    for draft in drafts:
        (draft / "disk").mkdir(parents=True)
    os.utime(drafts[1], (time.time() - 3600, time.time() - 3600))
    assert len(provider.instances()) == 1
    assert [draft.exists() for draft in drafts] == [True, False]


def test_what_cannot_be_launched(local: Local) -> None:
    provider = local()
    good = request(provider)
    for bad in (
        replace(good, offer=replace(good.offer, provider="aws")),
        replace(good, offer=replace(good.offer, region="nowhere")),
        replace(good, image="docker:debian"),
        replace(good, user_data="x" * 16385),
    ):
        with pytest.raises(InvalidRequest):
            provider.launch(bad)
    with pytest.raises(NotFound):
        cloud.take_back(provider.root, "m-unknown")
    assert not provider.instances()


def test_no_gpu_is_ever_offered(local: Local) -> None:
    provider = local()
    assert not provider.offers(OfferQuery(gpu="A100-80GB", gpu_count=1))
    assert not provider.offers(OfferQuery(gpu_count=1))
    assert not provider.offers(OfferQuery(image="docker:debian"))


def test_default_zones(local: Local) -> None:
    offers = local().offers(OfferQuery())
    prices = {(offer.region, offer.market): offer.price for offer in offers}
    assert {region for region, _ in prices} == {"north", "south", "east"}
    for region in ("north", "south", "east"):
        assert prices[region, Market.SPOT] < prices[region, Market.ON_DEMAND]
    assert all(offer.simulated for offer in offers)
    assert offers[0].disk_price == pytest.approx(20 * 0.08 / 730)


def test_zones_of_ones_own(local: Local) -> None:
    provider = local(zones={"attic": {"spot": 0.5, "notice": "vast"}, "cellar": {"on_demand": 1}})
    attic, cellar = provider.offers(OfferQuery())
    assert (attic.region, attic.market, attic.price, attic.notice) == ("attic", Market.SPOT, 0.5, None)
    assert (cellar.region, cellar.market, cellar.price) == ("cellar", Market.ON_DEMAND, 1.0)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"root": 5}, "root"),
        ({"pass_env": "HOME"}, "pass_env"),
        ({"keep_disks": "no"}, "keep_disks"),
        ({"zones": []}, "zones"),
        ({"zones": {"a/b": {"spot": 1}}}, "zones.a/b"),
        ({"zones": {"a": 1}}, "zones.a"),
        ({"zones": {"a": {}}}, "zones.a"),
        ({"zones": {"a": {"spot": 0}}}, "zones.a.spot"),
        ({"zones": {"a": {"spot": "0.1"}}}, "zones.a.spot"),
        ({"zones": {"a": {"spot": float("nan")}}}, "zones.a.spot"),
        ({"zones": {"a": {"spot": 1, "interruption": -1}}}, "zones.a.interruption"),
        ({"zones": {"a": {"spot": 1, "notice": "ibm"}}}, "zones.a.notice"),
        ({"zones": {"a": {"spto": 1}}}, "zones.a.spto"),
    ],
)
def test_bad_settings_name_their_key(local: Local, settings: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        local(**settings)
    assert f"providers.local.{key}" in str(caught.value)
