"""What this account may do, asked by dry runs: EC2 answers those with `DryRunOperation`, and does nothing.

Whether a machine may be ended cannot be asked so: that right is for machines with our tag, and there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from broker.errors import AuthFailed, BrokerError
from broker.provider import Finding
from broker_aws.account import Account
from broker_aws.images import CPU_PARAMETERS
from broker_aws.launching import PREFIX
from broker_aws.refusals import DENIED, translated

README = "give the user or role the policy in providers/broker_aws/README.md"
TYPE = "t3.micro"  # of a launch that is never made
TAGS = [{"Key": f"{PREFIX}installation", "Value": "check"}]
OVERRIDE = {"LaunchTemplateName": "spotbroker-check", "Version": "$Latest"}
CALLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ec2:DescribeInstanceTypes": ("describe_instance_types", {}),
    "ec2:DescribeInstanceTypeOfferings": ("describe_instance_type_offerings", {}),
    "ec2:DescribeSpotPriceHistory": ("describe_spot_price_history", {"InstanceTypes": [TYPE], "MaxResults": 1}),
    "ec2:DescribeImages": ("describe_images", {"Owners": ["self"]}),
    "ec2:DescribeSpotInstanceRequests": ("describe_spot_instance_requests", {}),
    "ec2:DescribeLaunchTemplates": ("describe_launch_templates", {}),
    "ec2:CreateLaunchTemplate": (
        "create_launch_template",
        {"LaunchTemplateName": "spotbroker-check", "LaunchTemplateData": {"InstanceType": TYPE}},
    ),
    "ec2:CreateFleet": (
        "create_fleet",
        {
            "Type": "instant",
            "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": OVERRIDE}],
            "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
        },
    ),
}


def rights(account: Account, region: str) -> Iterator[Finding]:
    """One line: what is missing in that region, or that nothing is. Rents nothing."""
    missing: list[str] = []

    def may(action: str, ask: Callable[[], Any]) -> Any:
        try:
            with translated(region=region):
                return ask()
        except AuthFailed as error:
            if error.code in DENIED:
                missing.append(action)
        except BrokerError:
            pass  # `DryRunOperation`, or what has nothing to do with rights
        return None

    ec2 = account.client("ec2", region)
    for action, (method, wish) in CALLS.items():
        may(action, partial(getattr(ec2, method), **wish, DryRun=True))
    ssm = account.client("ssm", region)
    found = may("ssm:GetParameters", partial(ssm.get_parameters, Names=list(CPU_PARAMETERS)))
    images = [one["Value"] for one in found["Parameters"]] if found else []
    for ami in images[:1]:
        launch = {
            "ImageId": ami,
            "InstanceType": TYPE,
            "MinCount": 1,
            "MaxCount": 1,
            "TagSpecifications": [{"ResourceType": "instance", "Tags": TAGS}],
        }
        may("ec2:RunInstances or ec2:CreateTags", partial(ec2.run_instances, **launch, DryRun=True))
    if missing:
        yield Finding("rights", False, f"in {region} this account may not do {', '.join(missing)}", README)
    else:
        yield Finding("rights", True, f"prices, images, launches and fleets, as far as {region} tells")
