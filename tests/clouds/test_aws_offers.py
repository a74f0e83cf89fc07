"""What `aws` finds on the market, and what it says of the regions that answer badly."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from clouds.aws import inputs
from clouds.aws.metadata import InstanceMetadata, on_loopback
from clouds.aws.server import Aws
from clouds.aws.state import Row, ZoneRow

from broker.errors import AuthFailed, InvalidRequest, ProviderError, ProviderUnavailable, QuotaExceeded, RateLimited
from broker.offer import Market, Offer, OfferQuery
from broker.policy.choose import Memory, Wish, choose
from broker.policy.hazard import advisor
from broker.provider import PartialOffers
from broker.testing.conformance import request_for
from broker_aws import AwsProvider

H100 = OfferQuery(gpu="H100", gpu_count=8)
L4 = OfferQuery(gpu="L4", gpu_count=1)
SPOT = replace(H100, markets=(Market.SPOT,))
EAST = ("aws/us-east-1",)
HISTORY = "data/api/aws/SHAPE_ONLY_spot_price_history_page{}.json"


@pytest.fixture
def provider(aws: Aws, tmp_path: Path) -> AwsProvider:
    return AwsProvider(aws.settings(), tmp_path)


@pytest.fixture
def known(aws: Aws, aws_state: Path) -> AwsProvider:
    """One that may have learnt before what the test leaves as it is."""
    return AwsProvider(aws.settings(), aws_state)


@pytest.fixture
def configured(aws: Aws, tmp_path: Path) -> Callable[..., AwsProvider]:
    """A provider with more settings."""
    return lambda **more: AwsProvider({**aws.settings(), **more}, tmp_path)


def partly(provider: AwsProvider, query: OfferQuery) -> tuple[list[Offer], dict[str, Exception]]:
    """What arrived and what failed."""
    with pytest.raises(PartialOffers) as caught:
        provider.offers(query)
    return caught.value.offers, caught.value.failures


def by_zone(offers: list[Offer]) -> dict[str, float]:
    return {offer.zone: offer.price for offer in offers if offer.market is Market.SPOT}


def test_the_newest_linux_price_of_each_zone_counts(aws: Aws, provider: AwsProvider) -> None:
    """Case 6: rows come newest first, pools mixed, other products among them, and a price may be old and in force."""
    aws.world.enabled = ["us-east-2"]
    rows = [*inputs.history(HISTORY.format(1)), *inputs.history(HISTORY.format(2))]
    newer = Row("us-east-2c", "p5.48xlarge", "23.9", max(row.at for row in rows) + 60, "Windows")
    aws.world.spot_rows["us-east-2"] = [*rows, newer]
    prices = {"us-east-2a": 11.2543, "us-east-2b": 11.5616, "us-east-2c": 11.9912}
    for loose in (False, True):
        for page in (1, 2, 1000):
            aws.world.page, aws.world.loose_history = page, loose
            assert by_zone(list(provider.offers(SPOT))) == prices, (page, loose)


def test_a_price_that_changed_long_ago_is_in_force(aws: Aws, provider: AwsProvider) -> None:
    aws.world.enabled = ["us-east-1"]
    old = time.time() - 80 * 86_400
    zones = aws.world.zone_rows("us-east-1")
    aws.world.spot_rows["us-east-1"] = [Row(zone.name, "p5.48xlarge", "9.5", old) for zone in zones]
    offers = list(provider.offers(SPOT))
    assert offers
    assert {offer.price for offer in offers} == {9.5}
    assert all(offer.extra["price_at"] == pytest.approx(old, abs=1) for offer in offers)


def test_h100_over_all_regions(aws: Aws, provider: AwsProvider) -> None:
    """Case 9: the cheapest zones by their ids; where spot costs what on-demand does, both are offered at that price."""
    inputs.load_prices(aws.world, "data/catalog/v8_aws_gpu_sample.csv")
    offers, failures = partly(provider, H100)
    spot = sorted((o for o in offers if o.market is Market.SPOT), key=lambda offer: offer.price)
    assert [(o.extra["zone_id"], o.price) for o in spot[:5]] == [
        ("use1-atl2-az1", 10.2397),
        ("use2-az1", 11.2543),
        ("use2-az2", 11.5616),
        ("use2-az3", 11.9912),
        ("usw2-az1", 12.6935),
    ]
    as_dear = {o.extra["zone_id"] for o in spot if o.price == o.extra["on_demand"]}
    assert as_dear == {
        "apne1-az1", "apse2-az1", "apse2-az2", "apse3-az1", "cac1-az4", "use1-az1", "use1-az4",
    }  # fmt: skip
    # Zones that sell the type and have no spot price are named, and sell it on demand.
    assert "no spot price now for p5.48xlarge in" in str(failures["aws/ap-northeast-2"])
    assert {o.market for o in offers if o.region == "ap-northeast-2"} == {Market.ON_DEMAND}
    atlanta = next(o for o in offers if o.extra["zone_id"] == "use1-atl2-az1" and o.market is Market.ON_DEMAND)
    assert atlanta.price == 55.04
    assert "needs a subnet" in atlanta.blocked, "shown, and never chosen without one"
    wish, now = Wish(queries=(H100,), spot="auto"), time.time()
    best = choose(offers, wish=wish, memory=Memory(), now=now).offer
    assert best is not None
    assert best.extra["zone_id"] == "use2-az1"
    tied = choose([o for o in offers if o.region == "ca-central-1"], wish=wish, memory=Memory(), now=now).offer
    assert tied is not None
    assert (tied.market, tied.price) == (Market.ON_DEMAND, 63.296), "the same price without the risk"


def test_a_local_zone_only_where_opted_in(
    aws: Aws, provider: AwsProvider, configured: Callable[..., AwsProvider]
) -> None:
    inputs.load_prices(aws.world, "data/catalog/v8_aws_gpu_sample.csv")
    rows = aws.world.zones["us-east-1"]
    aws.world.zones["us-east-1"] = [
        replace(zone, status="not-opted-in") if zone.kind == "local-zone" else zone for zone in rows
    ]
    offers, _ = partly(provider, SPOT)
    assert min(offer.price for offer in offers) == 11.2543
    assert all("atl" not in offer.zone for offer in offers)


def test_one_call_per_region_for_all_types(aws: Aws, provider: AwsProvider) -> None:
    aws.world.enabled = ["us-east-1", "us-west-2", "eu-west-1"]
    query = OfferQuery(gpu="24GB+", gpu_count=1)
    aws.world.calls.clear()
    assert _some(provider, query)
    asked = aws.world.sent("DescribeSpotPriceHistory")
    assert len(asked) == 3
    types = {value for key, value in asked[0].items() if key.startswith("InstanceType.")}
    assert len(types) > 5
    products = {v for k, v in asked[0].items() if k.startswith("ProductDescription.")}
    assert products == {"Linux/UNIX", "Linux/UNIX (Amazon VPC)"}
    aws.world.calls.clear()
    assert _some(provider, query)
    assert dict(aws.world.counted()) == {"ec2:DescribeSpotPriceHistory": 3}, "what does not change is kept on disk"


def test_cards_and_shares_of_cards(known: AwsProvider) -> None:
    some = {o.instance_type: o for o in known.offers(replace(L4, infra=EAST))}
    assert {"g6.xlarge", "gr6.4xlarge"} <= some.keys()
    assert not {name for name in some if name.startswith(("g6f", "gr6f"))}, "a share of a card is not the card"
    assert some["g6.xlarge"].gpu_memory == 24
    for wish, count, kind, name, memory in (
        ("H100", 8, "p5.48xlarge", "H100-SXM", 80),
        ("A100", 8, "p4d.24xlarge", "A100-SXM", 40),
        ("A100-80GB", 8, "p4de.24xlarge", "A100-80GB-SXM", 80),
        ("L40S", 4, "g6e.12xlarge", "L40S", 48),
    ):
        offers = [o for o in _some(known, OfferQuery(gpu=wish, gpu_count=count, infra=EAST)) if o.instance_type == kind]
        assert {(o.gpu, o.gpu_count, o.gpu_memory) for o in offers} == {(name, count, memory)}, wish


def test_an_arm_machine_only_for_its_own_card(known: AwsProvider) -> None:
    assert {o.instance_type.split(".")[0] for o in _some(known, OfferQuery(gpu="16GB+", gpu_count=1, infra=EAST))} >= {
        "g4dn"
    }
    assert not [
        o for o in _some(known, OfferQuery(gpu="16GB+", gpu_count=1, infra=EAST)) if o.instance_type.startswith("g5g")
    ]
    arm = [o for o in _some(known, OfferQuery(gpu="T4g", gpu_count=1, infra=EAST)) if o.instance_type == "g5g.xlarge"]
    assert arm
    assert {o.extra["ami"][7] for o in arm} == {"b"}, "its image is arm64's"


def test_machines_without_a_card(known: AwsProvider) -> None:
    offers = _some(known, OfferQuery(cpus=3, memory=15, infra=EAST))
    assert offers
    assert min(o.cpus for o in offers) == 4
    assert all(o.gpu is None and o.memory >= 15 for o in offers)
    assert not [o for o in offers if o.instance_type.startswith(("g", "p"))]
    named = _some(known, OfferQuery(cpus=1, infra=("aws/us-east-1/*/c5.9xlarge",)))
    assert {o.instance_type for o in named} == {"c5.9xlarge"}


def test_the_disk_is_priced_and_as_large_as_the_image_needs(known: AwsProvider) -> None:
    (small, *_), (large, *_) = (known.offers(replace(L4, disk=disk, infra=EAST)) for disk in (20.0, 100.0))
    assert small.disk_price == pytest.approx(20 * 0.08 / 730)
    assert large.disk_price == pytest.approx(100 * 0.08 / 730)
    (tiny, *_) = known.offers(replace(L4, disk=2.0, infra=EAST))
    assert tiny.disk == 8
    assert tiny.disk_price == pytest.approx(8 * 0.08 / 730)
    assert (tiny.address_price, tiny.hourly) == (0.005, pytest.approx(tiny.price + tiny.disk_price + 0.005))


def test_interruption_bands(aws: Aws, provider: AwsProvider) -> None:
    aws.world.enabled = ["us-east-1", "us-west-2"]
    aws.world.advisor = inputs.data("data/api/aws/SHAPE_ONLY_spot_advisor.json")
    offers = {(o.region, o.instance_type): o for o in provider.offers(replace(L4, markets=(Market.SPOT,)))}
    assert offers["us-east-1", "g6.xlarge"].interruption == advisor(2)
    assert offers["us-west-2", "g6.xlarge"].interruption == advisor(4)
    assert offers["us-east-1", "g6.2xlarge"].interruption is None, "not named is unknown, not safe"
    assert all(o.interruption is None for o in provider.offers(replace(L4, markets=(Market.ON_DEMAND,))))


def test_an_entry_of_the_advisor_that_is_torn_is_left_out_alone(aws: Aws, provider: AwsProvider) -> None:
    torn = {"g6.2xlarge": {}, "g6.4xlarge": {"r": "1"}, "g6.8xlarge": {"r": 9}, "g6.xlarge": {"r": 2, "s": 46}}
    aws.world.advisor = {"spot_advisor": {"us-east-1": {"Linux": torn}, "us-west-2": {}}}
    wish = replace(L4, markets=(Market.SPOT,), infra=EAST)
    bands = {offer.instance_type: offer.extra.get("band") for offer in provider.offers(wish)}
    assert bands["g6.xlarge"] == 2
    assert {bands[name] for name in ("g6.2xlarge", "g6.4xlarge", "g6.8xlarge")} == {None}


def test_without_the_advisor_offers_stand(aws: Aws, configured: Callable[..., AwsProvider]) -> None:
    assert configured(advisor_url=f"{aws.endpoint}/nothing-here").offers(L4)
    assert configured(advisor_url="").offers(L4)


def test_placement_scores_where_they_are_wanted(aws: Aws, configured: Callable[..., AwsProvider]) -> None:
    aws.world.enabled = ["us-east-1"]
    aws.world.scores = {"use1-az6": 9, "use1-az1": 3}
    spot = [o for o in configured(placement_scores=True).offers(L4) if o.market is Market.SPOT]
    assert {o.extra.get("placement_score") for o in spot if o.extra["zone_id"] == "use1-az6"} == {9}
    aws.world.calls.clear()
    configured().offers(L4)
    assert not aws.world.sent("GetSpotPlacementScores")


def test_a_region_that_is_not_enabled(aws: Aws, provider: AwsProvider) -> None:
    offers, failures = partly(provider, replace(L4, infra=("aws/us-west-2", "aws/me-south-1", "aws/moon-1")))
    assert {o.region for o in offers} == {"us-west-2"}
    assert isinstance(failures["aws/me-south-1"], QuotaExceeded)
    assert "enable-region" in failures["aws/me-south-1"].fix
    assert "no region moon-1" in str(failures["aws/moon-1"])


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("UnauthorizedOperation", 403, AuthFailed),
        ("RequestExpired", 400, AuthFailed),
        ("Unavailable", 503, ProviderUnavailable),
        ("RequestLimitExceeded", 503, RateLimited),
        ("SomethingNew2027", 400, ProviderError),
    ],
)
def test_one_region_fails_and_the_rest_is_used(
    aws: Aws, known: AwsProvider, code: str, status: int, kind: type[Exception]
) -> None:
    aws.world.fail("DescribeSpotPriceHistory", code, status, region="us-west-2")
    offers, failures = partly(known, L4)
    assert {o.region for o in offers if o.market is Market.SPOT} == {"us-east-1"}
    assert {o.region for o in offers} == {"us-east-1", "us-west-2"}, "on-demand prices are not the region's to say"
    assert type(failures["aws/us-west-2"]) is kind
    assert code in str(failures["aws/us-west-2"])


def test_a_key_that_expired_everywhere_is_one_error(aws: Aws, provider: AwsProvider) -> None:
    aws.world.fail("*", "RequestExpired", times=1000)
    with pytest.raises(AuthFailed, match="RequestExpired") as caught:
        provider.offers(L4)
    assert "log in again" in caught.value.fix


def test_a_zone_without_a_price(aws: Aws, provider: AwsProvider) -> None:
    aws.world.enabled = ["us-west-2"]
    aws.world.no_spot = {("us-west-2b", "g6.xlarge")}
    offers, failures = partly(provider, L4)
    assert "us-west-2b" not in {o.zone for o in offers if o.instance_type == "g6.xlarge" and o.market is Market.SPOT}
    assert str(failures["aws/us-west-2"]) == "no spot price now for g6.xlarge in us-west-2b"


@pytest.mark.parametrize("price", ["0", "0.000000", "", "n/a", "-1", "NaN", "inf"])
def test_a_price_that_is_none(aws: Aws, provider: AwsProvider, price: str) -> None:
    aws.world.enabled = ["us-west-2"]
    zones = [zone.name for zone in aws.world.zone_rows("us-west-2")]
    aws.world.offered["us-west-2", "p5.48xlarge"] = zones
    rows = [Row(zone, "p5.48xlarge", "12.5", 1_700_000_000.0) for zone in zones[1:]]
    aws.world.spot_rows["us-west-2"] = [*rows, Row(zones[0], "p5.48xlarge", price, 1_700_000_000.0)]
    offers, failures = partly(provider, SPOT)
    assert {o.zone for o in offers} == set(zones[1:])
    assert zones[0] in str(failures["aws/us-west-2"])


def test_an_empty_page_with_a_token_is_not_the_last(aws: Aws, known: AwsProvider) -> None:
    aws.world.empty_page_first = True
    assert known.offers(L4)


def test_a_token_that_comes_back(aws: Aws, provider: AwsProvider) -> None:
    aws.world.enabled = ["us-west-2"]
    aws.world.repeat_token, aws.world.page = True, 3
    offers, failures = partly(provider, L4)
    assert by_zone(offers), "what came before is used"
    assert "again and again" in str(failures["aws/us-west-2"])
    assert len(aws.world.sent("DescribeSpotPriceHistory")) < 5


def test_no_price_list_is_named_once(aws: Aws, provider: AwsProvider) -> None:
    aws.world.fail("GetProducts", "AccessDeniedException", times=1000)
    offers, failures = partly(provider, L4)
    assert {o.market for o in offers} == {Market.SPOT}
    assert list(failures) == ["aws/price list"]
    assert all(o.disk_price > 0 for o in offers)


def test_no_image_parameters_is_named_and_prices_stand(aws: Aws, provider: AwsProvider) -> None:
    aws.world.fail("GetParameters", "AccessDeniedException", times=1000)
    offers, failures = partly(provider, L4)
    assert offers
    assert sorted(failures) == ["aws/us-east-1/image", "aws/us-west-2/image"]


def test_a_type_that_no_image_of_ours_boots_is_left_out(aws: Aws, provider: AwsProvider) -> None:
    """V100s need the proprietary driver's image; a region without that one has the others all the same."""
    wish = OfferQuery(gpu="V100-32GB", gpu_count=8, infra=EAST)
    (offer, *_) = _some(provider, wish)
    assert offer.extra["ami"][7] == "c"
    aws.world.no_images = {"proprietary"}
    (provider.state / provider.account.owner() / "images-us-east-1-gpu.json").unlink()
    assert not _some(provider, wish)
    assert _some(provider, replace(L4, infra=EAST))


