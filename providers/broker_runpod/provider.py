"""`RunPodProvider`: the provider contract over RunPod's two APIs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker import images, keys
from broker.accounts import Accounts
from broker.errors import (
    AuthFailed,
    BrokerError,
    ConfigError,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
)
from broker.offer import Market, Offer, OfferQuery
from broker.provider import Finding, Instance, Kind, LaunchRequest, Notice, OfferList, PartialOffers, Shell, Traits
from broker.rest import number
from broker_runpod import catalog, pods
from broker_runpod import settings as settings_of
from broker_runpod.api import ACCOUNT, PRICES, RENT_SPOT, TERMINATE, Api
from broker_runpod.refusals import HOW_TO_KEY, NAME, Withdrawn

VARIABLE = "RUNPOD_API_KEY"
NO_KEY = f"no key yet: {HOW_TO_KEY}"
SPOT_AGAIN = 86_400.0  # seconds until the spot API is tried again, and its absence told again
CENTS = 1e-4  # RunPod shows bids to a hundredth of a cent
UNSURE = ("terminateAfter", "minCudaVersion")
LATE = (
    900.0  # seconds after the latest `end_by` at which RunPod itself ends a spot pod, where it takes our time for that
)
SPOT_GONE = "spot-withdrawn"
PROXY = "RunPod's proxy knows the SSH keys that your account had when the pod was made; some images need an sshd"


class RunPodProvider:
    """Pods. In the state folder: which account rented what, and when the spot API was found gone."""

    name = NAME
    # A created pod is in both lists at once as far as anybody has reported; the lag leaves room for a slow replica.
    traits = Traits(
        token=False,
        list_lag=30.0,
        poll=10.0,
        boot_limit=1200.0,  # the pull of a 10 GB image included
        notice=catalog.NOTICE,
        kind=Kind.CONTAINER,
        user_data_limit=16_384,
    )
    how_to_key = HOW_TO_KEY

    def __init__(self, settings: Mapping[str, Any], state: Path) -> None:
        """settings: `[providers.runpod]`; state: the installation's folder. Raises ConfigError that names the key."""
        self.settings = settings_of.read(settings)
        self.key = keys.find(NAME, settings, state, variable=VARIABLE)
        self.api = Api(self.settings.api, self.key, state)
        self.accounts = Accounts(state / NAME, self.key, lambda: str(self.api.myself(ACCOUNT).get("id") or ""))
        self._spot_gone = state / NAME / SPOT_GONE

    # The contract

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """Both clouds, both markets, for queries with a GPU. Without a key the same prices, blocked.

        Without a key prices that do not come are not waited for: then the key is what is missing.
        """
        if not query.gpu or not query.gpu_count or images.fits(Kind.CONTAINER, query.image):
            return []
        if self.key is None:
            return self._offers_without_key(query)
        failures: dict[str, Exception] = {}
        mount = self._mount()
        centres = {} if mount else self._centres(query, failures)
        try:
            cards = self._cards(query)
        except Withdrawn:
            cards = list(catalog.sold_by_rest(self._catalog(query, None)))
        found = self._wanted(catalog.offers(cards, self._shape(query, mount=mount, centres=centres)))
        if failures:
            raise PartialOffers(found, failures)
        return found

    def launch(self, request: LaunchRequest) -> Instance:
        """Create the pod: by GraphQL with a bid per card on the spot market, by REST v2 on demand.

        There is no token, and names need not be unique: the same request again is another pod.
        """
        kind = catalog.TYPE.fullmatch(request.offer.instance_type)
        if request.offer.provider != NAME or kind is None:
            raise InvalidRequest(
                f"there is no type {request.offer.instance_type!r}", provider=NAME, code="instance type"
            )
        name, env = pods.name_of(request), pods.env_of(request, self._foreign_api())
        if request.offer.market is Market.SPOT:
            made = self._rent_spot(request, name, env, kind)
            mine = pods.merged((), [{"name": name, "desiredStatus": "CREATED", **made, "env": env}])
        else:
            made = self._create(request, name, env, kind)
            mine = pods.merged([{"status": "PROVISIONING", "name": name, **made, "env": env}], ())
        return self.accounts.rented(mine[0])

    def instances(self) -> Sequence[Instance]:
        """Every pod of ours that either API lists. Terminated pods are listed no more, save outbid ones for a while."""
        listed = self.api.pods()
        try:
            told = self.api.told()
        except Withdrawn:
            told = []  # early in 2027: then nobody says why a pod has stopped
        return self.accounts.listed(pods.merged(listed, told))

    def terminate(self, instance: Instance) -> None:
        """Delete the pod, its disk with it; a network volume stays. An unknown pod is success.

        What REST does not know GraphQL may: only where both know nothing of it is it gone. A key may have the right
        to it in one of the two only.
        """
        self.accounts.reach(instance)
        self._end(instance)
        self.accounts.ended(instance)

    def _end(self, instance: Instance) -> None:
        try:
            self.api.rest("DELETE", f"/pods/{instance.id}")
        except (NotFound, AuthFailed) as refused:
            try:
                self.api.graph(TERMINATE, {"input": {"podId": instance.id}})
            except (NotFound, AuthFailed, Withdrawn):
                if isinstance(refused, AuthFailed):
                    raise refused from None

    def notice(self, instance: Instance) -> Notice | None:
        """RunPod's control plane gives none; the pod gets SIGTERM, 5 seconds before it goes."""
        del instance
        return None

    # Reachable, Prepaid and Checks

    def shell(self, instance: Instance) -> Shell:
        """RunPod's SSH proxy, which needs no open port. It carries a terminal only (RunPod, PodSsh.proxy)."""
        proxy = (self.api.rest("GET", f"/pods/{instance.id}").get("ssh") or {}).get("proxy")
        if not proxy:
            raise NotFound(f"pod {instance.id} has no machine yet", provider=NAME)
        argv = ("ssh", "-p", str(proxy.get("port") or 22), f"{proxy['username']}@{proxy['host']}")
        return Shell(argv, commands=False, needs=PROXY)

    def balance(self) -> float:
        """USD left. At zero RunPod terminates every pod without a network volume (RunPod: billing)."""
        found = number(self.api.myself(ACCOUNT).get("clientBalance"))
        if found is None:
            raise ProviderError("RunPod did not tell the balance", provider=NAME, code="no clientBalance")
        return found

    def check(self) -> Sequence[Finding]:
        """The key in both APIs, the volume, and whether spot pods are rented out still."""
        if self.key is None:
            return [Finding("key", ok=False, found="there is none", fix=HOW_TO_KEY)]
        found = [Finding("key", ok=True, found=f"from {self.key.source}")]
        found.append(self._finding("REST API v2", lambda: f"{len(self.api.pods())} pods listed"))
        found.append(self._finding("GraphQL API", lambda: f"{self._spending():.2f} USD/h is being spent"))
        if self.settings.network_volume:
            found.append(self._finding("network volume", self._told_mount))
        gone = self._spot_is_gone()
        found.append(Finding("spot pods", ok=not gone, found=gone or "not refused by the API so far"))
        return found + self.accounts.findings()

    # Offers

    def _offers_without_key(self, query: OfferQuery) -> Sequence[Offer]:
        try:
            cards = self._cards(query, keyless=True)
        except ImportError as error:  # of the extra, which nobody who rents elsewhere needs
            raise AuthFailed("there is no key for runpod", provider=NAME, code="no key", fix=HOW_TO_KEY) from error
        except ProviderError as error:  # not tried again and again for somebody who has no account
            raise AuthFailed(error.message, provider=NAME, code="no prices") from error
        return self._wanted(catalog.offers(cards, self._shape(query, blocked=NO_KEY)))

    def _shape(self, query: OfferQuery, **more: Any) -> catalog.Shape:
        return catalog.Shape(query, time.time(), no_spot=self._spot_is_gone(), **more)

    def _wanted(self, found: Sequence[Offer]) -> OfferList:
        """Those of the clouds that are set; the others are counted."""
        clouds = self.settings.clouds
        kept = [offer for offer in found if offer.trust in {catalog.TRUST[cloud] for cloud in clouds}]
        why = f"[providers.runpod] clouds is {', '.join(clouds)} only"
        return OfferList(kept, left_out={why: len(found) - len(kept)} if len(kept) < len(found) else {})

    def _cards(self, query: OfferQuery, *, keyless: bool = False) -> list[catalog.Sold]:
        wish: dict[str, Any] = {"gpuCount": query.gpu_count}
        if query.cpus:
            wish["minVcpuCount"] = math.ceil(query.cpus)
        if query.memory:
            wish["minMemoryInGb"] = math.ceil(query.memory)
        variables = {"secure": {**wish, "secureCloud": True}, "community": {**wish, "secureCloud": False}}
        data = self.api.graph(PRICES, variables, keyless=keyless)
        return list(catalog.sold_by_graph(data.get("gpuTypes") or (), query.gpu_count))

    def _catalog(self, query: OfferQuery, cloud: str | None) -> list[Mapping[str, Any]]:
        params = {"include": "AVAILABILITY", "product": "POD", "count": query.gpu_count}
        answer = self.api.rest("GET", "/catalog/gpus", params=params | ({"cloud": cloud} if cloud else {}))
        found = answer.get("gpus") if isinstance(answer, Mapping) else None
        if not isinstance(found, list):
            raise self.api.silent("a catalog without cards came", "no gpus")
        return found

    def _centres(self, query: OfferQuery, failures: dict[str, Exception]) -> dict[str, tuple[str, ...]]:
        """Data centres per card. Without them every card is still offered by its cloud as a whole."""
        if catalog.SECURE not in self.settings.clouds:
            return {}
        try:
            return catalog.centres_of(self._catalog(query, "SECURE"))
        except (AuthFailed, ConfigError):
            raise
        except ProviderError as error:
            failures["data centres"] = error
            return {}

    def _mount(self) -> catalog.Mount | None:
        if not self.settings.network_volume:
            return None
        try:
            return catalog.mount_of(self.api.rest("GET", f"/network-volumes/{self.settings.network_volume}"))
        except NotFound as error:
            raise ConfigError(
                f"providers.runpod.network_volume = {self.settings.network_volume!r}: there is no such volume",
                fix="take its id from https://console.runpod.io/user/storage, or remove the line",
            ) from error

    # Launching

    def _create(self, request: LaunchRequest, name: str, env: Mapping[str, str], kind: Any) -> dict[str, Any]:
        body: dict[str, Any] = {
            "name": name,
            "image": request.container or images.DEFAULT,
            "gpu": {"id": kind["gpu"], "count": int(kind["count"]), **self._least_cuda(kind["gpu"])},
            "cloud": kind["cloud"],
            "disk": max(1, math.ceil(request.disk)),
            "env": dict(env),
            "args": pods.rest_args(),
            "ports": [],
            "startSsh": True,  # opens no port; without it a pod takes no SSH key, not even through RunPod's proxy
        }
        if request.offer.zone:
            body["dataCenterIds"] = [request.offer.zone]
        if self.settings.network_volume:
            body["mounts"] = {
                "network": [{"volumeId": self.settings.network_volume, "path": self.settings.volume_path}]
            }
        if self.settings.registry:
            body["registry"] = self.settings.registry
        try:
            made = self.api.rest("POST", "/pods", body=body, creating=True)
        except AuthFailed as error:
            if error.code == "403":  # "Your account cannot access the requested pool": RunPod, POST /v2/pods
                offer = request.offer
                scope = f"{NAME}/{offer.region}/{offer.zone}/{offer.instance_type}"
                raise QuotaExceeded(error.message, scope=scope, provider=NAME, code=error.code) from error
            raise
        return self._made(made)

    def _rent_spot(self, request: LaunchRequest, name: str, env: Mapping[str, str], kind: Any) -> dict[str, Any]:
        count = int(kind["count"])
        wanted: dict[str, Any] = {
            "name": name,
            "imageName": request.container or images.DEFAULT,
            "gpuTypeId": kind["gpu"],
            "cloudType": kind["cloud"],
            "gpuCount": count,
            "bidPerGpu": bid_per_gpu(request, count),
            "containerDiskInGb": max(1, math.ceil(request.disk)),
            "volumeInGb": 0,
            "dockerArgs": pods.docker_args(),
            "startSsh": True,
            "env": [{"key": key, "value": value} for key, value in env.items()],
            "terminateAfter": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(latest_end(request) + LATE)),
            **self._least_cuda(kind["gpu"]),
        }
        if request.offer.zone:
            wanted["dataCenterId"] = request.offer.zone
        if self.settings.network_volume:
            wanted |= {"networkVolumeId": self.settings.network_volume, "volumeMountPath": self.settings.volume_path}
        if self.settings.registry:
            wanted["containerRegistryAuthId"] = self.settings.registry
        while True:
            try:
                return self._send_spot(wanted)
            except InvalidRequest as error:
                # Their forms are documented nowhere; a document that is refused as such has made nothing.
                refused = [name for name in UNSURE if name in wanted and name in error.message]
                if not refused:
                    raise
                for name in refused:
                    del wanted[name]

    def _least_cuda(self, gpu_id: str) -> dict[str, str]:
        """RunPod's own cards of other makers have hosts that report no CUDA version."""
        return {"minCudaVersion": self.settings.min_cuda} if self.settings.min_cuda and "AMD" not in gpu_id else {}

    def _send_spot(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        try:
            data = self.api.graph(RENT_SPOT, {"input": dict(wanted)}, creating=True)
        except Withdrawn as error:
            self._spot_gone.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._spot_gone.write_text(repr(time.time()), encoding="ascii")
            raise Withdrawn(f"{error.message}; tried again in a day", provider=NAME, code=error.code) from error
        if data.get("podRentInterruptable", "") is None:
            raise NoCapacity("RunPod answered a spot request with nothing", provider=NAME, code="null data")
        return self._made(data.get("podRentInterruptable"))

    def _made(self, answer: Any) -> dict[str, Any]:
        """A created pod. Raises Ambiguous for an answer that does not name it: there may be one."""
        if not isinstance(answer, dict) or not isinstance(answer.get("id"), str) or not answer["id"]:
            raise self.api.silent(f"RunPod named no pod: {str(answer)[:300]}", "no id", creating=True)
        return answer

    def _spot_is_gone(self) -> str:
        """What to say of the spot market, empty where nothing speaks against it; one try a day finds that out."""
        try:
            since = float(self._spot_gone.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return ""
        if not 0 <= time.time() - since < SPOT_AGAIN:
            return ""
        again = time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(since + SPOT_AGAIN))
        return f"RunPod's API rents out no spot pods any more; tried again after {again}"

    def _foreign_api(self) -> str:
        return "" if self.settings.api == settings_of.API else self.settings.api

    # Checks

    def _finding(self, what: str, look: Any) -> Finding:
        try:
            return Finding(what, ok=True, found=str(look()))
        except BrokerError as error:
            return Finding(what, ok=False, found=error.message, fix=error.fix)

    def _spending(self) -> float:
        return number(self.api.myself(ACCOUNT).get("currentSpendPerHr")) or 0.0

    def _told_mount(self) -> str:
        mount = self._mount()
        return f"{mount.id} in {mount.centre}, {mount.hourly:.4f} USD/h" if mount else "none"


def latest_end(request: LaunchRequest) -> float:
    """Up to when a live broker may let the machine run; RunPod takes one time only, at the launch."""
    return max(request.end_by, request.latest or 0.0)


def bid_per_gpu(request: LaunchRequest, count: int) -> float:
    """USD per hour and card, as RunPod reads bids (skypilot #9000); the request's bid is for the whole pod.

    Never above what the same pod costs on demand: whoever pays that need not be outbid. Raises InvalidRequest for a bid
    that is no price.
    """
    each = (request.offer.price if request.bid is None else request.bid) / count
    if not 0 < each < math.inf:
        raise InvalidRequest(f"a bid of {each:g} USD per hour and card", provider=NAME, code="bid")
    each = math.ceil(round(each / CENTS, 6)) * CENTS
    most = request.offer.extra.get("on_demand")
    return round(min(each, float(most) / count) if most else each, 6)
