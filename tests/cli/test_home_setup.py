"""`broker home setup` against a real S3 server and stand-ins of the others; what is written, and what never is."""

from __future__ import annotations

import json
import subprocess
import time
import tomllib
import uuid
from pathlib import Path
from typing import Any

import pytest
from cli.command import Cli
from cli.terminal import Terminal
from clouds import b2, objects, r2
from clouds.aws.server import Aws
from clouds.objects import Grant, Habits, Objects
from clouds.seaweedfs import SeaweedFS

from broker import identity
from broker.access import mint, own
from broker.config import load
from broker.home import Home
from broker.store import JobRow, open_store
from broker.task import Task

COMMENTED = """\
# my own words, at the top
database = "postgresql://host/db"  # shared

[limits]
beat = 30  # as it is

[providers.vast]  # kept
patience = 7.5
"""


def fresh() -> str:
    return f"test-{uuid.uuid4().hex[:16]}"


def setup(
    cli: Cli, *args: str, key: str = "admin", secret: str = "", code: int = 0
) -> subprocess.CompletedProcess[str]:
    process = cli.start("home", "setup", "--key-stdin", *args, stdin=subprocess.PIPE)
    out, err = process.communicate(f"{key}\n{secret or key + '-secret'}\n", timeout=120)
    assert "Traceback" not in err, err
    assert process.returncode == code, f"{process.returncode}\n{out}\n{err}"
    assert "-secret" not in out + err
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def written(cli: Cli) -> dict[str, Any]:
    return tomllib.loads((cli.folder / "config.toml").read_text())


def test_a_home_on_a_real_s3_server(cli: Cli, seaweedfs: SeaweedFS) -> None:
    bucket = fresh()
    done = setup(cli, "--store", seaweedfs.endpoint, "--bucket", f"{bucket}/team", "--region", "us-east-1")
    for line in (
        f"✓ bucket: {bucket} made",
        "✓ rule: unfinished uploads are thrown away after 3 days",
        f"✓ home: s3://{bucket}/team: put, list, get, delete and conditional put work",
        "✓ signed URLs: an object can be read by one",
        "MiB/s up",
        f"s3://{bucket}/team is the home of every job from now on",
    ):
        assert line in done.stderr, done.stderr
    file = cli.folder / "config.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert written(cli)["home"] == f"s3://{bucket}/team"
    rules = seaweedfs.client().get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert [rule["AbortIncompleteMultipartUpload"] for rule in rules] == [{"DaysAfterInitiation": 3}]
    assert rules[0]["Filter"]["Prefix"] == "team/"
    home = {row["what"]: row for row in cli.json("check") if row["who"] == "house"}
    assert home["home"]["state"] == home["clock"]["state"] == "ok"
    assert not Home(own(load(state=cli.state, file=file), f"s3://{bucket}")).list(""), "nothing is left of the proof"


def test_a_key_that_may_mint_gives_every_machine_its_own(cli: Cli, seaweedfs: SeaweedFS) -> None:
    bucket = seaweedfs.new_home("").removeprefix("s3://")
    done = setup(cli, "--store", seaweedfs.endpoint, "--bucket", bucket, "--region", "us-east-1", key="minter")
    assert f"✓ bucket: {bucket} is there" in done.stderr
    assert "✓ keys: each machine gets its own, for its job only (federation, up to 1.5 days)" in done.stderr
    assert (written(cli)["home_config"]["mint"], "dedicated" in written(cli)["home_config"]) == ("federation", False)
    config = load(state=cli.state, file=cli.folder / "config.toml")
    assert mint(config, config.home, "A", 1, time.time() + 3600).scoped


