"""Pods that really run: the script is PID 1, an outbid one gets SIGTERM and 5 seconds, and a pod ends itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds.machine import Machine, Machines
from clouds.runpod.cloud import RunPod
from clouds.runpod.hand import opened

from broker.offer import Market, OfferQuery
from broker.provider import Cause, Instance, State
from broker.testing import wait_for
from broker.testing.conformance import request_for
from broker_runpod import RunPodProvider, guest


@pytest.fixture
def cloud(machines: Machines) -> Iterator[RunPod]:
    made = RunPod(machines=machines)
    made.start()
    yield made
    made.close()


@pytest.fixture
def provider(cloud: RunPod, machines: Machines, tmp_path: Path) -> RunPodProvider:
    """Its address is one that pods reach too."""
    return opened(cloud, tmp_path, api=f"http://{machines.address}:{cloud.port}")


def rent(cloud: RunPod, provider: RunPodProvider, market: Market, script: str) -> tuple[Instance, Machine]:
    offer = provider.offers(OfferQuery(gpu="A40", gpu_count=1, markets=(market,)))[0]
    instance = provider.launch(request_for(offer, user_data=f"#!/bin/sh\n{script}"))
    machine = cloud.pods[instance.id].machine
    assert machine is not None
    return instance, machine


def said(machine: Machine, text: str) -> bool:
    return wait_for(lambda: text in machine.log(), 20.0)


def seen(provider: RunPodProvider, instance: Instance) -> Instance | None:
    return next((each for each in provider.instances() if each.id == instance.id), None)


def over(cloud: RunPod, instance: Instance) -> bool:
    """By RunPod's own book: a budget of 34 calls a minute is not for waiting."""
    return wait_for(lambda: cloud.pods[instance.id].desired != "RUNNING", 20.0)


def test_the_first_process_gets_sigterm_and_what_runpod_sets(cloud: RunPod, provider: RunPodProvider) -> None:
    script = 'trap "echo saved; exit 7" TERM\necho "pid $$ $RUNPOD_POD_ID $RUNPOD_GPU_COUNT"\n'
    instance, machine = rent(cloud, provider, Market.SPOT, f"{script}while :; do sleep 0.05; done\n")
    assert said(machine, f"pid 1 {instance.id} 1")
    began = time.monotonic()
    cloud.outbid(instance.id)
    assert over(cloud, instance)
    assert time.monotonic() - began < 4.5, "it left when it had saved"
    found = seen(provider, instance)
    assert found is not None
    assert (found.state, found.cause) == (State.STOPPED, Cause.PREEMPTED)


def test_what_does_not_leave_is_killed_after_five_seconds(cloud: RunPod, provider: RunPodProvider) -> None:
    instance, machine = rent(cloud, provider, Market.SPOT, "echo up\nexec sleep 600\n")
    assert said(machine, "up")
    began = time.monotonic()
    cloud.outbid(instance.id, as_="TERMINATED")
    assert over(cloud, instance)
    assert 4.5 < time.monotonic() - began < 9.0
    assert not machine.alive()


@pytest.mark.parametrize("market", [Market.SPOT, Market.ON_DEMAND])
def test_a_pod_terminates_itself_from_its_shell(cloud: RunPod, provider: RunPodProvider, market: Market) -> None:
    """As the boot script's timer does it: by END_COMMAND, with the key that RunPod gives the pod."""
    instance, machine = rent(
        cloud, provider, market, f"why=end_by\nuntil {{ {guest.END_COMMAND}; }}; do sleep 1; done\nexec sleep 600\n"
    )
    assert over(cloud, instance)
    assert seen(provider, instance) is None
    assert cloud.pods[instance.id].word.startswith("Terminated by user")
    assert wait_for(lambda: not machine.alive(), 10.0)
