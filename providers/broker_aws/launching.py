"""What a launch sends: RunInstances' parameters from a frozen request, and the tags by which a machine is known.

Everything follows from the request alone, so that the same request is the same call: EC2 refuses a token that comes
with other parameters.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from broker.errors import InvalidRequest, NoCapacity, NotFound
from broker.offer import Market
from broker.provider import LaunchRequest
from broker_aws.images import Image, Images
from broker_aws.machines import ARM, MachineType
from broker_aws.refusals import NAME
from broker_aws.settings import Settings

USER_DATA = 16_384  # bytes that EC2 takes, before base64
PREFIX = "spotbroker-"
HOURLY, REQUEST, ENDED, LABEL = f"{PREFIX}hourly", f"{PREFIX}request", f"{PREFIX}ended", "Name"
OWN_TAGS = (HOURLY, REQUEST, ENDED, LABEL)
MOST_TAGS = 50
HOLDS = re.compile(r"(?!aws:)[\w \t+\-=.:/@]{1,128}", re.IGNORECASE), re.compile(r"[\w \t+\-=.:/@]{0,256}")
"""What a tag's key and value may be: EC2 User Guide, "Tag restrictions"."""


def fingerprint(request: LaunchRequest) -> str:
    """Tells one request from another, whatever moment it was fetched at."""
    same = [
        request.offer.key,
        request.bid,
        request.disk,
        dict(request.tags),
        request.user_data,
        request.image,
        request.container,
        request.identity,
    ]
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:32]


def tags(request: LaunchRequest, prices: Mapping[str, str]) -> list[dict[str, str]]:
    """The request's tags and ours; of the task's labels those that EC2 can hold.

    prices: what the machine costs per hour, as `hourly_of` reads it.
    """
    ours = {REQUEST: fingerprint(request), **prices}
    ours |= {key: value for key, value in request.tags.items() if key.startswith(PREFIX)}
    key_holds, value_holds = HOLDS
    labels = {LABEL: f"spotbroker {request.job} {request.generation}"}
    labels |= {
        key: value
        for key, value in request.tags.items()
        if key not in ours and key_holds.fullmatch(key) and value_holds.fullmatch(value)
    }
    kept = list(labels.items())[: MOST_TAGS - len(ours)]
    return [{"Key": key, "Value": value} for key, value in (*ours.items(), *kept)]


def hourly_of(tagged: Mapping[str, str], instance_type: str, zone: str) -> float:
    """USD per hour as the machine's tags have it; 0 for a machine that carries none."""
    text = tagged.get(HOURLY) or tagged.get(f"{HOURLY}/{instance_type}/{zone}") or ""
    try:
        return float(text)
    except ValueError:
        return 0.0


def foreign_tags(tagged: Mapping[str, str]) -> dict[str, str]:
    """The tags without ours."""
    return {key: value for key, value in tagged.items() if key not in OWN_TAGS and not key.startswith(f"{HOURLY}/")}


def image_of(request: LaunchRequest, images: Images) -> Image:
    """The image that the offer was made with.

    Raises InvalidRequest where the region does not have the task's own, NoCapacity where it has none of ours.
    """
    offer = request.offer
    own = request.image if request.image and request.image.startswith("ami-") else None
    ami, root = own or offer.extra.get("ami"), offer.extra.get("root")
    if ami and root and ami == offer.extra.get("ami"):
        return Image(ami, root, offer.disk)
    try:
        if ami:
            return images.image(offer.region, ami)
        arch = ARM if offer.extra.get("architecture") == "aarch64" else "x86_64"
        machine = MachineType(offer.instance_type, offer.cpus, offer.memory, arch, (), offer.gpu, offer.gpu_count)
        return images.of(offer.region, [machine], None)[offer.instance_type]
    except (NotFound, KeyError) as error:
        kind = InvalidRequest if own else NoCapacity  # that there is none of ours is not the task's fault
        text = f"{offer.region} has no image to boot {offer.instance_type} from: {error}"
        raise kind(text, provider=NAME, code="InvalidAMIID.NotFound") from error


def machine(request: LaunchRequest, image: Image, settings: Settings) -> dict[str, Any]:
    """What RunInstances and a launch template have in common, without tags and user data."""
    offer = request.offer
    size = math.ceil(max(request.disk, offer.disk, image.minimum))
    made: dict[str, Any] = {
        "ImageId": image.id,
        "BlockDeviceMappings": [
            {
                "DeviceName": image.root,
                "Ebs": {"VolumeSize": size, "VolumeType": "gp3", "DeleteOnTermination": True},
            }
        ],
        # Two hops: a container without the host's network is one further away.
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        "InstanceInitiatedShutdownBehavior": "terminate",
    }
    if request.identity:
        made["IamInstanceProfile"] = {"Name": request.identity}
    if groups := settings.security_groups.get(offer.region):
        made["SecurityGroupIds"] = list(groups)
    return made


def spot_options(request: LaunchRequest) -> dict[str, Any]:
    """One machine, once, gone when it is taken back; a bid only where one was made (EC2's own is the list price)."""
    options: dict[str, Any] = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    if request.bid is not None:
        beside = request.offer.hourly - request.offer.price
        options["MaxPrice"] = f"{max(request.bid - beside, 0.0001):.6f}"
    return options


def run_instances(request: LaunchRequest, image: Image, settings: Settings) -> dict[str, Any]:
    """RunInstances' parameters. Raises InvalidRequest for user data that EC2 would not take."""
    check_user_data(request)
    offer = request.offer
    made = {
        **machine(request, image, settings),
        "InstanceType": offer.instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": request.user_data,
        "ClientToken": request.token,
        "TagSpecifications": [],
    }
    if offer.extra.get("subnet"):
        made["SubnetId"] = offer.extra["subnet"]
    else:
        made["Placement"] = {"AvailabilityZone": offer.zone}
    kinds = ["instance", "volume"]
    if offer.market is Market.SPOT:
        made["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot_options(request)}
        kinds.append("spot-instances-request")
    told = tags(request, {HOURLY: repr(offer.hourly)})
    made["TagSpecifications"] = [{"ResourceType": kind, "Tags": told} for kind in kinds]
    return made


def check_user_data(request: LaunchRequest) -> None:
    size = len(request.user_data.encode())
    if size > USER_DATA:
        raise InvalidRequest(
            f"the user data has {size} bytes; EC2 takes {USER_DATA}", provider=NAME, code="InvalidUserData.TooLarge"
        )
