"""One Vast account and the hosts it can rent from: who holds the cards, and what is charged.

No HTTP here; `clouds.vast.server` speaks for it. Rules as Vast documents them: an on-demand contract beats every bid,
the highest bid beats the others, who loses is stopped with the disk kept and resumes by itself when it wins again;
cards are charged while a contract runs, its disk as long as it exists; at a credit of zero everything stops.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clouds.machine import Machine, Machines, nvidia

HOUR = 3600.0
ON_DEMAND = float("inf")  # a stranger's price that beats every bid


@dataclass
class Host:
    """One offer of one machine. Prices in USD per hour of the whole offer, memory in MB as Vast has it.

    strangers: what others pay for these cards now; ON_DEMAND for one who rents without a bid. parts: how many can have
    such an offer at once; 1 on a machine that is offered as a whole.
    """

    ask: int
    machine_id: int
    host_id: int
    gpu_name: str = "RTX 4090"
    num_gpus: int = 1
    gpu_ram: int = 24564
    dph: float = 0.40
    min_bid: float = 0.20
    storage_cost: float = 0.15  # USD per GB and month
    inet_up_cost: float = 0.0
    inet_down_cost: float = 0.0
    reliability: float = 0.99
    verification: str = "verified"
    hosting_type: int = 0
    geolocation: str | None = "Poland, PL"
    duration: float = 30 * 86_400.0
    cpu_cores: int | None = 64
    cpu_cores_effective: float = 16.0
    cpu_ram: int = 257_000
    disk_space: float = 800.0
    cuda: float = 12.8
    cpu_arch: str = "amd64"
    parts: int = 1
    online: bool = True
    since: float = field(default_factory=time.time)
    strangers: list[float] = field(default_factory=list)
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ends_at(self) -> float:
        return self.since + self.duration

    def row(self, *, kind: str, storage: float, month: float, now: float) -> dict[str, Any]:
        """The offer as a search for `kind` shows it, its disk priced at `storage` GB."""
        disk = storage * self.storage_cost / month
        base = self.least_bid() if kind == "bid" else self.dph
        return {
            "id": self.ask, "ask_contract_id": self.ask, "bundle_id": 700_000 + self.machine_id,
            "machine_id": self.machine_id, "host_id": self.host_id, "gpu_name": self.gpu_name,
            "num_gpus": self.num_gpus, "gpu_frac": 1.0, "gpu_ram": self.gpu_ram, "gpu_arch": "nvidia",
            "gpu_total_ram": self.gpu_ram * self.num_gpus,
            "cpu_cores": self.cpu_cores, "cpu_cores_effective": self.cpu_cores_effective, "cpu_ram": self.cpu_ram,
            "cpu_arch": self.cpu_arch, "disk_space": self.disk_space, "disk_bw": 1800.0, "dph_base": base,
            "dph_total": base + disk, "min_bid": self.least_bid(), "storage_cost": self.storage_cost,
            "storage_total_cost": disk, "inet_up_cost": self.inet_up_cost, "inet_down_cost": self.inet_down_cost,
            "inet_up": 812.0, "inet_down": 915.4, "reliability": self.reliability, "reliability2": self.reliability,
            "verification": self.verification, "hosting_type": self.hosting_type, "geolocation": self.geolocation,
            "duration": self.ends_at - now, "end_date": self.ends_at, "start_date": self.since, "external": None,
            "rentable": True, "rented": False, "is_bid": kind == "bid", "cuda_max_good": self.cuda, "compute_cap": 890,
            "direct_port_count": 96, "static_ip": True, "public_ipaddr": " 203.0.113.42 ", "score": 100.0,
            "dlperf": 90.0, "dlperf_per_dphtotal": 200.0, "driver_version": "560.35.03", "vms_enabled": False,
            "resource_type": "gpu",
            "search": {"gpuCostPerHour": base, "diskHour": disk, "totalHour": base + disk, "discountTotalHour": 0.0,
                       "discountedTotalPerHour": base + disk},
            **self.changes,
        }  # fmt: skip

    def lent(self, contracts: Iterable[Contract]) -> bool:
        """Are all its parts let without a bid?"""
        claims = [price for price in self.strangers if price == ON_DEMAND]
        return len(claims) + sum(c.runs and c.bid is None for c in contracts if c.host is self) >= self.parts

    def least_bid(self) -> float:
        """What a new bid must reach: the host's own floor, or a little above the highest bid of a stranger."""
        bids = [price for price in self.strangers if price != ON_DEMAND]
        return max([self.min_bid, *(round(price * 1.01, 6) for price in bids)])