def test_an_own_image_is_used_where_it_is(aws: Aws, provider: AwsProvider) -> None:
    own = next(iter(aws.world.amis["us-west-2"]))
    offers = provider.offers(replace(L4, image=own))
    assert {o.region for o in offers} == {"us-west-2"}
    assert {o.extra["ami"] for o in offers} == {own}
    none, failures = partly(provider, replace(L4, image="ami-0deadbeef0000000"))
    assert not none
    assert isinstance(failures["aws"], InvalidRequest)
    assert "ami-0deadbeef0000000" in str(failures["aws"])


def test_named_subnets_say_the_zones_and_whether_an_address_is_paid(
    aws: Aws, configured: Callable[..., AwsProvider]
) -> None:
    import boto3

    client = boto3.client("ec2", region_name="us-west-2")
    public, private, *_ = client.describe_subnets()["Subnets"]
    client.modify_subnet_attribute(SubnetId=private["SubnetId"], MapPublicIpOnLaunch={"Value": False})
    provider = configured(subnets={"us-west-2": [public["SubnetId"], private["SubnetId"]]})
    offers = provider.offers(replace(L4, infra=("aws/us-west-2",)))
    assert {(o.zone, o.extra["subnet"], o.address_price) for o in offers} == {
        (public["AvailabilityZone"], public["SubnetId"], 0.005),
        (private["AvailabilityZone"], private["SubnetId"], 0.0),
    }
    for offer in {o.zone: o for o in offers}.values():
        instance = provider.launch(request_for(offer))
        assert aws.world.charges[instance.id].hourly == pytest.approx(offer.hourly) == instance.hourly


