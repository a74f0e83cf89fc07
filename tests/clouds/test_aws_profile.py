"""Instance profiles: made once and whoever runs it again, never over anybody else's, and launched with while fresh."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from clouds.aws.server import Aws

from broker.access import home_policy
from broker.cli.offers import plan_lines
from broker.config import Config
from broker.errors import AuthFailed, ConfigError, InvalidRequest, ProviderUnavailable
from broker.inspection import inspect
from broker.offer import Market, Offer, OfferQuery
from broker.planning import plan
from broker.provider import Finding
from broker.resources import Resources
from broker.task import Checkpoint, Task
from broker.testing.conformance import request_for
from broker_aws import AwsProvider, profiles

URL = "s3://my-bucket/team"
POLICY = home_policy({}, URL)
README = Path(profiles.__file__).with_name("README.md").read_text(encoding="utf-8")


@pytest.fixture
def provider(aws: Aws, tmp_path: Path) -> AwsProvider:
    return AwsProvider(aws.settings(), tmp_path)


def made(aws: Aws) -> set[str]:
    """The calls to IAM that change something, and others."""
    return {name.removeprefix("iam:") for name in aws.world.counted() if name.startswith("iam:")}


def offer_of(provider: AwsProvider) -> Offer:
    found = provider.offers(OfferQuery(cpus=2, infra=("aws/us-east-1/*/c5.xlarge",), markets=(Market.SPOT,)))
    return found[0]


def test_it_is_made_once_and_found_again(aws: Aws, provider: AwsProvider) -> None:
    (missing,) = provider.identify("home", POLICY, make=False)
    assert not missing.ok
    assert missing.fix == "broker home setup --store s3 --instance-profile home"
    assert made(aws) == {"GetInstanceProfile"}, "a look changes nothing"
    (finding,) = provider.identify("home", POLICY, make=True)
    assert finding.ok
    iam: Any = boto3.client("iam")
    (role,) = iam.get_instance_profile(InstanceProfileName="home")["InstanceProfile"]["Roles"]
    (trusted,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert (trusted["Principal"], trusted["Action"]) == ({"Service": "ec2.amazonaws.com"}, "sts:AssumeRole")
    (name,) = iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"]
    document = iam.get_role_policy(RoleName=role["RoleName"], PolicyName=name)["PolicyDocument"]
    objects, bucket = document["Statement"]
    assert objects["Resource"] == [f"arn:aws:s3:::my-bucket/team/{top}/*" for top in ("jobs", "beats")]
    assert bucket["Resource"] == ["arn:aws:s3:::my-bucket"]
    assert bucket["Condition"] == {"StringLike": {"s3:prefix": ["team/jobs/*", "team/beats/*"]}}
    needed = made(aws)
    aws.world.calls.clear()
    for again in (True, False):
        (finding,) = provider.identify("home", POLICY, make=again)
        assert finding.ok
        assert "is there, and its role reaches the home" in finding.found
    assert made(aws) == {"GetInstanceProfile", "GetRolePolicy"}, "the same again changes nothing"
    asked = {f"iam:{action}" for action in needed | made(aws)} - {"iam:ListRolePolicies"}
    assert asked <= set(permissions()), "the table of permissions is short of one"


def permissions() -> list[str]:
    """What the page says that setup needs."""
    block = README.split('"Sid": "MakeTheProfile"', 1)[1].split("]", 1)[0]
    return json.loads(block.split('"Action":', 1)[1].strip() + "]")


@pytest.mark.parametrize(
    "action",
    [
        "GetInstanceProfile",
        "GetRole",
        "CreateRole",
        "PutRolePolicy",
        "CreateInstanceProfile",
        "AddRoleToInstanceProfile",
    ],
)
def test_a_denied_call_is_named_and_the_next_run_finishes(aws: Aws, provider: AwsProvider, action: str) -> None:
    aws.world.fail(action, "AccessDenied", 403, message=f"User: x is not authorized to perform: iam:{action}")
    with pytest.raises(AuthFailed, match=f"AWS refuses iam:{action}") as caught:
        provider.identify("home", POLICY, make=True)
    assert f"let this account do iam:{action}" in caught.value.fix
    assert provider.identify("home", POLICY, make=True)[0].ok
    (found,) = provider.identify("home", POLICY, make=False)
    assert "its role reaches the home" in found.found


def test_whoever_may_not_look_is_told_so_by_check(aws: Aws, provider: AwsProvider) -> None:
    provider.identify("home", POLICY, make=True)
    for action in ("GetInstanceProfile", "GetRolePolicy"):
        aws.world.fail(action, "AccessDenied", 403)
        (found,) = provider.identify("home", POLICY, make=False)
        assert found.ok
        assert f"not looked at: AWS refuses iam:{action}" in found.found


def test_check_looks_at_the_profile_that_the_configuration_names(aws: Aws, tmp_path: Path) -> None:
    settings = {"mint": "instance-profile", "instance_profile": "home"}

    def told(**more: str) -> Finding | None:
        config = configured(tmp_path, aws, {**settings, **more})
        return next((found for found in inspect("aws", config).findings if found.what == "instance profile"), None)

    missing = told()
    assert missing is not None
    assert (missing.ok, missing.found) == (False, "there is no home, so machines cannot be launched with it")
    unnamed = told(instance_profile="")
    assert unnamed is not None
    assert "needs instance_profile" in unnamed.found
    assert told(mint="federation", instance_profile="") is None


def configured(folder: Path, aws: Aws, settings: Mapping[str, str]) -> Config:
    """With a home on S3."""
    file, providers = folder / "config.toml", {"aws": aws.settings()}
    return Config(folder / "state", file, home=URL, home_config=settings, providers=providers)


def test_what_is_somebody_elses_is_left_alone(aws: Aws, provider: AwsProvider) -> None:
    iam: Any = boto3.client("iam")
    iam.create_role(RoleName="taken", AssumeRolePolicyDocument="{}")
    with pytest.raises(ConfigError, match="which spotbroker did not make") as caught:
        provider.identify("taken", POLICY, make=True)
    assert "another name" in caught.value.fix
    iam.create_instance_profile(InstanceProfileName="own")
    iam.add_role_to_instance_profile(InstanceProfileName="own", RoleName="taken")
    (found,) = provider.identify("own", POLICY, make=True)
    assert found.ok
    assert "with a role of your own" in found.found
    provider.identify("first", POLICY, make=True)
    with pytest.raises(ConfigError, match="another home's: it reaches arn:aws:s3:::my-bucket,"):
        provider.identify("first", home_policy({}, "s3://other/team"), make=True)
    assert iam.get_role_policy(RoleName="first", PolicyName=profiles.POLICY)["PolicyDocument"] == POLICY
    assert not iam.list_role_policies(RoleName="taken")["PolicyNames"]
    with pytest.raises(ConfigError, match="cannot be an instance profile's name"):
        provider.identify("my profile", POLICY, make=True)


def test_its_policy_is_mended(aws: Aws, provider: AwsProvider) -> None:
    """As of an older version: what it reaches is the same, what it may do there is not."""
    provider.identify("home", POLICY, make=True)
    less = json.loads(json.dumps(POLICY))
    less["Statement"][0]["Action"].remove("s3:DeleteObject")
    iam: Any = boto3.client("iam")
    iam.put_role_policy(RoleName="home", PolicyName=profiles.POLICY, PolicyDocument=json.dumps(less))
    (found,) = provider.identify("home", POLICY, make=False)
    assert not found.ok
    provider.identify("home", POLICY, make=True)
    assert iam.get_role_policy(RoleName="home", PolicyName=profiles.POLICY)["PolicyDocument"] == POLICY


@pytest.mark.parametrize("mint", ["federation", "instance-profile"])
def test_the_plan_says_what_the_profile_opens(aws: Aws, tmp_path: Path, mint: str) -> None:
    """And names no end of access, which a key would have long before the task's."""
    settings = {"mint": mint, "instance_profile": "ours", "access_key_id": "AKIA", "secret_access_key": "s"}
    config = configured(tmp_path, aws, settings)
    where = (Resources(cpus=2, infra=("aws/us-east-1",), instance_type="c5.xlarge"),)
    task = Task(name="long", run="true", resources=where, checkpoint=Checkpoint("ckpt"), max_hours=72.0)
    lines = dict(plan_lines(plan(task, config=config)))
    assert lines["access"].startswith("aws's machines share the instance profile ours: it reaches the whole home")
    assert "unattended" not in lines
    keyed = replace(config, home_config={**config.home_config, "mint": "federation", "instance_profile": ""})
    lines = dict(plan_lines(plan(task, config=keyed)))
    assert "access" not in lines
    assert "36 h" in lines["unattended"]