def test_a_wider_key_does_not_take_a_narrow_ones_place_unasked(cli: Cli, seaweedfs: SeaweedFS) -> None:
    bucket = seaweedfs.new_home("").removeprefix("s3://")
    args = ("--store", seaweedfs.endpoint, "--bucket", bucket, "--region", "us-east-1")
    setup(cli, *args, key="minter")
    before = (cli.folder / "config.toml").read_bytes()
    seaweedfs.new_home("")  # which the other key opens too
    refused = setup(cli, *args, key="admin", code=2)
    assert "so far, by federation; this key cannot make any" in refused.stderr
    assert (cli.folder / "config.toml").read_bytes() == before
    setup(cli, *args, "--replace", key="admin")
    assert written(cli)["home_config"]["mint"] == "none"


def on_aws(cli: Cli, aws: Aws, seaweedfs: SeaweedFS) -> tuple[str, ...]:
    """How an S3 home is set up whose IAM is the stand-in's."""
    cli.env.update(aws.variables())
    bucket = seaweedfs.new_home("").removeprefix("s3://")
    return "--store", "s3", "--endpoint", seaweedfs.endpoint, "--region", "us-east-1", "--bucket", f"{bucket}/team"


def test_an_instance_profile_is_made_for_the_home_and_stays_with_it(cli: Cli, aws: Aws, seaweedfs: SeaweedFS) -> None:
    """The key given here can make no narrow ones, so that no machine gets any: EC2's have the profile."""
    args = on_aws(cli, aws, seaweedfs)
    done = setup(cli, *args, "--instance-profile", "spotbroker-team", "--json")
    for line in (
        "✓ instance profile: spotbroker-team made: its role reaches the home and nothing else",
        "✓ keys: no machine gets this key: those of aws that have the profile alone are rented",
        "for machines on EC2 --instance-profile NAME will do",
    ):
        assert line in done.stderr, done.stderr
    told = json.loads(done.stdout)
    assert (told["mint"], told["instance_profile"]) == ("instance-profile", "spotbroker-team")
    table = written(cli)["home_config"]
    assert (table["mint"], table["instance_profile"]) == ("instance-profile", "spotbroker-team")
    setup(cli, *args, key="minter")
    config = load(state=cli.state, file=cli.folder / "config.toml")
    assert config.home_config["mint"] == "federation", "others than EC2's machines get keys of their own"
    assert config.home_config["instance_profile"] == "spotbroker-team", "it stays, though it was not named again"
    assert aws.world.counted()["iam:CreateRole"] == 1
    found = identity.finding(config, config.home)
    assert found is not None
    assert found.ok
    assert "its role reaches the home" in found.found


def test_what_iam_refuses_is_named_and_nothing_is_written(cli: Cli, aws: Aws, seaweedfs: SeaweedFS) -> None:
    args = (*on_aws(cli, aws, seaweedfs), "--instance-profile", "spotbroker-team")
    aws.world.fail("PutRolePolicy", "AccessDenied", 403)
    done = setup(cli, *args, code=78)
    assert "AWS refuses iam:PutRolePolicy" in done.stderr
    assert "let this account do iam:PutRolePolicy" in done.stderr
    assert not (cli.folder / "config.toml").exists()
    setup(cli, *args)
    refused = setup(cli, "--store", "http://127.0.0.1:9", "--bucket", "abc", "--instance-profile", "x", code=2)
    assert "no instance profile of EC2 reaches another S3-compatible store" in refused.stderr


def test_a_profile_is_offered_where_machines_would_get_the_key_itself(cli: Cli, aws: Aws, seaweedfs: SeaweedFS) -> None:
    args = on_aws(cli, aws, seaweedfs)
    with Terminal(cli, "home", "setup", *args) as terminal:
        terminal.until("Access key id: ")
        terminal.type("admin\n")
        terminal.until("(not shown): ")
        terminal.type("admin-secret\n")
        terminal.until("Make the instance profile spotbroker-test-")
        terminal.type("y\n")
        assert terminal.ended() == 0, terminal.shown
    assert written(cli)["home_config"]["mint"] == "instance-profile"
    assert written(cli)["home_config"]["instance_profile"].startswith("spotbroker-test-")


