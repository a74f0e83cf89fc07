"""Homes on S3 whose broker has no key but a login, whose bucket is encrypted by KMS, or is another account's."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from cli.command import Cli
from cli.test_home_setup import setup, written
from clouds import encrypted
from clouds.aws.server import Aws
from clouds.encrypted import Gate
from clouds.seaweedfs import ROLE, SeaweedFS

from broker import access, identity, renewals
from broker.config import Config, load
from broker.errors import HomeAccessDenied
from broker.home import Access, Home, JobKeys

KEY = "arn:aws:kms:us-east-1:111122223333:key/0a1b2c3d-aaaa-bbbb-cccc-0123456789ab"
ANYTHING = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"]},
        {"Effect": "Allow", "Action": ["sts:*"], "Resource": ["*"]},
    ],
}
AWS_CONFIG = """\
[profile research]
sso_session = corp
sso_account_id = 123456789012
sso_role_name = Researcher
region = us-east-1

[sso-session corp]
sso_start_url = https://corp.awsapps.com/start
sso_region = us-east-1
sso_registration_scopes = sso:account:access
"""


@pytest.fixture
def on_sso(cli: Cli, aws: Aws, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Logged in by `aws sso login`: no key anywhere, a token in the SDK's cache. How a home is set up there."""
    folder = cli.folder / "person"
    cache = folder / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    (folder / ".aws" / "config").write_text(AWS_CONFIG)
    token = {
        "startUrl": "https://corp.awsapps.com/start",
        "region": "us-east-1",
        "accessToken": "token-of-the-session",
        "expiresAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 8 * 3600)),
    }
    (cache / f"{hashlib.sha1(b'corp').hexdigest()}.json").write_text(json.dumps(token))
    variables = {name: value for name, value in aws.variables().items() if "ACCESS_KEY" not in name}
    variables |= {"AWS_CONFIG_FILE": str(folder / ".aws" / "config"), "HOME": str(folder)}
    for name in [name for name in cli.env if name.startswith("AWS_")]:
        del cli.env[name]
    cli.env.update({**variables, "AWS_PROFILE": "research"})
    cli.forks = False  # botocore looks for the home folder once, when it is imported
    monkeypatch.setenv("AWS_CONFIG_FILE", variables["AWS_CONFIG_FILE"])
    aws.world.sso = lambda: seaweedfs.role_keys(ANYTHING, lasting=3600.0, fresh=3000.0)
    bucket = seaweedfs.new_home("").removeprefix("s3://")
    where = ("--store", "s3", "--endpoint", seaweedfs.endpoint, "--region", "us-east-1", "--bucket", f"{bucket}/team")
    return (*where, "--profile", "research")


def told(cli: Cli, *args: str, code: int = 0) -> str:
    """What `home setup` says to people, with no key given to it."""
    process = cli.start("home", "setup", *args)
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err, err
    assert process.returncode == code, f"{process.returncode}\n{out}\n{err}"
    return err


MINT = """
import json, time
from broker import access
from broker.config import load
config = load()
print(json.dumps(access.mint(config, config.home, "A", 1, time.time() + 3600).to_json()))
"""


LENT = MINT.replace('mint(config, config.home, "A", 1, time.time() + 3600)', "lent(config, config.home)")