def test_only_the_regions_of_the_settings(configured: Callable[..., AwsProvider]) -> None:
    assert {o.region for o in configured(regions=["us-west-2"]).offers(L4)} == {"us-west-2"}


def test_wavelength_zones_are_left_out(aws: Aws, provider: AwsProvider) -> None:
    aws.world.enabled = ["us-west-2"]
    aws.world.zone_rows("us-west-2").append(ZoneRow("us-west-2-wl1-x", "usw2-wl1", "wavelength-zone", "wl", "opted-in"))
    aws.world.offered["us-west-2", "g6.xlarge"] = ["us-west-2a", "us-west-2-wl1-x"]
    assert {o.zone for o in _some(provider, L4) if o.instance_type == "g6.xlarge"} == {"us-west-2a"}


def test_without_credentials_nothing_hangs(aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a computer that is not EC2's the metadata service is not asked, and neither is anything else."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name)
    service = InstanceMetadata("i-1")
    begin = time.monotonic()
    with on_loopback(service) as url:
        (tmp_path / "config").write_text(f"[default]\nec2_metadata_service_endpoint = {url}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        for call in (lambda p: p.offers(L4), lambda p: p.instances()):
            with pytest.raises(AuthFailed, match="no AWS credentials") as caught:
                call(AwsProvider({}, tmp_path))
            assert caught.value.code == "no key"
    assert time.monotonic() - begin < 10
    assert not service.asked
    assert not aws.world.calls


@pytest.mark.parametrize("where", ["", "AWS_ROLE_ARN", "AWS_CONFIG_FILE", "HOME"])
def test_whoever_has_no_account_need_not_wait_for_its_sdk(tmp_path: Path, where: str) -> None:
    """Importing it takes longer than all else of a short verb. In doubt it is asked."""
    source = """import sys, broker_aws.account as account, broker.errors as errors
try: account.Account().session
except errors.AuthFailed as error: print(error.code, "botocore" in sys.modules)"""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[default]\nregion = us-west-2\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-1"}
    if where != "HOME":
        env["AWS_CONFIG_FILE"] = str(tmp_path / ".aws/config") if where == "AWS_CONFIG_FILE" else os.devnull
    if where == "AWS_ROLE_ARN":
        env["AWS_ROLE_ARN"] = "arn"
    said = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True, check=True).stdout
    assert said == f"no key {where != ''}\n"


def test_on_ec2_the_machines_own_role_counts(aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name)
    service = InstanceMetadata("i-1")
    keys = {"AccessKeyId": "ASIAROLE", "SecretAccessKey": "secret", "Token": "", "Expiration": "2099-01-01T00:00:00Z"}
    service.grant("broker", lambda: keys)
    with on_loopback(service) as url:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
        assert AwsProvider(aws.settings(), tmp_path).offers(L4)


def _some(provider: AwsProvider, query: OfferQuery) -> list[Offer]:
    try:
        return list(provider.offers(query))
    except PartialOffers as partial:
        return partial.offers
