"""The way into a machine: Session Manager. Our machines have no key pair, and no port is opened for anybody."""

from __future__ import annotations

from broker.errors import ConfigError, NotFound
from broker.provider import Instance, Shell
from broker_aws.account import Account
from broker_aws.refusals import NAME, translated

POLICY = "AmazonSSMManagedInstanceCore"  # AWS managed; what SSM Agent needs (Systems Manager User Guide)


def shell(account: Account, instance: Instance) -> Shell:
    """Session Manager's terminal, where the machine has an instance profile by which its agent can be somebody.

    Raises NotFound, and ConfigError for a machine without a profile.
    """
    region = instance.region or account.home_region
    with translated(region=region):
        found = account.client("ec2", region).describe_instances(InstanceIds=[instance.id])
    raw = next((raw for reservation in found["Reservations"] for raw in reservation["Instances"]), None)
    if raw is None or raw["State"]["Name"] not in ("pending", "running"):
        raise NotFound(f"{instance.id} does not run", provider=NAME)
    profile = str((raw.get("IamInstanceProfile") or {}).get("Arn", "")).rpartition("/")[2]
    if not profile:
        raise ConfigError(
            f"{instance.id} takes nobody in: machines on AWS have no key pair and no open port, and AWS's Session "
            "Manager needs an instance profile, which it was launched without",
            fix=f"`broker home setup --store s3 --instance-profile NAME`, and attach {POLICY} to its role; it counts "
            "for machines from then on",
        )
    named = ("--profile", account.profile) if account.profile else ()
    argv = ("aws", *named, "ssm", "start-session", "--region", region, "--target", instance.id)
    needs = f"the role of the instance profile {profile} needs {POLICY}, and this computer the Session Manager plugin"
    return Shell(argv, commands=False, become=("sudo",), needs=needs)
