"""Instance profiles: by one a machine reaches the home without a key, with credentials that renew themselves.

A profile is IAM's handle on one role. What is made here is a role that EC2 may take on, one inline policy for one home,
and the profile, all of one name. Each step looks first, so that a second run finishes what a first one could not.

IAM's changes reach EC2 late: for seconds, and up to two minutes as has been seen, a launch with a fresh profile is
refused, though nothing is wrong with it (hashicorp/terraform 15341 and 7938, hashicorp/packer 9810).
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from broker.errors import AuthFailed, ConfigError, InvalidRequest, ProviderError, ProviderUnavailable
from broker.provider import Finding
from broker_aws.account import Account
from broker_aws.refusals import DENIED, NAME, translated

T = TypeVar("T")
POLICY = "spotbroker-home"
MADE = "spotbroker: lets machines reach their home"
"""The description by which a role of ours is known."""
WHAT = "instance profile"
NAMES = re.compile(r"[\w+=,.@-]{1,64}", re.ASCII)
"""Role names: IAM API, CreateRole."""
REFUSED = re.compile(r"Invalid IAM Instance Profile|has no associated IAM Roles", re.IGNORECASE)
PATIENCE, FIRST_PAUSE, LONGEST_PAUSE = 60.0, 1.0, 5.0  # seconds, between two launches with a fresh profile
FLEET_PAUSE = 3.0  # seconds; a fleet's token repeats its refusal, so that the next one is another placement's
RIGHTS = "providers/broker_aws/README.md lists what setup needs"


def identify(account: Account, name: str, policy: Mapping[str, Any], *, make: bool) -> Finding:
    """As `GivesIdentity.identify`: one finding."""
    if not NAMES.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be an instance profile's name", fix="64 letters, digits and +=,.@-_ at most"
        )
    client = account.client("iam", account.home_region)
    try:
        return _identify(client, name, policy, make=make)
    except AuthFailed as error:
        if make or error.code not in DENIED:
            raise
        return Finding(WHAT, True, f"{name}, not looked at: {error.message}")


def _identify(client: Any, name: str, policy: Mapping[str, Any], *, make: bool) -> Finding:
    profile = _found("iam:GetInstanceProfile", lambda: client.get_instance_profile(InstanceProfileName=name))
    roles = profile["InstanceProfile"]["Roles"] if profile else []
    if roles:
        return _role_of(client, name, str(roles[0]["RoleName"]), policy, make=make)
    if not make:
        lacks = f"{name} has no role" if profile else f"there is no {name}"
        return Finding(WHAT, False, f"{lacks}, so machines cannot be launched with it", _remedy(name))
    _make_role(client, name, policy)
    if profile is None:
        _made("iam:CreateInstanceProfile", lambda: client.create_instance_profile(InstanceProfileName=name))
    _made(
        "iam:AddRoleToInstanceProfile",
        lambda: client.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name),
    )
    return Finding(WHAT, True, f"{name} made: its role reaches the home and nothing else")


def _role_of(client: Any, name: str, role: str, policy: Mapping[str, Any], *, make: bool) -> Finding:
    """A profile with a role: ours is brought up to date, anybody else's is left as it is."""
    ask = lambda: client.get_role_policy(RoleName=role, PolicyName=POLICY)  # noqa: E731
    known = _found("iam:GetRolePolicy", ask)
    has = known["PolicyDocument"] if known else None
    if has == policy:
        return Finding(WHAT, True, f"{name} is there, and its role reaches the home")
    if has is not None and _reach(has) != _reach(policy):
        text, fix = f"{name} is another home's: it reaches {', '.join(_reach(has))}", "choose another name"
        if make:
            raise ConfigError(text, fix=f"{fix}: --instance-profile")
        return Finding(WHAT, False, text, _remedy(name))
    if has is None and (_role(client, role) or {}).get("Description") != MADE:
        return Finding(WHAT, True, f"{name} is there, with a role of your own: what {role} may do was not looked at")
    if not make:
        return Finding(WHAT, False, f"the role of {name} lacks the policy {POLICY}", _remedy(name))
    _put_policy(client, role, policy)
    return Finding(WHAT, True, f"{name} is there, and its role reaches the home now")


