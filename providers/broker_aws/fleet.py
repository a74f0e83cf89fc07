"""`launch_any`: one machine, whichever of many offers EC2 can give best, by one CreateFleet of type instant.

A fleet takes a launch template. It is made for the call, deleted after it, and what a broken call left is swept by the
next. The price of each offer travels in the tags, so that whoever lists the machine knows what the winner costs.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
from collections.abc import Sequence
from typing import Any

from broker.errors import (
    Ambiguous,
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from broker.offer import Market, Offer
from broker.provider import TAG_INSTALLATION, Instance, LaunchRequest
from broker_aws import launching, listing, profiles
from broker_aws.account import Account
from broker_aws.images import Images
from broker_aws.paging import pages
from broker_aws.refusals import NAME, refused, translated
from broker_aws.settings import Settings

MOST = 40  # offers: a machine takes 50 tags, each offer is one
OLD = 600.0  # seconds after which a template was left behind
TEMPLATE_UNKNOWN = "InvalidLaunchTemplate"


def launch_any(
    account: Account, images: Images, settings: Settings, request: LaunchRequest, offers: Sequence[Offer]
) -> Instance:
    """Raises as `Provider.launch`; NoCapacity where none of the offers can be had."""
    offers = list(offers)[:MOST]
    _check(request, offers)
    launching.check_user_data(request)
    region = request.offer.region
    client = account.client("ec2", region)
    sweep(client)
    # Named after the token, so that the same request is the same call though its template is another one by then.
    name = f"spotbroker-{request.token}"
    try:
        with translated(offer=request.offer):
            client.create_launch_template(
                LaunchTemplateName=name,
                LaunchTemplateData=_data(request, images, settings),
                TagSpecifications=[{"ResourceType": "launch-template", "Tags": _own(request)}],
            )
    except InvalidRequest as error:
        if "AlreadyExists" not in error.code:  # left by a call that broke
            raise
    try:
        with translated(creating=True, offer=request.offer):
            answer = client.create_fleet(**_fleet(request, offers, name))
    except InvalidRequest as error:
        if not error.code.startswith(TEMPLATE_UNKNOWN):
            raise
        # EC2 has not heard of the template of a moment ago; nothing was made.
        raise ProviderUnavailable(error.message, provider=NAME, code=error.code) from error
    finally:
        with contextlib.suppress(ProviderError), translated(region=region):
            client.delete_launch_template(LaunchTemplateName=name)
    return _won(account, request, offers, answer)


def sweep(client: Any, older: float = OLD) -> None:
    """Delete templates that a broken call left."""
    with contextlib.suppress(ProviderError), translated():
        wish = {"Filters": [{"Name": "tag-key", "Values": [TAG_INSTALLATION]}]}
        for found in pages(client.describe_launch_templates, "LaunchTemplates", **wish):
            if (dt.datetime.now(dt.UTC) - found["CreateTime"]).total_seconds() > older:
                client.delete_launch_template(LaunchTemplateId=found["LaunchTemplateId"])


def _check(request: LaunchRequest, offers: Sequence[Offer]) -> None:
    places = {(offer.region, offer.market) for offer in offers}
    if places != {(request.offer.region, Market.SPOT)} or request.offer.key not in {offer.key for offer in offers}:
        raise InvalidRequest(
            "a fleet takes spot offers of one region, the request's own among them", provider=NAME, code="offers"
        )


def _own(request: LaunchRequest) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in request.tags.items() if key.startswith(launching.PREFIX)]


def _data(request: LaunchRequest, images: Images, settings: Settings) -> dict[str, Any]:
    image = launching.image_of(request, images)
    return {
        **launching.machine(request, image, settings),
        "UserData": base64.b64encode(request.user_data.encode()).decode("ascii"),
    }


def _fleet(request: LaunchRequest, offers: Sequence[Offer], template: str) -> dict[str, Any]:
    prices = {f"{launching.HOURLY}/{one.instance_type}/{one.zone}": repr(one.hourly) for one in offers}
    told = launching.tags(request, prices)
    overrides = []
    for offer in offers:
        ami = offer.extra.get("ami") if request.image is None else None
        place = {"SubnetId": offer.extra["subnet"]} if offer.extra.get("subnet") else {"AvailabilityZone": offer.zone}
        overrides.append({"InstanceType": offer.instance_type, **place, **({"ImageId": ami} if ami else {})})
    spot: dict[str, Any] = {
        "AllocationStrategy": "price-capacity-optimized",
        "InstanceInterruptionBehavior": "terminate",
    }
    if request.bid is not None:
        spot["MaxTotalPrice"] = launching.spot_options(request)["MaxPrice"]
    return {
        "Type": "instant",
        "ClientToken": request.token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "$Latest"},
                "Overrides": overrides,
            }
        ],
        "SpotOptions": spot,
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
        "TagSpecifications": [
            {"ResourceType": "fleet", "Tags": _own(request)},
            {"ResourceType": "instance", "Tags": told},
            {"ResourceType": "volume", "Tags": told},
        ],
    }


def _won(account: Account, request: LaunchRequest, offers: Sequence[Offer], answer: Any) -> Instance:
    """The machine as the answer has it, which of the offers it is included."""
    for group in answer.get("Instances") or ():
        chosen = group.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
        for instance_id in group.get("InstanceIds") or ():
            kind = group.get("InstanceType") or chosen.get("InstanceType", "")
            won = next((one for one in offers if one.instance_type == kind and _there(one, chosen)), None)
            if won is None:
                raise Ambiguous(f"the fleet's answer names no offer: {chosen}", provider=NAME, code="fleet")
            raw = {
                "InstanceId": instance_id,
                "InstanceType": kind,
                "InstanceLifecycle": group.get("Lifecycle", "spot"),
                "Placement": {"AvailabilityZone": won.zone},
                "State": {"Name": "pending"},
                "Tags": launching.tags(request, {launching.HOURLY: repr(won.hourly)}),
            }
            return listing.read(raw, won.region)
    raise _refusal(account, request, offers, answer.get("Errors") or ())


def _refusal(account: Account, request: LaunchRequest, offers: Sequence[Offer], errors: Sequence[Any]) -> ProviderError:
    """What the errors of all overrides come to: what closes more than an offer first, what is of one offer last."""
    found = [_of_one(request, offers, error) for error in errors]
    for known in found:
        if request.identity and profiles.REFUSED.search(known.message):
            return profiles.fleet_refusal(account, request.identity, known)
    for kind in (AuthFailed, QuotaExceeded, RateLimited):
        for known in found:
            if isinstance(known, kind):
                return known
    if found and not any(isinstance(known, NoCapacity) for known in found):
        return found[0]
    codes = ", ".join(sorted({known.code for known in found})) or "no machine"
    return NoCapacity(f"none of {len(offers)} offers can be had: {codes}", provider=NAME, code=codes)


def _of_one(request: LaunchRequest, offers: Sequence[Offer], error: Any) -> ProviderError:
    """One override's error, of the offer that it was made for where it names that."""
    chosen = error.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    kind = chosen.get("InstanceType", "")
    offer = next((one for one in offers if one.instance_type == kind and _there(one, chosen)), request.offer)
    told = {"Error": {"Code": error.get("ErrorCode", ""), "Message": error.get("ErrorMessage", "")}}
    known = refused(told, creating=False, offer=offer, region=offer.region)
    if isinstance(known, InvalidRequest) and known.code.startswith("InvalidAMIID") and request.image is None:
        # Ours was replaced since the offer was made: that is no fault of the task's.
        return ProviderError(known.message, provider=NAME, code=known.code)
    return known


def _there(offer: Offer, chosen: Any) -> bool:
    if chosen.get("SubnetId"):
        return bool(offer.extra.get("subnet") == chosen["SubnetId"])
    return not chosen.get("AvailabilityZone") or bool(offer.zone == chosen["AvailabilityZone"])