@dataclass
class Contract:
    """What was rented. wants: its user wants it to run. bid: None for on-demand."""

    id: int
    host: Host
    label: str | None
    bid: float | None
    disk: float
    body: Mapping[str, Any]
    made: float
    end_date: float
    api_key: str = field(default_factory=lambda: secrets.token_hex(16))
    wants: bool = True
    runs: bool = False
    ready_at: float = 0.0
    exited: bool = False
    message: str | None = None
    frozen_words: Mapping[str, Any] = field(default_factory=dict)  # what it says whatever is true
    cards_usd: float = 0.0
    disk_usd: float = 0.0
    charged_to: float = 0.0
    machine: Machine | None = None

    def hourly(self) -> float:
        return self.bid if self.bid is not None else self.host.dph

    def claim(self) -> float:
        """What its claim on the cards is worth; 0 for a bid below what the host asks."""
        if self.bid is None:
            return ON_DEMAND
        return self.bid if self.bid >= self.host.min_bid else 0.0


class Account:
    """Everything behind one key. Safe to call from any thread.

    boot: seconds from the start to `running`. month: hours by which a month's storage is divided. speed: seconds
    charged for each real one. machines: where contracts really run; without them they are records only.
    """

    def __init__(
        self,
        *,
        boot: float = 0.0,
        month: float = 730.0,
        speed: float = 1.0,
        machines: Machines | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.boot, self.month, self.speed, self.machines, self.clock = boot, month, speed, machines, clock
        self.key = f"vast-EXAMPLE-{secrets.token_hex(8)}"
        self.credit, self.number = 25.0, 4711
        self.hosts: dict[int, Host] = {}
        self.contracts: dict[int, Contract] = {}
        self.past: list[Contract] = []
        self.grace = 2.0  # seconds from SIGTERM to SIGKILL when a contract is stopped
        self.lock = threading.RLock()
        self._numbers = itertools.count(7_700_001)

    def add(self, *hosts: Host) -> None:
        with self.lock:
            self.hosts |= {host.ask: host for host in hosts}

    # What the account's user does, by the API or the console

    def rent(self, host: Host, body: Mapping[str, Any]) -> Contract:
        """Make the contract, whatever becomes of it: one whose bid does not win exists, stopped and billed."""
        with self.lock:
            now = self.clock()
            price = body.get("price")
            contract = Contract(
                next(self._numbers), host, body.get("label"), price, float(body.get("disk") or 8.0), dict(body), now,
                host.ends_at, charged_to=now,
            )  # fmt: skip
            self.contracts[contract.id] = contract
            self.settle(host)
            return contract

    def set_running(self, contract: Contract, wants: bool) -> None:
        with self.lock:
            contract.wants = wants
            self.settle(contract.host)

    def set_bid(self, contract: Contract, price: float) -> None:
        with self.lock:
            self.charge()
            contract.bid = price
            self.settle(contract.host)

    def destroy(self, contract: Contract) -> None:
        with self.lock:
            if contract.id not in self.contracts:
                return
            self.charge()
            self._stop(contract, gone=True)
            self.past.append(self.contracts.pop(contract.id))
            self.settle(contract.host)

    # What others do

    def outbid(self, contract: Contract, price: float | None = None) -> None:
        """A stranger bids more, or rents on-demand (price None): the contract's cards are gone."""
        with self.lock:
            for _ in range(contract.host.parts):
                contract.host.strangers.append(ON_DEMAND if price is None else price)
            self.settle(contract.host)

    def leave(self, host: Host) -> None:
        """The strangers give the cards back: who waits for them resumes."""
        with self.lock:
            host.strangers.clear()
            self.settle(host)

    def vanish(self, host: Host) -> None:
        """The host is gone without a word: its contracts say `offline`, then no more than that."""
        with self.lock:
            host.online = False
            for contract in self._of(host):
                if contract.machine is not None:
                    contract.machine.kill()

    # What follows from it

    def settle(self, host: Host) -> None:
        """Give the cards to who has the best claim on them, and stop the others."""
        with self.lock:
            self.charge()
            now = self.clock()
            waiting = [c for c in self._of(host) if c.wants and self.credit > 0 and c.end_date > now and c.claim()]
            claims: list[tuple[float, float, Contract | None]] = [(c.claim(), -c.id, c) for c in waiting]
            claims += [(price, float("-inf"), None) for price in host.strangers]
            ranked = sorted(claims, key=lambda claim: claim[:2], reverse=True)[: host.parts]
            best = {c.id for _, _, c in ranked if c is not None}
            for contract in self._of(host):
                if contract.id in best and not contract.runs:
                    self._start(contract)
                elif contract.id not in best and contract.runs:
                    self._stop(contract)

    def charge(self) -> None:
        """Bring what every contract has cost up to now."""
        with self.lock:
            now, spent = self.clock(), 0.0
            for contract in self.contracts.values():
                hours = (now - contract.charged_to) * self.speed / HOUR
                if contract.host.online:
                    disk = hours * contract.disk * contract.host.storage_cost / self.month
                    ready = max(contract.charged_to, contract.ready_at)
                    cards = max(0.0, now - ready) * self.speed / HOUR * contract.hourly() if contract.runs else 0.0
                    contract.disk_usd, contract.cards_usd = contract.disk_usd + disk, contract.cards_usd + cards
                    spent += disk + cards
                contract.charged_to = now
            self.credit -= spent
            if self.credit <= 0:
                for contract in [c for c in self.contracts.values() if c.runs]:
                    self._stop(contract)

    def look(self) -> None:
        """Let time have its effect: contracts end, credit runs out."""
        with self.lock:
            self.charge()
            now = self.clock()
            over = {c.host.ask: c.host for c in self.contracts.values() if c.runs and c.end_date <= now}
            for host in over.values():
                self.settle(host)

    def spent(self) -> float:
        """USD charged for everything until now."""
        with self.lock:
            self.charge()
            return sum(c.cards_usd + c.disk_usd for c in (*self.contracts.values(), *self.past))

    def words(self, contract: Contract) -> dict[str, Any]:
        """The four words of its state, and the message."""
        with self.lock:
            state = "running" if contract.runs else "stopped"
            actual: str | None = state
            message = contract.message
            if not contract.host.online:
                actual = "offline"
            elif contract.runs and self.clock() < contract.ready_at:
                actual = "loading"
            elif contract.runs and (contract.exited or (contract.machine is not None and not contract.machine.alive())):
                actual = "exited"
            return {
                "actual_status": actual, "cur_state": state, "next_state": state, "intended_status": state,
                "status_msg": message or f"success, {actual} {contract.body.get('image')}", **contract.frozen_words,
            }  # fmt: skip

    def _of(self, host: Host) -> list[Contract]:
        return [contract for contract in self.contracts.values() if contract.host is host]

    def _start(self, contract: Contract) -> None:
        contract.runs, contract.exited = True, False
        contract.ready_at = self.clock() + self.boot
        if self.machines is None:
            return
        if contract.machine is not None:
            contract.machine.start()
            return
        body, host = contract.body, contract.host
        env = {name: str(value) for name, value in dict(body.get("env") or {}).items() if " " not in name}
        contract.machine = self.machines.container(
            f"vast-{contract.id}",
            command=[*([body["onstart"]] if body.get("onstart") else []), *(body.get("args") or [])],
            env={
                **env,
                "CONTAINER_ID": str(contract.id),
                "CONTAINER_API_KEY": contract.api_key,
                "VAST_CONTAINERLABEL": f"C.{contract.id}",
                "GPU_COUNT": str(host.num_gpus),
            },
            gpus=nvidia(f"NVIDIA GeForce {host.gpu_name}", host.num_gpus, host.gpu_ram),
        )

    def _stop(self, contract: Contract, *, gone: bool = False) -> None:
        contract.runs = False
        if contract.machine is None:
            return
        if gone:
            contract.machine.remove()
        elif contract.machine.alive():
            contract.machine.stop(self.grace)
