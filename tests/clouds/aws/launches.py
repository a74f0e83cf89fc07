"""What the stand-in does with launches: EC2's checks and its token, before and after moto makes the machine."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from clouds.aws.metadata import InstanceMetadata
from clouds.aws.state import ACCOUNT, ADDRESS, QUOTAS, USUAL_QUOTA, Charge, Ec2, SpotRequest
from clouds.aws.wire import Answer, Request, ec2, ec2_error, element, passed_on

App = Callable[..., Iterable[bytes]]
USER_DATA = 16_384
REQUEST_AGE = 4.0  # seconds after which a machine's boot is over, at the latest


def run_instances(world: Ec2, moto: App, request: Request) -> Answer:
    """One machine, once per token; the answer may be lost after it was made."""
    form = dict(request.form)
    token = form.get("ClientToken", "")
    with world.lock:
        known = _replayed(world, request.region, token, form) if token else None
        if known is not None:
            return known
        refusal = _refusal(world, request, form)
        if refusal is not None:
            return refusal
        answer = passed_on(moto, request)
        if answer.status != 200:
            return answer
        instance_id = re.findall(rb"<instanceId>(i-[0-9a-f]+)</instanceId>", answer.body)[0].decode()
        if token:
            world.tokens[request.region, token] = (form, answer.body, instance_id, time.time())
        _settled(world, request.region, form, instance_id)
        if world.lose_answers:
            world.lose_answers -= 1
            return ec2_error("InternalError", "An internal error has occurred", 500)
    return answer


def _replayed(world: Ec2, region: str, token: str, form: dict[str, str]) -> Answer | None:
    found = world.tokens.get((region, token))
    if found is None or time.time() - found[3] > world.token_life:
        return None
    then, body, instance_id, _ = found
    if then != form:
        text = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
        return ec2_error("IdempotentParameterMismatch", text)
    if _instance(region, instance_id).state == "terminated":
        text = "The request to launch an instance uses the client token of one that has been terminated."
        return ec2_error("IdempotentInstanceTerminated", text)
    return Answer(200, body)


def _refusal(world: Ec2, request: Request, form: dict[str, str]) -> Answer | None:
    """What EC2 refuses, in about the order in which it looks."""
    type_, zone, spot = form.get("InstanceType", ""), _zone(world, request.region, form), _is_spot(form)
    raw = _types().get(type_)
    if raw is None:
        return ec2_error("InvalidParameterValue", f"Invalid value '{type_}' for InstanceType.")
    if "KeyName" in form:
        return ec2_error("InvalidKeyPair.NotFound", f"The key pair '{form['KeyName']}' does not exist")
    if zone and zone not in [one.name for one in world.zone_rows(request.region)]:
        return ec2_error("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
    if len(base64.b64decode(form.get("UserData", ""))) > USER_DATA:
        return ec2_error("InvalidParameterValue", "User data is limited to 16384 bytes")
    if (problem := _bad_image(world, request.region, form, raw) or _bad_profile(world, form)) is not None:
        return problem
    if zone and not _offered(world, request.region, zone, type_):
        text = f"Your requested instance type ({type_}) is not supported in your requested Availability Zone ({zone})."
        return ec2_error("Unsupported", text)
    subnets = _backend(request.region).describe_subnets(filters={"default-for-az": ["true"]})
    if zone and "SubnetId" not in form and zone not in [one.availability_zone for one in subnets]:
        return ec2_error("MissingInput", f"No default subnet for availability zone: '{zone}'.")
    if form.get("SubnetId") in world.full_subnets:
        text = f"The specified subnet does not have enough free addresses: {form['SubnetId']}"
        return ec2_error("InsufficientFreeAddressesInSubnet", text)
    if (problem := _barred(world, request.region, type_, raw, spot)) is not None:
        return problem
    price = world.spot_now(request.region, zone, type_) if spot else None
    bid = form.get("InstanceMarketOptions.SpotOptions.MaxPrice")
    if spot and (price is None or (bid is not None and float(bid) < price)):
        return ec2_error("SpotMaxPriceTooLow", f"Your Spot request price of {bid} is lower than {price}.")
    key = f"{request.region}/{zone}/{type_}/{'spot' if spot else 'on_demand'}"
    if key in world.no_capacity:
        text = f"We currently do not have sufficient {type_} capacity in the Availability Zone you requested ({zone})."
        return ec2_error("InsufficientInstanceCapacity", text, 500)
    return None


def _bad_image(world: Ec2, region: str, form: dict[str, str], raw: Any) -> Answer | None:
    ami = form.get("ImageId", "")
    image = world.amis.get(region, {}).get(ami)
    if image is None:
        return ec2_error("InvalidAMIID.NotFound", f"The image id '[{ami}]' does not exist")
    archs = raw["ProcessorInfo"]["SupportedArchitectures"]
    if image.arch not in archs:
        text = f"The architecture '{','.join(archs)}' of the specified instance type does not match the architecture "
        return ec2_error("InvalidParameterValue", f"{text}'{image.arch}' of the specified AMI.")
    size = form.get("BlockDeviceMapping.1.Ebs.VolumeSize")
    if form.get("BlockDeviceMapping.1.DeviceName") == image.root and size and int(size) < image.size:
        text = f"Volume of size {size}GB is smaller than snapshot 'snap-{ami[4:]}', expect size >= {image.size}GB"
        return ec2_error("InvalidBlockDeviceMapping", text)
    return None


def _profile(name: str) -> Any:
    """The instance profile of that name as IAM has it; None without one."""
    from moto.iam.models import iam_backends

    found = iam_backends[ACCOUNT]["aws"].instance_profiles.values()
    return next((profile for profile in found if profile.name == name), None)


def _bad_profile(world: Ec2, form: dict[str, str]) -> Answer | None:
    """A profile that IAM does not have, or that EC2 has not heard of yet."""
    if (name := form.get("IamInstanceProfile.Name")) is None:
        return None
    profile = _profile(name)
    if profile is None or world.profile_lag:
        world.profile_lag = max(0, world.profile_lag - 1)
        text = f"Value ({name}) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
        return ec2_error("InvalidParameterValue", text)
    if not profile.roles:
        return ec2_error("InvalidParameterValue", f'IAM Instance Profile "{profile.arn}" has no associated IAM Roles')
    return None


def _barred(world: Ec2, region: str, type_: str, raw: Any, spot: bool) -> Answer | None:
    """What a test, or a quota, has against the type."""
    if type_ in world.refused:
        return ec2_error(*world.refused[type_])
    for code, _, lifecycle, pattern in QUOTAS:
        if (lifecycle == "spot") is not spot or not re.match(pattern, type_):
            continue
        running = sum(
            _types()[one.instance_type]["VCpuInfo"]["DefaultVCpus"]
            for one in _backend(region).all_instances()
            if one.state in ("pending", "running")
            and (one.lifecycle == "spot") is spot
            and re.match(pattern, one.instance_type)
        )
        if running + raw["VCpuInfo"]["DefaultVCpus"] > world.quotas.get((region, code), USUAL_QUOTA):
            if spot:
                return ec2_error("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
            return ec2_error("VcpuLimitExceeded", "You have requested more vCPU capacity than your current limit")
    return None


def _settled(world: Ec2, region: str, form: dict[str, str], instance_id: str) -> None:
    """The bill, the spot request, the metadata service and, where a test asks for it, the machine itself."""
    type_, zone, spot = form["InstanceType"], _zone(world, region, form), _is_spot(form)
    price = world.spot_now(region, zone, type_) if spot else world.on_demand(type_, region)
    size = int(form.get("BlockDeviceMapping.1.Ebs.VolumeSize", 8))
    address = ADDRESS if _public(region, form) else 0.0
    world.charges[instance_id] = Charge((price or 0.0) + size * world.disk(region) / 730 + address, time.time())
    if spot:
        request = SpotRequest(f"sir-{uuid.uuid4().hex[:8]}", instance_id, region, at=time.time())
        world.requests[request.id] = request
    world.metadata[instance_id] = InstanceMetadata(instance_id, type_, zone, region)
    profile = _profile(form.get("IamInstanceProfile.Name", ""))
    if world.profile_keys is not None and profile is not None:
        role, keys = profile.roles[0], world.profile_keys
        policies = [json.loads(text) for text in role.policies.values()]
        world.metadata[instance_id].grant(role.name, lambda: keys(policies[0] if policies else {}))
    if world.machines is not None:
        user_data = base64.b64decode(form.get("UserData", ""))
        world.running[instance_id] = world.machines(instance_id, user_data, world.metadata[instance_id])


def terminate_instances(world: Ec2, moto: App, request: Request) -> Answer:
    """A machine that has ended keeps the reason of its end, whoever terminates it again; moto would forget it."""
    ids = request.items("InstanceId")
    with world.lock:
        ended = [one for one in _backend(request.region).all_instances() if one.id in ids and one.state == "terminated"]
        reasons = [(one, one.state_reason, one._reason) for one in ended]
        answer = passed_on(moto, request)
        for one, reason, text in reasons:
            one.state_reason, one._reason = reason, text
    if answer.status == 200:
        for instance_id in set(ids) - {one.id for one in ended}:
            world.settle(instance_id)
            for spot in world.requests.values():
                if spot.instance == instance_id:
                    spot.code, spot.at = "instance-terminated-by-user", time.time()
    return answer


def describe_instances(world: Ec2, moto: App, request: Request) -> Answer:
    """moto's list without what is not listed yet; a machine that has shut down says so."""
    for instance_id, machine in list(world.running.items()):
        if machine.ended_itself:
            world.end(instance_id, "Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
    form = dict(request.form)
    if "MaxResults" in form:
        form["MaxResults"] = str(min(world.page, int(form["MaxResults"])))
    answer = passed_on(moto, request, form)
    if not world.hidden or answer.status != 200:
        return answer
    from xml.etree import ElementTree as ET

    root = ET.fromstring(answer.body)
    ET.register_namespace("", root.tag.partition("}")[0].lstrip("{"))
    for reservations in root.findall(".//{*}reservationSet"):
        for reservation in list(reservations):
            ids = [found.text or "" for found in reservation.findall(".//{*}instanceId")]
            if any(time.time() - world.charges[one].begin < world.hidden for one in ids if one in world.charges):
                reservations.remove(reservation)
    return Answer(200, ET.tostring(root, encoding="utf-8", xml_declaration=True))


def describe_spot_instance_requests(world: Ec2, _moto: App, request: Request) -> Answer:
    wanted = request.filters()
    rows = []
    for spot in world.requests.values():
        state = "closed" if spot.code.startswith("instance-terminated") else "active"
        has = {"status-code": spot.code, "instance-id": spot.instance, "state": state}
        if spot.region != request.region or any(has.get(name) not in values for name, values in wanted.items()):
            continue
        stamp = f"{dt.datetime.fromtimestamp(spot.at, dt.UTC):%Y-%m-%dT%H:%M:%S}.000Z"
        status = {"code": spot.code, "updateTime": stamp, "message": spot.code}
        rows.append({"spotInstanceRequestId": spot.id, "state": state, "status": status, "instanceId": spot.instance})
    return ec2("DescribeSpotInstanceRequests", element("spotInstanceRequestSet", rows))


def create_launch_template(world: Ec2, moto: App, request: Request) -> Answer:
    answer = passed_on(moto, request)
    if answer.status == 200:
        template = request.form["LaunchTemplateName"]
        data = {k.removeprefix("LaunchTemplateData."): v for k, v in request.form.items() if "LaunchTemplateData." in k}
        world.templates[template] = data
    return answer


def create_fleet(world: Ec2, moto: App, request: Request) -> Answer:
    """An instant fleet of one, once per token; the answer may be lost after its machine was made."""
    token, form = request.form.get("ClientToken", ""), dict(request.form)
    with world.lock:
        known = world.fleets.get((request.region, token))
        if known is not None:
            if known[0] != form:
                return ec2_error("IdempotentParameterMismatch", "The request uses the token of another one.")
            return known[1]
        if world.template_lag:
            world.template_lag -= 1
            return ec2_error("InvalidLaunchTemplateName.NotFoundException", "The specified launch template, …")
        answer = _fleet(world, moto, request)
        world.fleets[request.region, token] = (form, answer)
        while world.fleet_made:
            world.fleet_made.pop()()
        if world.lose_answers:
            world.lose_answers -= 1
            return ec2_error("InternalError", "An internal error has occurred", 500)
    return answer


def _fleet(world: Ec2, moto: App, request: Request) -> Answer:
    """The cheapest override that can be had, launched as RunInstances does it."""
    base = "LaunchTemplateConfigs.1."
    template = world.templates[request.form[f"{base}LaunchTemplateSpecification.LaunchTemplateName"]]
    overrides: dict[int, dict[str, str]] = {}
    for key, value in request.form.items():
        if match := re.fullmatch(rf"{re.escape(base)}Overrides\.(\d+)\.(\w+)", key):
            overrides.setdefault(int(match[1]), {})[match[2]] = value
    tags = {
        k: v
        for k, v in request.form.items()
        if (k.startswith("TagSpecification.") and ".Tag." in k) or "ResourceType" in k
    }
    errors, region = [], request.region

    def price(override: dict[str, str]) -> float:
        return world.spot_now(region, override.get("AvailabilityZone", ""), override["InstanceType"]) or 1e9

    for override in sorted(overrides.values(), key=price):
        form = {
            "Action": "RunInstances",
            "Version": request.form["Version"],
            "MinCount": "1",
            "MaxCount": "1",
            **template,
            "InstanceType": override["InstanceType"],
            "ImageId": override.get("ImageId", template.get("ImageId", "")),
            "Placement.AvailabilityZone": override.get("AvailabilityZone", ""),
            "InstanceMarketOptions.MarketType": "spot",
            **tags,
        }
        one = Request(**{**{name: getattr(request, name) for name in Request.__dataclass_fields__}, "form": form})
        refusal = _refusal(world, one, form)
        if refusal is None:
            answer = passed_on(moto, one, form)
            instance_id = re.findall(rb"<instanceId>(i-[0-9a-f]+)</instanceId>", answer.body)[0].decode()
            _settled(world, region, form, instance_id)
            chosen = {name[0].lower() + name[1:]: value for name, value in override.items()}
            group = {
                "launchTemplateAndOverrides": {"overrides": chosen},
                "lifecycle": "spot",
                "instanceIds": [instance_id],
                "instanceType": override["InstanceType"],
            }
            made = element("fleetInstanceSet", [group]) + (element("errorSet", errors) if errors else "")
            return ec2("CreateFleet", element("fleetId", "fleet-1") + made)
        code, message = (re.findall(rb"<%s>([^<]*)<" % tag, refusal.body)[0].decode() for tag in (b"Code", b"Message"))
        chosen = {name[0].lower() + name[1:]: value for name, value in override.items()}
        of = {"launchTemplateAndOverrides": {"overrides": chosen}}
        errors.append({**of, "lifecycle": "spot", "errorCode": code, "errorMessage": message})
    return ec2("CreateFleet", element("fleetId", "fleet-1") + element("errorSet", errors))


def _zone(world: Ec2, region: str, form: dict[str, str]) -> str:
    if form.get("SubnetId"):
        subnet = _backend(region).get_subnet(form["SubnetId"])
        return str(subnet.availability_zone)
    return form.get("Placement.AvailabilityZone", "")


def _public(region: str, form: dict[str, str]) -> bool:
    """Does its subnet give it a public address? Those of the default VPC do."""
    if not form.get("SubnetId"):
        return True
    return str(_backend(region).get_subnet(form["SubnetId"]).map_public_ip_on_launch).lower() == "true"


def _offered(world: Ec2, region: str, zone: str, type_: str) -> bool:
    if (region, type_) in world.offered:
        return zone in world.offered[region, type_]
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS

    rows = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ())
    return any(row["InstanceType"] == type_ and row["Location"] == zone for row in rows)


def _is_spot(form: dict[str, str]) -> bool:
    return form.get("InstanceMarketOptions.MarketType") == "spot"


def _types() -> dict[str, Any]:
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    return INSTANCE_TYPES


def _backend(region: str) -> Any:
    from moto.ec2.models import ec2_backends

    return ec2_backends[ACCOUNT][region]


def _instance(region: str, instance_id: str) -> Any:
    return next(one for one in _backend(region).all_instances() if one.id == instance_id)
