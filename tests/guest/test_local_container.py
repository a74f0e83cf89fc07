"""`local` with a task's container: who is offered it, and a whole job in it whose machine is taken back."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from clouds.engine import IMAGE, Podman, podman
from guest.placements import wait_for

from broker.errors import ConfigError, InvalidRequest
from broker.offer import OfferQuery
from broker.provider import LaunchRequest
from broker.task import Checkpoint, Resources, Task
from broker_local import LocalProvider
from broker_local.cloud import take_back

__all__ = ["podman"]


def local(folder: Path, **settings) -> LocalProvider:
    return LocalProvider(settings, folder)


def test_an_image_is_offered_only_where_this_computer_was_asked_for(tmp_path, podman):
    """A laptop must not pull gigabytes because a task without a GPU has named an image."""
    provider = local(tmp_path, container="podman", container_options=["--log-level=error"], container_run=["--cpus=1"])
    asked = OfferQuery(image=IMAGE, infra=("local",))
    offers = provider.offers(asked)
    engine = offers[0].extra["engine"]
    assert engine["argv"][0].endswith("podman")
    assert (engine["argv"][1:], engine["run"]) == (["--log-level=error"], ["--cpus=1"])
    assert provider.offers(OfferQuery(image=IMAGE, infra=("local/north",)))
    assert not provider.offers(OfferQuery(image=IMAGE))
    assert not provider.offers(OfferQuery(image=IMAGE, infra=("*",)))
    assert not local(tmp_path, container="").offers(asked)
    assert "engine" not in provider.offers(OfferQuery(infra=("local",)))[0].extra


def test_without_an_engine_a_container_is_refused(tmp_path):
    provider = local(tmp_path, container="")
    offer = provider.offers(OfferQuery())[0]
    request = LaunchRequest("j", 1, offer, "t", {}, "", 1.0, 2e9, 1e9, container="a/b:1")
    with pytest.raises(InvalidRequest, match="no docker or podman to start a/b:1"):
        provider.launch(request)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"container": "rkt"}, "container must be one of podman, docker"),
        ({"container": ["podman"]}, "container must be one of"),
        ({"container_run": "--cpus=1"}, "container_run must be a list"),
        ({"container_options": [1]}, "container_options must be a list"),
    ],
)
def test_wrong_settings_are_named(tmp_path, settings, word):
    with pytest.raises(ConfigError, match=word):
        local(tmp_path, **settings)


def test_a_job_in_a_container_moves_when_its_machine_is_taken_back(tmp_path, podman: Podman, monkeypatch):
    """Power cut on the first machine: its container is gone with it, and the next goes on in one of its own."""
    import broker

    for name, value in podman.environ.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "config.toml"
    config.write_text(
        f"[providers.local]\ncontainer = 'podman'\ncontainer_run = {json.dumps(podman.settings['run'])}\n"
    )
    config.chmod(0o600)
    monkeypatch.setenv("SPOTBROKER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("SPOTBROKER_CONFIG", str(config))
    run = """
    cat /made; cat ckpt/state 2>/dev/null
    [ "$BROKER_RESUMED" = 1 ] && exit 0
    echo "by $BROKER_GENERATION" >ckpt/new; mv ckpt/new ckpt/state; while :; do sleep 0.1; done
    """
    where = Resources(image=IMAGE, infra=("local",))
    task = Task(run=run, setup="echo in a container >/made", checkpoint=Checkpoint("ckpt"), resources=(where,))
    ended = []
    worker = threading.Thread(target=lambda: ended.append(broker.run(task)))
    worker.start()
    machines = tmp_path / "state" / "local" / "machines"
    wait_for(lambda: [job for job in broker.jobs() if any(e.kind == "snapshot" for e in job.events())], 120)
    assert podman.running()
    take_back(machines.parent, next(machines.iterdir()).name, "vast")
    worker.join(90)
    assert not worker.is_alive()
    assert ended[0].status == "succeeded"
    log = "".join(text for _, _, text in ended[0].logs())
    assert log.count("in a container\n") == 2
    assert "by 1\n" in log
    wait_for(lambda: not podman.running(), 20)
    assert not Path("/made").exists()
