"""`LambdaProvider`: the provider contract over Lambda Cloud's API."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker import images, keys
from broker.accounts import Accounts
from broker.errors import AuthFailed, BrokerError, ConfigError, InvalidRequest, NotFound, ProviderError
from broker.offer import Market, Offer, OfferQuery
from broker.provider import Finding, Instance, Kind, LaunchRequest, Notice, Shell, State, Traits
from broker_lambda import machines
from broker_lambda import settings as settings_of
from broker_lambda.api import HOW_TO_KEY, NAME, Api

VARIABLE = "LAMBDA_API_KEY"
SSH_KEY = "spotbroker"  # the account's key whose private half was thrown away
USER_DATA_LIMIT = 1_000_000  # "cannot exceed 1MB": POST /instance-operations/launch, user_data
ENDING = ("terminating", "terminated")


class LambdaProvider:
    """Virtual machines on demand, billed by the minute until the API is told to terminate them."""

    name = NAME
    traits = Traits(
        token=False,
        list_lag=30.0,
        poll=10.0,
        boot_limit=1800.0,
        notice=None,
        outside_limit="",  # nothing ends a machine but the broker
        kind=Kind.VM,
        user_data_limit=USER_DATA_LIMIT,
    )
    how_to_key = HOW_TO_KEY

    def __init__(self, settings: Mapping[str, Any], state: Path) -> None:
        """settings: `[providers.lambda]`; state: the installation's folder. Raises ConfigError that names the key."""
        self.settings = settings_of.read(settings)
        self.key = keys.find(NAME, settings, state, variable=VARIABLE)
        self.api = Api(self.settings.api, self.key, state, pace=self.settings.pace)
        self.accounts = Accounts(state / NAME, self.key, self._owner)

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """Every type in every region that has it now. The list is live, and yet now and then a launch is refused."""
        if Market.ON_DEMAND not in query.markets or images.fits(Kind.VM, query.image):
            return []
        if self.key is None and not query.gpu:
            return []  # without a key nobody waits for its few machines without cards
        return list(machines.offers(self.api.types(), query, time.time()))

    def launch(self, request: LaunchRequest) -> Instance:
        """Launch the machine, its tags with it. No token: the same request again is another machine.

        At most one launch in 12 seconds: a call may wait for its turn.
        """
        offer = request.offer
        if offer.provider != NAME or offer.market is not Market.ON_DEMAND:
            raise InvalidRequest(f"Lambda rents out no {offer.market} machine", provider=NAME, code="market")
        if len(request.user_data.encode()) > USER_DATA_LIMIT:
            raise InvalidRequest(f"user data is longer than {USER_DATA_LIMIT} bytes", provider=NAME, code="user_data")
        body: dict[str, Any] = {
            "region_name": offer.region,
            "instance_type_name": offer.instance_type,
            "ssh_key_names": [self._ssh_key()],
            "name": machines.name_of(request),
            "user_data": request.user_data,
            "tags": machines.tags_of(request),
        }
        if request.image:
            body["image"] = {"id": request.image} if _is_id(request.image) else {"family": request.image}
        made = Instance(
            provider=NAME,
            id=self.api.launch(body),
            state=State.PENDING,
            market=Market.ON_DEMAND,
            hourly=offer.price,
            tags={tag["key"]: tag["value"] for tag in body["tags"]},
            region=offer.region,
            instance_type=offer.instance_type,
            launched_at=time.time(),
        )
        return self.accounts.rented(made)

    def instances(self) -> Sequence[Instance]:
        """Every machine with our tags, in one call; the API has no pages."""
        return self.accounts.listed(machines.instances(self.api.instances()))

    def terminate(self, instance: Instance) -> None:
        """End the machine. An unknown id is success, and so is one that is ending: a second order may be an error."""
        self.accounts.reach(instance)
        self._end(instance)
        self.accounts.ended(instance)

    def _end(self, instance: Instance) -> None:
        try:
            self.api.post("/instance-operations/terminate", {"instance_ids": [instance.id]})
        except NotFound:
            return
        except AuthFailed:
            raise
        except (InvalidRequest, ProviderError) as error:
            if type(error) not in (InvalidRequest, ProviderError) or not self._is_ending(instance.id):
                raise

    def notice(self, instance: Instance) -> Notice | None:
        """Lambda takes no machine back with notice."""
        del instance
        return None

    def shell(self, instance: Instance) -> Shell:
        """SSH as Lambda opens it on every machine, with the key that the machine was launched with."""
        found = self.api.get(f"/instances/{instance.id}")
        names = [str(name) for name in found.get("ssh_key_names") or ()]
        if found.get("status") in ENDING:
            raise NotFound(f"{instance.id} is {found['status']}", provider=NAME)
        if SSH_KEY in names:
            raise ConfigError(
                f"nobody has the private half of the SSH key {SSH_KEY!r}, which this machine was launched with",
                fix="set ssh_key in [providers.lambda] to the name of a key of your account, for machines from then on",
            )
        if not found.get("ip"):
            raise NotFound(f"{instance.id} has no address yet: {found.get('status')}", provider=NAME)
        # Addresses are given to one machine after another, each with a host key of its own.
        argv = ("ssh", "-o", f"HostKeyAlias=lambda-{instance.id}", f"ubuntu@{found['ip']}")
        return Shell(argv, become=("sudo",), needs=f"the private half of your account's SSH key {', '.join(names)}")

    def check(self) -> Sequence[Finding]:
        """The key, the list of machines, the SSH key that machines would take, and what no setting can mend."""
        if self.key is None:
            return [Finding("key", ok=False, found="there is none", fix=HOW_TO_KEY)]
        found = [Finding("key", ok=True, found=f"from {self.key.source}")]
        found.append(self._finding("instances", lambda: f"{len(self.api.instances())} listed"))
        found.append(self._finding("ssh key", self._told_ssh_key))
        nothing = "nothing ends a machine but a live broker: keep one running (`broker up`)"
        return [*found, Finding("end of machines", ok=True, found=nothing), *self.accounts.findings()]

    def _ssh_key(self) -> str:
        """Exactly one must be named. Ours is made at first need; nobody keeps its private half, so nobody logs in."""
        if self.settings.ssh_key:
            return self.settings.ssh_key
        if SSH_KEY not in self.api.ssh_keys():
            try:
                self.api.post("/ssh-keys", {"name": SSH_KEY, "public_key": _public_key()})
            except InvalidRequest as error:
                if "duplicate" not in error.code:
                    raise
        return SSH_KEY

    def _owner(self) -> str:
        """Lambda's API names no account; its SSH keys have ids of their own."""
        return self.api.ssh_key_id(self.settings.ssh_key or SSH_KEY)

    def _is_ending(self, instance_id: str) -> bool:
        try:
            return self.api.get(f"/instances/{instance_id}")["status"] in ENDING
        except NotFound:
            return True

    def _finding(self, what: str, look: Any) -> Finding:
        try:
            return Finding(what, ok=True, found=str(look()))
        except BrokerError as error:
            return Finding(what, ok=False, found=error.message, fix=error.fix)

    def _told_ssh_key(self) -> str:
        names = self.api.ssh_keys()
        wanted = self.settings.ssh_key or SSH_KEY
        if wanted not in names and self.settings.ssh_key:
            raise InvalidRequest(
                f"the account has no SSH key named {wanted!r}", provider=NAME, fix=f"has: {', '.join(names) or 'none'}"
            )
        return wanted if wanted in names else f"{wanted}, made at the first launch"


def _is_id(image: str) -> bool:
    """Image ids are UUIDs, families are words such as `lambda-stack-24-04`."""
    return len(image) == 36 and image.count("-") == 4


def _public_key() -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = Ed25519PrivateKey.generate().public_key()
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
