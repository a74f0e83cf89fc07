"""RunPod's own Python client, pointed at the stand-in, does what it does with RunPod."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds import vendor
from clouds.runpod.cloud import RunPod
from clouds.runpod.hand import opened

from broker.offer import Market, OfferQuery
from broker.testing.conformance import request_for

CLIENT = "runpod==1.12.0"
PROGRAM = """
import json, os, runpod
from runpod import error

runpod.api_key = os.environ["KEY"]
told = {}
told["cards"] = [gpu["id"] for gpu in runpod.get_gpus()]
told["card"] = runpod.get_gpu("NVIDIA A40")["lowestPrice"]
made = runpod.create_pod(
    "mine", "acme/train:1", "NVIDIA A40", gpu_count=2, env={"A": "a b"}, docker_args="sleep 600", cloud_type="SECURE"
)
told["made"] = made
told["listed"] = [pod["id"] for pod in runpod.get_pods()]
told["shown"] = runpod.get_pod(made["id"])
told["stopped"] = runpod.stop_pod(made["id"])["desiredStatus"]
told["resumed"] = runpod.resume_pod(made["id"], 2)["desiredStatus"]
runpod.terminate_pod(made["id"])
told["left"] = runpod.get_pods()
told["gone"] = runpod.get_pod(made["id"])


def refused(call):
    try:
        call()
    except error.QueryError as caught:
        return str(caught)
    except error.AuthenticationError as caught:
        return f"auth: {caught}"


told["again"] = refused(lambda: runpod.terminate_pod(made["id"]))
told["resume spot"] = refused(lambda: runpod.resume_pod(os.environ["SPOT"], 1))
told["full"] = refused(lambda: runpod.create_pod("x", "i", "NVIDIA A40", cloud_type="COMMUNITY"))
runpod.api_key = "rpa_WRONG"
told["wrong key"] = refused(runpod.get_pods)
print(json.dumps(told))
"""


@pytest.fixture
def cloud() -> Iterator[RunPod]:
    made = RunPod()
    made.start()
    yield made
    made.close()


def test_the_vendors_client_finds_rents_stops_and_ends(cloud: RunPod, tmp_path: Path) -> None:
    provider = opened(cloud, tmp_path)
    spot = provider.offers(OfferQuery(gpu="A40", gpu_count=1, markets=(Market.SPOT,)))[0]
    ours = provider.launch(request_for(spot))
    python = vendor.python(CLIENT)
    env = {**os.environ, "RUNPOD_API_BASE_URL": cloud.url, "KEY": "rpa_TESTKEY", "SPOT": ours.id, "HOME": str(tmp_path)}
    done = subprocess.run([python, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["cards"] == ["NVIDIA GeForce RTX 4090", "NVIDIA A40"]
    assert told["card"] == {"minimumBidPrice": 0.28, "uninterruptablePrice": 0.44}
    made = told["made"]
    assert made["env"] == ["A=a b"]
    assert made["machine"]["podHostId"].startswith(made["id"])
    assert set(told["listed"]) == {ours.id, made["id"]}
    shown = told["shown"]
    assert (shown["gpuCount"], shown["costPerHr"], shown["dockerArgs"]) == (2, 0.88, "sleep 600")
    assert shown["lastStatusChange"].startswith("Rented by User: ")
    assert (told["stopped"], told["resumed"]) == ("EXITED", "RUNNING")
    assert [pod["id"] for pod in told["left"]] == [ours.id]
    assert told["gone"] is None
    assert told["again"] == "pod not found to terminate"
    assert told["resume spot"] == "Cannot resume a spot pod as an on demand pod."
    assert "no longer any instances" in told["full"]
    assert told["wrong key"].startswith("auth: ")
    assert [instance.id for instance in provider.instances()] == [ours.id]