def test_a_key_that_opens_more_is_told_of(cli: Cli, seaweedfs: SeaweedFS) -> None:
    seaweedfs.new_home("")
    done = setup(cli, "--store", seaweedfs.endpoint, "--bucket", fresh(), "--region", "us-east-1")
    assert "– keys: machines would get this key itself, and it opens other buckets too (" in done.stderr
    assert "make a key that sees this bucket only" in done.stderr
    assert written(cli)["home_config"]["mint"] == "none"


def test_backblaze(cli: Cli) -> None:
    with b2.running() as account:
        # The stand-in's native API is found by the setting; a user's is Backblaze's own.
        (cli.folder / "config.toml").write_text(f'[home_config]\napi_endpoint = "{account.url}"\n')
        done = setup(
            cli,
            "--store",
            "b2",
            "--endpoint",
            account.objects.endpoint,
            "--bucket",
            "jobs",
            "--region",
            "x-1",
            key="app",
        )
        assert "it has no conditional put, which is done without" in done.stderr
        assert "each machine gets its own, for its job only (b2, up to 1e+03 days)" in done.stderr
        assert "price: 100 GB for a month: $0.54, the first 10 GB free" in done.stderr
        assert "NoncurrentDays" in account.objects.rules["jobs"], "deleted objects must go, too"
        config = load(state=cli.state, file=cli.folder / "config.toml")
        assert (config.home_config["mint"], config.home_config["conditional_put"]) == ("b2", "disabled")
        assert all(key.expires_at is None or key.expires_at < time.time() + 1000 for key in account.keys.values())
        assert mint(config, config.home, "A", 1, time.time() + 3600).scoped


def test_backblaze_without_the_right_to_make_keys(cli: Cli) -> None:
    with b2.running() as account:
        app = account.keys["app"]
        app.capabilities = tuple(c for c in app.capabilities if c not in ("writeKeys", "listAllBucketNames"))
        (cli.folder / "config.toml").write_text(f'[home_config]\napi_endpoint = "{account.url}"\n')
        args = ("--store", "b2", "--endpoint", account.objects.endpoint, "--bucket", "jobs", "--region", "x-1")
        done = setup(cli, *args, key="app")
        assert "✓ keys: the bucket is the broker's own" in done.stderr
        assert written(cli)["home_config"]["dedicated"] is True
        assert "the bucket is the broker's own" in cli("check").stdout
        account.objects.buckets["jobs"]["photos/cat.jpg"] = objects.Stored(b"x", '"x"', time.time())
        assert "the bucket holds photos besides the broker's data" in cli("check", code=78).stdout
        done = setup(cli, *args, key="app")
        assert "it holds photos too, so marketplace hosts are left out" in done.stderr
        assert "the key lacks writeKeys" in done.stderr


def test_cloudflare(cli: Cli) -> None:
    with r2.running() as account:
        done = setup(
            cli, "--store", "r2", "--endpoint", account.objects.endpoint, "--account", account.account,
            "--bucket", "jobs", "--json", key="parent",
        )  # fmt: skip
        said = json.loads(done.stdout)
        assert (said["home"], said["mint"], said["dedicated"]) == ("s3://jobs", "r2", False)
        assert said["bytes_per_second"]["up"] > 0
        assert account.calls == 0, "these are signed without a call"
        assert "100 GB for a month: $1.35, the first 10 GB free; reading them once: free" in done.stderr
        config = load(state=cli.state, file=cli.folder / "config.toml")
        assert config.home_config["account_id"] == account.account
        assert mint(config, config.home, "A", 1, time.time() + 3600).scoped


def test_a_store_whose_keys_are_not_as_narrow_as_they_say_is_found_out(cli: Cli) -> None:
    """Whether R2 holds listings to a key's prefixes is written nowhere."""
    with r2.running() as account:
        account.objects.habits = Habits(lists_anything=True)
        account.bucket("other")
        args = ("--store", "r2", "--endpoint", account.objects.endpoint, "--account", account.account)
        done = setup(cli, *args, "--bucket", "jobs", key="parent")
        assert "it opens other buckets too (other)" in done.stderr
        assert "a narrow key lists another job's objects" in done.stderr
        assert written(cli)["home_config"]["mint"] == "none"