def _make_role(client: Any, name: str, policy: Mapping[str, Any]) -> None:
    china = _reach(policy)[0].startswith("arn:aws-cn:")
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "ec2.amazonaws.com.cn" if china else "ec2.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    found = _role(client, name)
    if found is None:
        _made(
            "iam:CreateRole",
            lambda: client.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust), Description=MADE),
        )
    elif found.get("Description") != MADE:
        raise ConfigError(
            f"the account has a role {name} already, which spotbroker did not make",
            fix="choose another name: --instance-profile",
        )
    _put_policy(client, name, policy)


def _put_policy(client: Any, role: str, policy: Mapping[str, Any]) -> None:
    document = json.dumps(policy)
    with _allowed("iam:PutRolePolicy"):
        client.put_role_policy(RoleName=role, PolicyName=POLICY, PolicyDocument=document)


def _role(client: Any, name: str) -> Mapping[str, Any] | None:
    found = _found("iam:GetRole", lambda: client.get_role(RoleName=name))
    return found["Role"] if found else None


def _reach(policy: Mapping[str, Any]) -> list[str]:
    """The resources that a policy names."""
    named: set[str] = set()
    for statement in policy.get("Statement", ()):
        resources = statement.get("Resource", ())
        named.update([resources] if isinstance(resources, str) else resources)
    return sorted(named)


def _found(action: str, ask: Callable[[], T]) -> T | None:
    try:
        with _allowed(action):
            return ask()
    except ProviderError as error:
        if error.code != "NoSuchEntity":
            raise
        return None


def _made(action: str, make: Callable[[], Any]) -> None:
    """Make something that may be there by now."""
    try:
        with _allowed(action):
            make()
    except ProviderError as error:
        if error.code != "EntityAlreadyExists":
            raise


@contextlib.contextmanager
def _allowed(action: str) -> Iterator[None]:
    """Name the permission that a refusal is about."""
    try:
        with translated():
            yield
    except AuthFailed as error:
        if error.code not in DENIED:
            raise
        fix = f"let this account do {action} ({RIGHTS}), then run it again; or have somebody who may run it"
        raise AuthFailed(f"AWS refuses {action}: {error.message}", provider=NAME, code=error.code, fix=fix) from error


def _remedy(name: str) -> str:
    return f"broker home setup --store s3 --instance-profile {name}"


def with_fresh(account: Account, name: str, launch: Callable[[], T]) -> T:
    """Launch with a profile that EC2 may not have heard of yet: again, by the same token, as the refusal made nothing.

    Raises InvalidRequest where IAM does not know the profile either, ProviderUnavailable where EC2 never hears of it.
    """
    import tenacity

    def unheard(error: BaseException) -> bool:
        return isinstance(error, InvalidRequest) and bool(REFUSED.search(error.message)) and _exists(account, name)

    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception(unheard),
        wait=tenacity.wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE),
        stop=tenacity.stop_after_delay(PATIENCE),
        reraise=True,
    )
    try:
        return again(launch)
    except InvalidRequest as error:
        if not REFUSED.search(error.message):
            raise
        raise refusal(account, name, error) from error


def refusal(account: Account, name: str, error: ProviderError) -> ProviderError:
    """What a refused profile means: one that there is will be known to EC2 soon, and the job tries again."""
    if _exists(account, name):
        return ProviderUnavailable(
            f"EC2 does not know the instance profile {name} yet: {error.message}", provider=NAME, code=error.code
        )
    return InvalidRequest(error.message, provider=NAME, code=error.code, fix=_remedy(name))


def fleet_refusal(account: Account, name: str, error: ProviderError) -> ProviderError:
    """As `refusal`, after a pause: without one a job would ask for all its offers in vain, one after the other."""
    known = refusal(account, name, error)
    if isinstance(known, ProviderUnavailable):
        time.sleep(FLEET_PAUSE)
    return known


def _exists(account: Account, name: str) -> bool:
    """Does IAM know the profile, and its role? True, too, where it may not be asked."""
    client = account.client("iam", account.home_region)
    try:
        found = _found("iam:GetInstanceProfile", lambda: client.get_instance_profile(InstanceProfileName=name))
    except ProviderError:
        return True
    return bool(found and found["InstanceProfile"]["Roles"])
