"""`AwsProvider`: the provider contract over EC2."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from broker.errors import AuthFailed, InvalidRequest, NotFound, ProviderError
from broker.offer import Offer, OfferQuery
from broker.provider import TAG_GENERATION, TAG_JOB, Finding, Instance, Kind, LaunchRequest, Notice, Shell, Traits
from broker_aws import checking, fleet, launching, listing, profiles, settings
from broker_aws.account import Account
from broker_aws.kept import Kept
from broker_aws.launching import ENDED, USER_DATA
from broker_aws.offers import NOTICE, Catalogue
from broker_aws.refusals import DENIED, NAME, translated
from broker_aws.shell import shell

LAUNCHED = "launched-in-"


class AwsProvider:
    """EC2, spot and on demand. Nothing is remembered in memory but the SDK's clients."""

    name = NAME
    # EC2's consistency is eventual: seconds as a rule. A machine that no list has shown yet and that has not been heard
    # of is waited for by the core much longer, as reports go up to two minutes.
    traits = Traits(
        token=True,
        list_lag=30.0,
        poll=10.0,
        boot_limit=900.0,
        notice=NOTICE,
        kind=Kind.VM,
        user_data_limit=USER_DATA,
    )

    def __init__(self, config: Mapping[str, Any], state: Path) -> None:
        """config: `[providers.aws]`; state: the installation's folder. Raises ConfigError that names the key."""
        self.settings = settings.read(config)
        self.state = state / NAME
        self.account = Account(self.settings.profile)

    @cached_property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.account, Kept(self.state / self.account.owner()), self.settings)

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """As `Provider.offers`: one zone, one type, one market each. What fails is named, the rest used."""
        return self.catalogue.offers(query)

    def launch(self, request: LaunchRequest) -> Instance:
        """One RunInstances, sent once. The token makes its repetition safe, also after the machine's end.

        Raises InvalidRequest where the token was used for another request.
        """
        offer = request.offer
        image = launching.image_of(request, self.catalogue.images)
        wish = launching.run_instances(request, image, self.settings)
        self._note(offer.region)
        client = self.account.client("ec2", offer.region)

        def run() -> Any:
            with translated(creating=True, offer=offer):
                return client.run_instances(**wish)

        try:
            answer = profiles.with_fresh(self.account, request.identity, run) if request.identity else run()
        except InvalidRequest as error:
            if error.code.startswith("Idempotent"):
                return self._known(request, error)
            if error.code.startswith("InvalidAMIID") and image.id == offer.extra.get("ami") != request.image:
                # Ours was replaced since the offer was made: that is no fault of the task's.
                raise ProviderError(error.message, provider=NAME, code=error.code) from error
            raise
        (raw,) = answer["Instances"]
        # What the answer leaves out of the tags, the request had.
        told = {tag["Key"]: tag["Value"] for tag in wish["TagSpecifications"][0]["Tags"]}
        told |= {tag["Key"]: tag["Value"] for tag in raw.get("Tags") or ()}
        return listing.read({**raw, "Tags": [{"Key": k, "Value": v} for k, v in told.items()]}, offer.region)

    def launch_any(self, request: LaunchRequest, offers: Sequence[Offer]) -> Instance:
        """As `LaunchesAny.launch_any`, by one CreateFleet of type instant. The token makes its repetition safe."""
        self._note(request.offer.region)
        try:
            return fleet.launch_any(self.account, self.catalogue.images, self.settings, request, offers)
        except AuthFailed as error:
            if error.code not in DENIED:
                raise
            # Whoever may not make a fleet may rent the best of the offers all the same; nothing was made so far.
            return self.launch(request)
        except InvalidRequest as error:
            if not error.code.startswith("Idempotent"):
                raise
            return self._known(request, error)

    def instances(self) -> Sequence[Instance]:
        """Every enabled region, side by side.

        A region that refuses the credentials is left out where nothing was ever launched from this installation, as
        organisations bar regions; any other failure is raised.
        """
        zones = self.catalogue.zones
        # A region where something was launched is asked also when a list of regions leaves it out.
        regions = {*zones.enabled(), *(self._launched_in() - zones.all_regions().keys())}
        answers, failures = self.account.each(sorted(regions), lambda region: listing.listed(self.account, region))
        for region, error in failures.items():
            if not isinstance(error, AuthFailed) or not answers or self._noted(region):
                raise error
        return [instance for region in sorted(answers) for instance in answers[region]]

    def terminate(self, instance: Instance) -> None:
        """Mark the machine as ended by us, which EC2 could not tell from its user, and terminate it with its disk."""
        client = self.account.client("ec2", instance.region or self.account.home_region)
        with contextlib.suppress(ProviderError), translated(region=instance.region):
            client.create_tags(Resources=[instance.id], Tags=[{"Key": ENDED, "Value": "broker"}])
        try:
            with translated(region=instance.region):
                client.terminate_instances(InstanceIds=[instance.id])
        except NotFound:
            return
        except InvalidRequest as error:
            if error.code != "InvalidInstanceID.Malformed":
                raise

    def notice(self, instance: Instance) -> Notice | None:
        """The status of the machine's spot request."""
        with translated(region=instance.region):
            client = self.account.client("ec2", instance.region or self.account.home_region)
            found = listing.noticed(client, [{"Name": "instance-id", "Values": [instance.id]}])
        return found.get(instance.id)

    def shell(self, instance: Instance) -> Shell:
        """As `Reachable.shell`: Session Manager, where the machine has an instance profile."""
        return shell(self.account, instance)

    def check(self) -> Sequence[Finding]:
        """Identity, clock, regions, rights, quotas, prices and networks, without renting anything."""
        return checking.check(self.account, self.catalogue, self.settings)

    def identify(self, name: str, policy: Mapping[str, Any], *, make: bool) -> Sequence[Finding]:
        """As `GivesIdentity.identify`: an instance profile with a role of its own."""
        return [profiles.identify(self.account, name, policy, make=make)]

    def _known(self, request: LaunchRequest, error: InvalidRequest) -> Instance:
        """The machine that this token belongs to, where it is of the same request; else what EC2 said stands."""
        region = request.offer.region
        wanted = {
            f"tag:{TAG_JOB}": request.job,
            f"tag:{TAG_GENERATION}": str(request.generation),
            f"tag:{launching.REQUEST}": launching.fingerprint(request),
        }
        filters = [{"Name": name, "Values": [value]} for name, value in wanted.items()]
        with translated(creating=True, region=region):  # something was made under the token
            answer = self.account.client("ec2", region).describe_instances(Filters=filters)
        for reservation in answer["Reservations"]:
            for raw in reservation["Instances"]:
                return listing.read(raw, region)
        raise error

    def _note(self, region: str) -> None:
        """Before anything is launched in a region: from now on its silence counts."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.state / f"{LAUNCHED}{region}").touch()

    def _noted(self, region: str) -> bool:
        return (self.state / f"{LAUNCHED}{region}").exists()

    def _launched_in(self) -> set[str]:
        return {path.name.removeprefix(LAUNCHED) for path in self.state.glob(f"{LAUNCHED}*")}