@pytest.fixture
def volume() -> Any:
    """As RunPod's: no signed URLs, no bulk delete, no rules, and volumes are made elsewhere."""
    habits = Habits(bulk_delete=False, signed_urls=False, rules=False, makes_buckets=False)
    store = Objects(lambda key, token: Grant("user-secret", "vol-1"), habits)
    store.buckets["vol-1"] = {}
    with objects.serving(store):
        yield store


def test_a_store_that_cannot_be_a_home_is_refused_and_nothing_is_written(cli: Cli, volume: Objects) -> None:
    args = ("--store", "runpod", "--endpoint", volume.endpoint, "--region", "EU-RO-1")
    done = setup(cli, *args, "--bucket", "vol-2", key="user", code=1)
    assert "does not let this key into vol-2" in done.stderr
    done = setup(cli, *args, "--bucket", "vol-1", key="user", code=1)
    assert "– rule: unfinished uploads are not thrown away: NotImplemented" in done.stderr
    assert (
        "this store cannot be a home: machines read what they are told by a signed URL, and it answers 403"
        in done.stderr
    )
    assert not (cli.folder / "config.toml").exists()
    assert not volume.buckets["vol-1"], "nothing is left of the proof"
    volume.habits = Habits(bulk_delete=False, rules=False, makes_buckets=False)
    done = setup(cli, *args, "--bucket", "vol-1", key="user")
    assert "price: 100 GB for a month: $7.00" in done.stderr


def test_comments_and_other_keys_stay(cli: Cli, seaweedfs: SeaweedFS) -> None:
    file = cli.folder / "config.toml"
    file.write_text(COMMENTED)
    bucket = seaweedfs.new_home("").removeprefix("s3://")
    args = ("--store", seaweedfs.endpoint, "--region", "us-east-1")
    setup(cli, *args, "--bucket", bucket, key="minter")
    text = file.read_text()
    assert all(line in text.splitlines() for line in COMMENTED.splitlines())
    assert written(cli)["providers"]["vast"]["patience"] == 7.5
    setup(cli, *args, "--bucket", bucket, key="minter")
    assert file.read_text() == text, "the same again changes nothing"


def test_another_home_is_replaced_only_when_told_to(cli: Cli, seaweedfs: SeaweedFS) -> None:
    file = cli.folder / "config.toml"
    old = 'home = "s3://old/place"  # where it was\n\n[home_config]\nrole_arn = "arn:old"\nsecret_access_key = "old"\n'
    file.write_text(old)
    bucket = seaweedfs.new_home("").removeprefix("s3://")
    args = ("--store", seaweedfs.endpoint, "--region", "us-east-1")
    for more in ([], ["--bucket", bucket]):
        refused = setup(cli, *args, *more, code=2)
        assert "names a home already: s3://old/place" in refused.stderr
        assert "--replace" in refused.stderr
    assert file.read_text() == old
    setup(cli, *args, "--bucket", bucket, "--replace", key="minter")
    assert written(cli)["home"] == f"s3://{bucket}"
    assert "role_arn" not in written(cli)["home_config"]
    assert "# where it was" in file.read_text()


def test_a_home_that_jobs_still_use_is_not_replaced(cli: Cli) -> None:
    file = cli.folder / "config.toml"
    file.write_text('home = "s3://old/place"\n')
    store = open_store(cli.state)
    task = Task(run="x", spot="never").to_json()
    row = JobRow("train-abc123", "train", time.time(), "running", "s3://old/place", task)
    store.add_job(row)
    store.close()
    done = setup(cli, "--store", "http://127.0.0.1:9", "--bucket", "new", "--replace", code=2)
    assert "1 job still keeps its work in s3://old/place: train-abc123" in done.stderr
    assert file.read_text() == 'home = "s3://old/place"\n'
    store = open_store(cli.state)
    store.update_job("train-abc123", status="stopped", ended_at=time.time())
    store.close()


