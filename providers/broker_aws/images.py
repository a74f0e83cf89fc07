"""`Image`: the machine image that a machine boots, one AMI per region.

Ours are AWS's: the Deep Learning Base AMI, which has NVIDIA's driver, docker and the container toolkit and nothing of a
framework, and for machines without a card the one that ECS boots, which has docker. Both are named by public SSM
parameters, one per architecture. Cards older than Turing need the proprietary driver.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from broker.errors import InvalidRequest, NotFound, ProviderError
from broker_aws.account import Account
from broker_aws.kept import DAY, HOUR, Kept
from broker_aws.machines import MachineType
from broker_aws.refusals import NAME, translated

DLAMI = "/aws/service/deeplearning/ami/{arch}/base-{driver}-nvidia-driver-gpu-{system}/latest/ami-id"
ECS = "/aws/service/ecs/optimized-ami/amazon-linux-2023{arch}/recommended/image_id"
SYSTEMS = ("ubuntu-24.04", "ubuntu-22.04", "amazon-linux-2023")  # the first that there is
ROOT = "/dev/sda1"
LINUX = "Linux/UNIX"


@dataclass(frozen=True, slots=True)
class Image:
    """root: its root disk's device name; minimum: GiB that this disk has at least. billed: the system that is paid."""

    id: str
    root: str
    minimum: float
    arch: str = "x86_64"
    billed: str = LINUX

    @property
    def unpriced(self) -> str:
        """Why what its machines cost is not known here; empty where it is."""
        if self.billed in (LINUX, "Red Hat BYOL Linux"):
            return ""
        return f"{self.id} is billed as {self.billed}, whose prices are not looked up: take an image of {LINUX}"


CPU_PARAMETERS = (ECS.format(arch=""), ECS.format(arch="/arm64"))
GPU_PARAMETERS = tuple(
    DLAMI.format(arch=arch, driver=driver, system=system)
    for arch, driver in (("x86_64", "oss"), ("arm64", "oss"), ("x86_64", "proprietary"))
    for system in SYSTEMS
)
"""Not more than the ten that one call takes."""


def parameters(machine: MachineType) -> tuple[str, ...]:
    """The SSM parameters of the images for a type, the best first; none for a card that none of ours drives."""
    if machine.vendor != "NVIDIA":
        return ()
    if machine.gpu is None:
        return (ECS.format(arch="/arm64" if machine.arch == "arm64" else ""),)
    driver = "proprietary" if machine.old_driver else "oss"
    return tuple(DLAMI.format(arch=machine.arch, driver=driver, system=system) for system in SYSTEMS)


class Images:
    """What the parameters name is kept for a quarter of an hour, what an AMI is like for a day."""

    def __init__(self, account: Account, kept: Kept) -> None:
        self.account, self.kept = account, kept

    def of(self, region: str, machines: Iterable[MachineType], own: str | None) -> dict[str, Image]:
        """Type → its image. own: an AMI that the task names.

        Raises NotFound where the region does not have that one, ProviderError where it has none of ours.
        """
        machines = list(machines)
        if own is not None:
            image = self.image(region, own)
            return {machine.name: image for machine in machines if machine.arch == image.arch}
        with_cards = any(machine.gpu is not None for machine in machines)
        named = self._named(region, GPU_PARAMETERS if with_cards else CPU_PARAMETERS)
        found: dict[str, Image] = {}
        for machine in machines:
            ami = next((named[name] for name in parameters(machine) if name in named), None)
            if ami is not None:
                found[machine.name] = self.image(region, ami)
        return found

    def image(self, region: str, ami: str) -> Image:
        """Raises NotFound for an AMI that the region does not have."""

        def fetch() -> dict[str, Any]:
            try:
                with translated(region=region):
                    answer = self.account.client("ec2", region).describe_images(ImageIds=[ami])
            except InvalidRequest as error:
                raise NotFound(error.message, provider=NAME, code=error.code, fix=error.fix) from error
            if not answer["Images"]:
                raise NotFound(f"{region} has no image {ami}", provider=NAME, code="InvalidAMIID.NotFound")
            return asdict(_read(answer["Images"][0]))

        return Image(**self.kept.get(f"image-{region}-{ami}", DAY, fetch))

    def _named(self, region: str, names: tuple[str, ...]) -> dict[str, str]:
        def fetch() -> dict[str, str]:
            with translated(region=region):
                answer = self.account.client("ssm", region).get_parameters(Names=list(names))
            return {one["Name"]: one["Value"] for one in answer["Parameters"]}

        kind = "gpu" if names is GPU_PARAMETERS else "cpu"
        found = self.kept.get(f"images-{region}-{kind}", HOUR / 4, fetch)
        if not found:
            raise ProviderError(f"{region} has none of the images {', '.join(names)}", provider=NAME, code="no image")
        return found


def _read(raw: Any) -> Image:
    root = raw.get("RootDeviceName") or ROOT
    sizes = [
        float(mapping["Ebs"].get("VolumeSize") or 0)
        for mapping in raw.get("BlockDeviceMappings") or ()
        if mapping.get("DeviceName") == root and mapping.get("Ebs")
    ]
    arch, billed = raw.get("Architecture") or "x86_64", raw.get("PlatformDetails") or LINUX
    return Image(raw["ImageId"], root, max(sizes, default=0.0), arch, billed)
