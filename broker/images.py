"""Images: the container that a task runs in, and the machine images that only virtual machines boot.

A task runs in one container image everywhere, so that a move changes nothing under it. A container provider makes the
machine of it; a VM's guest starts it; a bare machine (`local`) uses none unless it is asked for. A task that names a
machine image, such as an AMI, runs bare on VMs that can boot it and stays away from all else. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from broker.provider import Kind

DIGEST = "sha256:2b59b1b91885677814f78be1f8df48a25d5dc952eb6580eaecfefca510f9afd3"
DEFAULT = f"pytorch/pytorch:2.7.1-cuda12.6-cudnn9-runtime@{DIGEST}"
"""CUDA 12.6, PyTorch 2.7.1, Python 3.11 on Ubuntu 22.04; the digest is that of Docker Hub's linux/amd64 image."""
DEFAULT_GB = 3.3
"""GB that a pull of the default image transfers. Reckoned, not measured: the wheels of torch 2.7.1 and of the CUDA 12.6
libraries it asks for have 3.0 GB by PyPI's file lists; Miniconda and Ubuntu make up the rest. A job's `pull` timing
tells how long it took."""
DEFAULT_ARCHITECTURES = ("x86_64",)
# How the clouds name their machine images: EC2, GCE, Azure, OCI, IBM, and SkyPilot's word for its own.
MACHINE_IMAGES = ("ami-", "projects/", "/subscriptions/", "skypilot:", "ocid1.", "cos://")
URN = re.compile(r"[^/:\s]+:[^/:\s]+:[^/:\s]+:[^/:\s]+")  # Azure: publisher:offer:sku:version


@dataclass(frozen=True, slots=True)
class Image:
    """name: as the provider or the container engine takes it. machine: a machine image, not a container's."""

    name: str
    machine: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """What one machine is made of. container: the image that the task runs in, None for bare; machine: what boots."""

    container: str | None
    machine: str | None


def parse(text: str | None) -> Image | None:
    """`docker:repo/name:tag` and `repo/name:tag` are containers; `ami-…` and the like machine images; None for none."""
    if not text:
        return None
    bare = text.removeprefix("docker:")
    machine = bare == text and (text.startswith(MACHINE_IMAGES) or URN.fullmatch(text) is not None)
    return Image(bare, machine)


def fits(kind: Kind, image: Image | str | None, architecture: str = "x86_64") -> str:
    """Why an offer of this kind cannot run a task with that image, for people; empty where it can.

    architecture: the machine's; of a named image only its registry knows which ones it has.
    """
    image = parse(image) if isinstance(image, str) else image
    if image is None:
        wrong = kind is not Kind.BARE and architecture not in DEFAULT_ARCHITECTURES
        return f"the default image is not built for {architecture}: name one in image_id" if wrong else ""
    if not image.machine or kind is Kind.VM:
        return ""
    rented = "rents containers" if kind is Kind.CONTAINER else "boots no images"
    return f"{rented}, and {image.name} is an image of virtual machines"


def placed(kind: Kind, image: Image | str | None, architecture: str = "x86_64") -> Placed:
    """What a machine of this kind is made of for that image. Raises ValueError where it does not fit."""
    image = parse(image) if isinstance(image, str) else image
    if reason := fits(kind, image, architecture):
        raise ValueError(reason)
    if image is not None and image.machine:
        return Placed(None, image.name)
    if kind is Kind.BARE:
        return Placed(image.name if image else None, None)
    return Placed(image.name if image else DEFAULT, None)


def size_gb(image: str | None) -> float | None:
    """GB that pulling a container image transfers, where that is known."""
    return DEFAULT_GB if image in (None, DEFAULT) else None


def shown(image: str | None) -> str:
    """An image's name for people: without the digest's 64 letters."""
    return (image or DEFAULT).partition("@")[0]