@pytest.mark.parametrize("wrong", ["key", "endpoint"])
def test_what_goes_wrong_leaves_the_configuration_alone(cli: Cli, seaweedfs: SeaweedFS, wrong: str) -> None:
    file = cli.folder / "config.toml"
    file.write_text(COMMENTED)
    endpoint = "http://127.0.0.1:9" if wrong == "endpoint" else seaweedfs.endpoint
    key = "nobody" if wrong == "key" else "admin"
    done = setup(cli, "--store", endpoint, "--bucket", fresh(), "--region", "us-east-1", key=key, code=1)
    assert ("did not answer" if wrong == "endpoint" else "check the key") in done.stderr
    assert file.read_text() == COMMENTED
    assert [path.name for path in cli.folder.iterdir() if "config" in path.name] == ["config.toml"]


def test_everything_is_asked_at_a_terminal(cli: Cli, seaweedfs: SeaweedFS) -> None:
    bucket = fresh()
    with Terminal(cli, "home", "setup") as terminal:
        terminal.until("Store [r2]: ")
        assert "Cloudflare R2" in terminal.shown
        terminal.type(f"{seaweedfs.endpoint}\n")
        terminal.until("Bucket [spotbroker-")
        terminal.type(f"{bucket}\n")
        terminal.until("Access key id: ")
        terminal.type("admin\n")
        terminal.until("(not shown): ")
        terminal.type("admin-secret\n")
        assert terminal.ended() == 0, terminal.shown
        assert "admin-secret" not in terminal.shown
    assert written(cli)["home"] == f"s3://{bucket}"


@pytest.mark.parametrize(
    ("args", "code", "what"),
    [
        (["--store", "gopher", "--bucket", "abc"], 78, "no store is called 'gopher'"),
        (["--store", "r2", "--bucket", "abc"], 2, "Cloudflare account id?"),
        (["--store", "b2", "--bucket", "abc"], 2, "Region?"),
        (["--store", "https://x", "--bucket", "A_B"], 78, "'A_B' cannot be a bucket's name"),
        (["--store", "https://x", "--bucket", "abc/a b"], 78, "cannot be a home's prefix"),
        (["--store", "https://x"], 2, "Bucket?"),
    ],
)
def test_what_is_missing_or_wrong_is_named(cli: Cli, args: list[str], code: int, what: str) -> None:
    done = setup(cli, *args, code=code)
    assert what in done.stderr
    assert "  try: " in done.stderr


def test_the_key_is_never_taken_from_the_command_line(cli: Cli) -> None:
    refused = cli("home", "setup", "--store", "https://x", "--bucket", "abc", code=2)
    assert "--key-stdin" in refused.stderr
    assert not (cli.folder / "config.toml").exists()
    assert Path(cli.folder).exists()


def test_a_job_runs_where_keys_name_one_prefix_each(cli: Cli) -> None:
    """Its machine's key minted by B2: beats are heard, snapshots kept, outputs pulled, secrets erased."""
    cli.task(steps=10)
    with b2.running() as account:
        text = f'[limits]\nstore_poll = 0.5\n[home_config]\napi_endpoint = "{account.url}"\n'
        (cli.folder / "config.toml").write_text(text)
        args = ("--endpoint", account.objects.endpoint, "--region", "x-1", "--bucket", "jobs/team")
        setup(cli, "--store", "b2", *args, key="app")
        cli("run", "counter", "-y")
        (job,) = cli.json("ps", "-a")
        assert (job["status"], job["home"], job["step"]) == ("succeeded", "s3://jobs/team", 10)
        cli("pull", job["id"], "--to", "out")
        assert (cli.folder / "out" / "outputs").is_dir()
        names = set(account.objects.buckets["jobs"]) | {name for name, _ in account.objects.versions["jobs"]}
        assert not [name for name in names if name.endswith("/boot")], "the object with the secrets is gone for good"
        assert not [name for name in names if "/beats/" in name], "its keys reach the job's own prefix only"
