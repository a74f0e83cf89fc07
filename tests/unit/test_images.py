"""What a machine is made of, by what its provider rents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.images import DEFAULT, Image, fits, parse, placed, shown, size_gb
from broker.offer import Market, Offer, OfferQuery
from broker.policy.shape import misfit
from broker.provider import Kind

AMI = "ami-0abcdef1234567890"


@pytest.mark.parametrize(
    ("text", "image"),
    [
        (None, None),
        ("", None),
        ("docker:pytorch/pytorch:2.7", Image("pytorch/pytorch:2.7")),
        ("pytorch/pytorch", Image("pytorch/pytorch")),
        ("ghcr.io/acme/train@sha256:" + "0" * 64, Image("ghcr.io/acme/train@sha256:" + "0" * 64)),
        ("localhost:5000/a/b:1", Image("localhost:5000/a/b:1")),
        ("docker:ami-like/name", Image("ami-like/name")),
        (AMI, Image(AMI, machine=True)),
        ("projects/p/global/images/family/x", Image("projects/p/global/images/family/x", machine=True)),
        ("microsoft-dsvm:ubuntu-hpc:2204:latest", Image("microsoft-dsvm:ubuntu-hpc:2204:latest", machine=True)),
        ("/subscriptions/1/x", Image("/subscriptions/1/x", machine=True)),
    ],
)  # fmt: skip
def test_images_are_told_apart(text, image):
    assert parse(text) == image


@pytest.mark.parametrize(
    ("kind", "image", "container", "machine"),
    [
        (Kind.CONTAINER, None, DEFAULT, None),
        (Kind.CONTAINER, "docker:a/b:1", "a/b:1", None),
        (Kind.VM, None, DEFAULT, None),
        (Kind.VM, "a/b:1", "a/b:1", None),
        (Kind.VM, AMI, None, AMI),
        (Kind.BARE, None, None, None),
        (Kind.BARE, "a/b:1", "a/b:1", None),
    ],
)
def test_a_machine_is_made_of(kind, image, container, machine):
    made = placed(kind, image)
    assert (made.container, made.machine) == (container, machine)
    assert fits(kind, image) == ""


@pytest.mark.parametrize(("kind", "word"), [(Kind.CONTAINER, "rents containers"), (Kind.BARE, "boots no images")])
def test_a_machine_image_needs_a_vm(kind, word):
    assert word in fits(kind, AMI)
    assert AMI in fits(kind, AMI)
    with pytest.raises(ValueError, match=word):
        placed(kind, AMI)


def test_the_default_image_is_pinned_and_built_for_one_processor():
    assert "@sha256:" in DEFAULT
    assert "sha256" not in shown(None)
    assert size_gb(None) == size_gb(DEFAULT) > 1
    assert size_gb("a/b") is None
    assert "aarch64" in fits(Kind.VM, None, "aarch64")
    assert fits(Kind.VM, "a/b", "aarch64") == ""
    assert fits(Kind.BARE, None, "aarch64") == ""


def test_the_policy_passes_over_what_the_default_image_cannot_run_on():
    arm = Offer(
        "lambda", "us", "", "gh200", Market.ON_DEMAND, 1.49, gpu="GH200", gpu_count=1, extra={"architecture": "aarch64"}
    )
    wanted = OfferQuery(gpu="GH200", gpu_count=1, disk=0.0)
    assert "the default image is not built for aarch64" in misfit(arm, wanted)
    assert misfit(arm, replace(wanted, image="a/b:1")) == ""
    assert misfit(replace(arm, extra={"architecture": "x86_64"}), wanted) == ""