def test_a_launch_with_a_fresh_profile_waits_until_ec2_knows_it(aws: Aws, provider: AwsProvider) -> None:
    """The same call, by the same token: the refusal made nothing."""
    request = replace(request_for(offer_of(provider)), identity="home")
    provider.identify("home", POLICY, make=True)
    aws.world.profile_lag = 2
    instance = provider.launch(request)
    sent = aws.world.sent("RunInstances")
    assert len(sent) == 3
    assert {call["IamInstanceProfile.Name"] for call in sent} == {"home"}
    assert {call["ClientToken"] for call in sent} == {request.token}
    assert provider.launch(request).id == instance.id
    assert len(aws.world.charges) == 1


def test_a_profile_that_there_is_not_is_refused_at_once(aws: Aws, provider: AwsProvider) -> None:
    request = replace(request_for(offer_of(provider)), identity="hmoe")
    with pytest.raises(InvalidRequest, match="Invalid IAM Instance Profile name") as caught:
        provider.launch(request)
    assert caught.value.fix.endswith("--instance-profile hmoe")
    assert len(aws.world.sent("RunInstances")) == 1
    with pytest.raises(InvalidRequest, match="Invalid IAM Instance Profile name") as caught:
        provider.launch_any(request, [request.offer])
    assert caught.value.fix.endswith("--instance-profile hmoe")
    assert not aws.world.charges


def test_a_fleet_with_a_fresh_profile_is_tried_again_as_another(aws: Aws, provider: AwsProvider) -> None:
    """A fleet's token repeats its refusal: the job goes on with its next placement, a little later."""
    request = replace(request_for(offer_of(provider)), identity="home")
    provider.identify("home", POLICY, make=True)
    aws.world.profile_lag = 1
    with pytest.raises(ProviderUnavailable, match="does not know the instance profile home yet"):
        provider.launch_any(request, [request.offer])
    assert not aws.world.charges
    assert provider.launch_any(replace(request, token="next"), [request.offer]).alive
    (first, _) = aws.world.sent("CreateLaunchTemplate")
    assert first["LaunchTemplateData.IamInstanceProfile.Name"] == "home"