def run(cli: Cli, program: str) -> str:
    """A program where that person is logged in."""
    done = subprocess.run([sys.executable, "-c", program], env=cli.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def configured(cli: Cli) -> Config:
    return load(state=cli.state, file=cli.folder / "config.toml")


def test_a_login_by_sso_and_an_instance_profile(cli: Cli, aws: Aws, on_sso: tuple[str, ...]) -> None:
    """No key is asked for, written or given to a machine; of a login that is over its remedy is said."""
    said = told(cli, *on_sso, "--instance-profile", "spotbroker-team")
    assert "put, list, get, delete and conditional put work" in said
    assert "this login makes no keys for machines" in said
    assert "instance profile: spotbroker-team made" in said
    table = written(cli)["home_config"]
    assert (table["profile"], table["mint"], table["instance_profile"]) == (
        "research", "instance-profile", "spotbroker-team",
    )  # fmt: skip
    assert not [name for name in table if "key" in name or "token" in name]
    config = configured(cli)
    machine = access.keyless(config, config.home)
    assert "profile" not in machine.config, "a machine is told of no login"
    assert not renewals.lasting(config.home_config, {}), "what a session signs ends with it"
    rows = {row["what"]: row for row in cli.json("check", "aws")}
    assert rows["home"]["state"] == rows["instance profile"]["state"] == rows["identity"]["state"] == "ok", rows
    aws.world.sso = None
    rows = {row["what"]: row for row in cli.json("check", code=78)}
    assert "the profile research gives no keys" in rows["home"]["found"]
    assert "aws sso login --profile research" in rows["home"]["fix"]


def test_a_login_by_sso_and_a_role_that_makes_keys(cli: Cli, on_sso: tuple[str, ...]) -> None:
    said = told(cli, *on_sso, "--role-arn", ROLE)
    assert "keys: each machine gets its own, for its job only (assume-role" in said
    config = configured(cli)
    made = Access.from_json(json.loads(run(cli, MINT)))
    assert made.scoped
    assert "profile" not in made.config
    Home(made).put(JobKeys("A").control, b"x")
    with pytest.raises(HomeAccessDenied):
        Home(made).put(JobKeys("B").control, b"x")
    rows = {row["what"]: row for row in cli.json("check", "aws")}
    assert "as tried just now" in rows["home's keys"]["found"]
    life = access.longest(config.home_config, config.home, lasting=False)
    assert life == 3600, "a role taken on with a session's keys is chained"
    assert "keys of a session" in renewals.unattended(config, config.home, 8, time.time(), {})


def test_a_login_alone_gives_no_machine_its_keys(cli: Cli, on_sso: tuple[str, ...]) -> None:
    said = told(cli, *on_sso)
    assert "--instance-profile NAME for machines on EC2; --role-arn ARN" in said
    config = configured(cli)
    assert not access.has_key(access.mint(config, config.home, "A", 1, time.time() + 60).config)
    assert "it has none" in identity._without(config.home_config)
    lent = Access.from_json(json.loads(run(cli, LENT)))  # but the machine that is this computer
    Home(lent).put(JobKeys("A").control, b"x")
    assert "profile" not in lent.config


def test_a_profile_that_there_is_not(cli: Cli, on_sso: tuple[str, ...]) -> None:
    said = told(cli, *on_sso[:-1], "reserach", code=78)
    assert "reserach" in said
    assert "aws configure list-profiles" in said
    assert not (cli.folder / "config.toml").exists()
    refused = told(cli, "--store", "https://x.example", "--bucket", "abc", "--profile", "research", code=2)
    assert "--profile goes with --store s3 only" in refused


def test_an_environment_that_names_no_profile_there_is(cli: Cli, aws: Aws, seaweedfs: SeaweedFS) -> None:
    """The SDK reads it even where it is given a key."""
    cli.env.update({**aws.variables(), "AWS_PROFILE": "nobody"})
    bucket = seaweedfs.new_home("").removeprefix("s3://")
    done = setup(cli, "--store", "s3", "--endpoint", seaweedfs.endpoint, "--region", "us-east-1", "--bucket", bucket,
                 key="minter", code=78)  # fmt: skip
    assert "nobody" in done.stderr
    assert "AWS_PROFILE" in done.stderr


@pytest.fixture
def gate(cli: Cli, aws: Aws, seaweedfs: SeaweedFS) -> Iterator[Gate]:
    cli.env.update(aws.variables())
    with encrypted.before(seaweedfs.endpoint) as made:
        yield made


def at(gate: Gate, seaweedfs: SeaweedFS) -> tuple[str, ...]:
    bucket = seaweedfs.new_home("").removeprefix("s3://")
    return "--store", "s3", "--endpoint", gate.endpoint, "--region", "us-east-1", "--bucket", bucket


def test_a_bucket_with_a_kms_key_that_this_key_may_use(cli: Cli, gate: Gate, seaweedfs: SeaweedFS) -> None:
    """Then machines' own keys may use it, too, and so may an instance profile's role."""
    gate.kms, gate.may_use = KEY, {"minter"}
    done = setup(cli, *at(gate, seaweedfs), key="minter")
    assert f"by a KMS key, which machines' keys may use: {KEY}" in done.stderr
    assert "each machine gets its own, for its job only (federation" in done.stderr
    config = configured(cli)
    assert config.home_config["kms_key"] == KEY
    made = access.mint(config, config.home, "A", 1, time.time() + 3600)
    assert "kms_key" not in made.config
    Home(made).put(JobKeys("A").control, b"x")
    assert Home(made).get(JobKeys("A").control) == b"x"
    assert access.home_policy(config.home_config, config.home)["Statement"][-1]["Resource"] == [KEY]


def test_a_bucket_with_a_kms_key_that_this_key_may_not_use(cli: Cli, gate: Gate, seaweedfs: SeaweedFS) -> None:
    gate.kms = KEY
    done = setup(cli, *at(gate, seaweedfs), key="minter", code=1)
    assert f"allow kms:GenerateDataKey and kms:Decrypt on {KEY}" in " ".join(done.stderr.split())
    assert not (cli.folder / "config.toml").exists()


def test_a_bucket_that_is_encrypted_later_is_found_by_check(cli: Cli, gate: Gate, seaweedfs: SeaweedFS) -> None:
    """Before a machine is rented that could not write a thing."""
    setup(cli, *at(gate, seaweedfs), key="minter")
    rows = {row["what"]: row for row in cli.json("check", "aws")}
    assert rows["home's keys"]["state"] == "ok"
    assert "encryption" not in rows
    gate.kms, gate.may_use = KEY, {"minter"}
    rows = {row["what"]: row for row in cli.json("check", "aws", code=1)}
    assert rows["home"]["state"] == "ok", "the broker's own key may use it"
    assert (rows["home's keys"]["state"], rows["encryption"]["state"]) == ("failed", "failed")
    assert "broker home setup" in rows["encryption"]["fix"]
    assert KEY in rows["home's keys"]["fix"]
    setup(cli, "--store", "s3", "--endpoint", gate.endpoint, "--region", "us-east-1", "--bucket",
          configured(cli).home.removeprefix("s3://"), key="minter")  # fmt: skip
    rows = {row["what"]: row for row in cli.json("check", "aws")}
    assert rows["home's keys"]["state"] == "ok"


def test_a_bucket_of_another_region(cli: Cli, gate: Gate, seaweedfs: SeaweedFS) -> None:
    """The SDK would find its way there by itself, and no machine would."""
    gate.region = "eu-central-1"
    done = setup(cli, *at(gate, seaweedfs), key="minter", code=78)
    assert "lies in eu-central-1" in done.stderr
    assert "--region eu-central-1" in done.stderr
    assert not (cli.folder / "config.toml").exists()


def test_another_accounts_bucket(cli: Cli, gate: Gate, seaweedfs: SeaweedFS) -> None:
    """Where its policy lets nobody in, the text says what it must say; where it does, that it must go on to."""
    gate.owner, gate.lets_in = "999988887777", set()
    args = at(gate, seaweedfs)
    done = setup(cli, *args, key="minter", code=1)
    said = " ".join(done.stderr.split())
    assert "let arn:aws:sts::123456789012:" in said
    assert "in the bucket's policy as well" in said
    assert not (cli.folder / "config.toml").exists()
    gate.lets_in = None
    done = setup(cli, *args, key="minter")
    assert "another account's: its bucket policy must let arn:aws:iam::" in " ".join(done.stderr.split())
    gate.lets_in = {"minter"}
    rows = {row["what"]: row for row in cli.json("check", "aws", code=1)}
    assert rows["home"]["state"] == "ok"
    assert rows["home's keys"]["state"] == "failed", (
        "a machine's key is somebody whom the bucket's policy does not name"
    )
    assert "another account's" in rows["owner"]["found"]
