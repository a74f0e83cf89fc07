"""A stand-in for https://console.vast.ai: the account behind it is `clouds.vast.account`, the wire is here.

What it says and refuses follows Vast's API reference, and what is known from the field where that differs. It lies
where a test tells it to: see `Lies`.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from clouds.vast.account import Account, Contract
from clouds.vast.limits import Limits
from clouds.vast.spec import Spec
from clouds.vast.wishes import STORED, fits, invalid, rank

Reply = tuple[int, Any]
NAMES = (
    "RTX 4090",
    "RTX 3090",
    "RTX A5000",
    "RTX 6000Ada",
    "H100 SXM",
    "H100 NVL",
    "A100 PCIE",
    "A100 SXM4",
    "Q RTX 8000",
)


@dataclass
class Lies:
    """What the next calls get instead of the truth.

    refuse: status and body for the next creations, in turn. lose_answer: creations that are made and answered with
    500; hang_up: that are made and answered by a closed connection. hide: seconds for which a new contract is left out
    of the list; hide_one: for which it cannot be shown by its id. broken: endpoint -> how its next answers come, by
    the words of `_broken`. quota: searches are refused until midnight; blind: they heed no wish. total: how many
    contracts the list says there are; same_token: its pages do not end; round: the last leads to the first. cut: labels
    are kept up to so many characters. keep: what is destroyed is listed on; deaf:
    only a contract itself can be heard asking for its end. hold: answers wait for it. no_bid: a creation with a price
    rents on-demand all the same. unpriced: contracts name no price. low_bid: how a bid that does not win is answered:
    the status, with `new_contract` in the body; 200 for a success that says nothing; 410 for a refusal that makes
    nothing.
    """

    refuse: list[Reply] = field(default_factory=list)
    lose_answer: int = 0
    hang_up: int = 0
    hide: float = 0.0
    hide_one: float = 0.0
    broken: dict[str, list[str]] = field(default_factory=dict)
    no_bid: bool = False
    unpriced: bool = False
    quota: bool = False
    blind: bool = False
    total: int | None = None
    same_token: bool = False
    round: bool = False
    cut: int | None = None
    keep: bool = False
    deaf: bool = False
    hold: threading.Event | None = None
    low_bid: int = 400


class VastServer:
    """The service on a port of this computer. A context manager.

    account: whose key it takes. scale: of the documented times between calls; 0 switches them off. spec: the vendor's
    OpenAPI files that judge both sides; `problems` is what they found. calls: how often each endpoint was asked, also
    when it refused; asked: method, path, headers and body of each that it did not.
    """

    def __init__(
        self, account: Account, *, scale: float = 0.0, spec: Spec | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.account, self.spec, self.limits, self.lies = account, spec, Limits(scale=scale), Lies()
        self.calls: Counter[str] = Counter()
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.problems: list[str] = []
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"vast": self})
        self.http = ThreadingHTTPServer(("0.0.0.0" if account.machines else "127.0.0.1", 0), handler)
        self.port = self.http.server_port
        self.url = f"http://{account.machines.address if account.machines else '127.0.0.1'}:{self.port}"
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), name="vast", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.shutdown()
        self.http.server_close()

    def bodies(self, endpoint: str) -> list[Any]:
        """The bodies of every request to an endpoint, such as `PUT /api/v0/asks/{id}/`."""
        return [body for method, path, _, body in self.asked if _endpoint(method, path)[0] == endpoint]

    def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: Any, address: str
    ) -> Reply | str | bytes:
        """An answer, or how to break it: `hang up`, or raw bytes."""
        endpoint, number = _endpoint(method, path)
        query = dict(parse_qsl(urlsplit(path).query, keep_blank_values=True))
        with self._lock:
            self.calls[endpoint] += 1
            self.asked.append((method, path, dict(headers), body))
            broken = self.lies.broken.get(endpoint)
            how = broken.pop(0) if broken else ""
        if self.lies.hold is not None:
            self.lies.hold.wait(30.0)
        if how:
            return _broken(how)
        if self.spec is not None:
            self.problems += self.spec.request(endpoint, query, body)
        key = headers.get("Authorization", "").removeprefix("Bearer ")
        reply = self._route(endpoint, number, key, query, body, path)
        if self.spec is not None and isinstance(reply, tuple):
            self.problems += self.spec.answer(endpoint, *reply)
        return reply

    def _route(
        self, endpoint: str, number: int, key: str, query: Mapping[str, str], body: Any, path: str
    ) -> Reply | str:
        if endpoint in PUBLIC:
            return self._public(endpoint, key, body)
        contract = self.account.contracts.get(number)
        inside = contract is not None and key == contract.api_key  # from within the contract itself
        if key != self.account.key and not (inside and endpoint in INSIDE):
            return 401, {"success": False, "error": "auth_error", "msg": "Invalid user key"}
        self.account.look()
        if self.lies.deaf and endpoint.startswith("DELETE") and not inside:
            return 502, {"msg": "Bad Gateway"}
        if endpoint == "GET /api/v0/users/current/":
            user = {
                "id": self.account.number,
                "email": "you@example.com",
                "credit": self.account.credit,
                "ssh_key": None,
            }
            return 200, user
        if endpoint == "GET /api/v0/instances/":
            return 410, {"success": False, "error": "gone", "msg": "use /api/v1/instances/"}
        if endpoint == "GET /api/v1/instances/":
            return self._list(query)
        if endpoint == "PUT /api/v0/asks/{id}/":
            return self._create(number, body or {})
        if endpoint == "GET /api/v0/instances/{id}/":
            hidden = contract is None or self.account.clock() - contract.made < self.lies.hide_one
            return 200, {"instances": None if contract is None or hidden else self._row(contract)}
        if endpoint in OF_CONTRACT:
            if contract is None:
                slug = "not_found" if endpoint.startswith("DELETE") else "no_such_instance"
                return 404, {"success": False, "error": slug, "msg": "Instance with that ID does not exist."}
            return self._change(endpoint, contract, body or {})
        return 404, {"success": False, "error": "not_found", "msg": f"no such path: {path}"}

    def _public(self, endpoint: str, key: str, body: Any) -> Reply:
        """What needs no key."""
        if endpoint == "POST /api/v0/bundles/":
            return self._search(body, key)
        if endpoint == "PUT /api/v0/search/asks/":
            return self._search((body or {}).get("q") or {}, key)
        return 200, {"gpu_names": sorted({*NAMES, *(host.gpu_name for host in self.account.hosts.values())})}

    def _search(self, body: Mapping[str, Any], key: str) -> Reply:
        if key and key != self.account.key:
            return 404, {"error": "auth_error", "msg": "Invalid user key"}
        if self.lies.quota:
            return 429, {"error": "search_quota_exceeded", "msg": "daily search quota exceeded"}
        if not isinstance(body, dict):
            return 400, {"error": "invalid_request", "msg": "Invalid json body"}
        kind, now = (
            {"ondemand": "on-demand"}.get(body.get("type", "on-demand"), body.get("type", "on-demand")),
            time.time(),
        )
        storage = float(body.get("allocated_storage", 8.0))
        rows = []
        with self.account.lock:
            for host in self.account.hosts.values():
                row = host.row(kind=kind, storage=storage, month=self.account.month, now=now)
                lent = host.lent(self.account.contracts.values())
                extra = {"verified": host.verification == "verified", "datacenter": host.hosting_type == 1}
                if (
                    host.online
                    and host.ends_at > now
                    and not lent
                    and (self.lies.blind or fits({**row, **extra}, body))
                ):
                    rows.append(row)
        for column, direction in reversed(body.get("order") or [["score", "desc"]]):
            rows.sort(key=lambda row: rank(row.get(column)), reverse=direction == "desc")
        return 200, {"offers": rows[: body.get("limit") or 64]}

    def _create(self, ask: int, body: Mapping[str, Any]) -> Reply | str:
        host = self.account.hosts.get(ask)
        if self.lies.refuse:
            status, told = self.lies.refuse.pop(0)
            return status, {**told, "ask_id": ask}
        if wrong := invalid(body):
            return 400, {"success": False, "error": wrong[0], "msg": f"error 400/3467: {wrong[1]}", "ask_id": ask}
        if self.account.credit <= 0:
            word = "Your account lacks credit; see the billing page."
            return 400, {"success": False, "error": "insufficient_credit", "msg": word}
        if host is None or not host.online or host.lent(self.account.contracts.values()):
            word = f"error 404/3603: no_such_ask  Instance type by id {ask} is not available."
            return 400, {"success": False, "error": "invalid_args", "msg": word, "ask_id": ask}
        sent = {**body, "price": None} if self.lies.no_bid else body
        contract = self.account.rent(host, sent)
        contract.label = contract.label[: self.lies.cut] if contract.label else None
        if not contract.runs:
            if body.get("cancel_unavail") and self.lies.low_bid == 410:
                self.account.destroy(contract)
                word = f"error 410/3907: no_such_ask Instance type {ask} is no longer available."
                return 410, {"success": False, "error": "no_such_ask", "msg": word, "ask_id": ask}
            if self.lies.low_bid != 200:
                told = {"success": False, "error": "invalid_args", "msg": "bid too low", "new_contract": contract.id}
                return self.lies.low_bid, told
        if self.lies.lose_answer:
            self.lies.lose_answer -= 1
            return 500, {"success": False, "error": "internal", "msg": "Internal Server Error"}
        if self.lies.hang_up:
            self.lies.hang_up -= 1
            return "hang up"
        return 200, {"success": True, "new_contract": contract.id, "instance_api_key": contract.api_key}

    def _change(self, endpoint: str, contract: Contract, body: Mapping[str, Any]) -> Reply:
        if endpoint.startswith("DELETE") and self.lies.keep:
            pass
        elif endpoint.startswith("DELETE"):
            # Answered first, so that a contract that ends itself hears of it.
            threading.Timer(0.05, self.account.destroy, [contract]).start() if contract.machine else (
                self.account.destroy(contract)
            )
        elif "bid_price" in endpoint:
            price = body.get("price", contract.host.least_bid())
            if not isinstance(price, int | float) or price < 0.001:
                return 400, {"success": False, "error": "invalid_args", "msg": "Please set a bid price >= 0.001."}
            if contract.bid is None or price > 32.0 * contract.host.num_gpus:
                return 400, {"success": False, "error": "invalid_args", "msg": "Invalid bid."}
            self.account.set_bid(contract, float(price))
        else:
            if "label" in body:
                contract.label = body["label"]
            if "state" in body:
                self.account.set_running(contract, body["state"] == "running")
        return 200, {"success": True}

    def _list(self, query: Mapping[str, str]) -> Reply:
        columns = json.loads(query.get("select_cols", '["*"]'))
        filters = json.loads(query.get("select_filters", "{}"))
        order = json.loads(query.get("order_by", "[]"))
        for column in (*filters, *(part["col"] for part in order)):
            if column not in STORED:
                word = f"Error in query parameters: {column} is not a valid search key"
                return 400, {"error": "invalid_request", "msg": word}
        try:
            after = json.loads(base64.b64decode(query["after_token"]))["values"]["id"] if "after_token" in query else 0
        except (ValueError, KeyError, TypeError):
            return 400, {"error": "invalid_token", "msg": "invalid after_token"}
        asked = int(query.get("limit", 25))
        limit = min(25, asked) if asked > 0 else 5
        with self.account.lock:
            now = self.account.clock()
            shown = [c for c in self.account.contracts.values() if now - c.made >= self.lies.hide]
            shown.sort(key=lambda contract: contract.id)
            if filters:
                shown = [contract for contract in shown if fits(self._row(contract), filters)]
            later = [contract for contract in shown if contract.id > after]
            page, more = [self._row(contract) for contract in later[:limit]], len(later) > limit
        token = base64.b64encode(json.dumps({"values": {"id": page[-1]["id"]}}).encode()).decode() if more else None
        if self.lies.same_token:
            token = query.get("after_token", token)
        elif self.lies.round and token is None:
            token = base64.b64encode(json.dumps({"values": {"id": shown[limit - 1].id}}).encode()).decode()
        if columns != ["*"]:
            page = [{column: row.get(column) for column in columns} for row in page]
        counts = Counter(contract.label or "" for contract in shown)
        return 200, {
            "success": True, "instances_found": len(page), "total_instances": self.lies.total or len(shown),
            "label_counts": dict(counts), "next_token": token, "instances": page,
        }  # fmt: skip

    def _row(self, contract: Contract) -> dict[str, Any]:
        """A contract as the API shows it."""
        host, body = contract.host, contract.body
        disk = contract.disk * host.storage_cost / self.account.month
        base = contract.hourly()
        prices = {"dph_base": base, "dph_total": base + disk} if not self.lies.unpriced else {}
        words = self.account.words(contract)
        up = words["actual_status"] == "running"
        return {
            "id": contract.id, "label": contract.label, **words, "is_bid": contract.bid is not None,
            "min_bid": host.least_bid(), **prices, "machine_id": host.machine_id,
            "host_id": host.host_id, "gpu_name": host.gpu_name, "num_gpus": host.num_gpus, "gpu_ram": host.gpu_ram,
            "gpu_totalram": host.gpu_ram * host.num_gpus, "cpu_cores": host.cpu_cores or 16, "cpu_ram": host.cpu_ram,
            "cpu_cores_effective": host.cpu_cores_effective, "disk_space": contract.disk, "disk_usage": 0.1,
            "ssh_host": "ssh4.vast.ai", "ssh_port": 10_600, "ssh_idx": "4", "public_ipaddr": " 203.0.113.42 ",
            "local_ipaddrs": "10.0.0.5 172.17.0.2 \n", "direct_port_start": 20_000, "direct_port_end": 20_095,
            "ports": {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": "20001"}]} if up else None,
            "image_uuid": body.get("image") or "", "image_runtype": body.get("runtype") or "ssh",
            "image_args": list(body.get("args") or []), "onstart": body.get("onstart") or "",
            "extra_env": [[name, str(value)] for name, value in dict(body.get("env") or {}).items()],
            "start_date": contract.made, "end_date": contract.end_date, "duration": contract.end_date - time.time(),
            "uptime_mins": None, "reliability2": host.reliability, "geolocation": host.geolocation,
            "storage_cost": host.storage_cost, "storage_total_cost": disk, "verification": host.verification,
            "rentable": True, "external": False, "static_ip": True, "jupyter_token": "", "template_id": None,
            "search": {"gpuCostPerHour": base, "diskHour": disk, "totalHour": base + disk, "discountTotalHour": 0,
                       "discountedTotalPerHour": base + disk},
            "instance": {"gpuCostPerHour": base, "diskHour": disk, "totalHour": base + disk, "discountTotalHour": 0,
                         "discountedTotalPerHour": base + disk},
            "volume_info": [], "inet_up": 812.0, "inet_down": 915.4, "gpu_util": 0.0, "cpu_util": 0.0, "gpu_temp": 40.0,
            "dlperf": 90.0, "direct_port_count": 96, "cuda_max_good": host.cuda, "driver_version": "560.35.03",
        }  # fmt: skip


OF_CONTRACT = {
    "PUT /api/v0/instances/{id}/",
    "DELETE /api/v0/instances/{id}/",
    "PUT /api/v0/instances/bid_price/{id}/",
}
PUBLIC = {"POST /api/v0/bundles/", "PUT /api/v0/search/asks/", "GET /api/v0/gpu_names/unique/"}
INSIDE = {"PUT /api/v0/instances/{id}/", "DELETE /api/v0/instances/{id}/"}


def _endpoint(method: str, path: str) -> tuple[str, int]:
    """`PUT /api/v0/asks/{id}/` and the number; -1 without one."""
    place = urlsplit(path).path
    place = place if place.endswith("/") else place + "/"
    number = re.search(r"/(\d+)/$", place)
    return f"{method} {re.sub(r'/[0-9]+/$', '/{id}/', place)}", int(number[1]) if number else -1


def _broken(how: str) -> Reply | str | bytes:
    plain: dict[str, Reply] = {
        "408": (408, {"detail": "Request Timeout"}),
        "500": (500, {"success": False, "error": "internal", "msg": "Internal Server Error"}),
        "502": (502, {"msg": "Bad Gateway"}),
        "no": (200, {"success": False, "error": "not_now", "msg": "try again later"}),
        "often": (200, {"success": False, "error": "rate_limit_exceeded", "msg": "API requests too frequent"}),
        "null": (200, {"success": True, "instances": None, "offers": None, "next_token": None}),
    }
    if how in plain:
        return plain[how]
    return {"text": b"upstream says hello", "cut": b'{"instances": [{"id": 1', "html": b"<html>maintenance</html>"}.get(
        how, how
    )


class _Handler(BaseHTTPRequestHandler):
    vast: VastServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: in two, the second waits 40 ms for the first to be acknowledged

    def handle_any(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = self.client_address[0]
        endpoint, _ = _endpoint(self.command, self.path)
        refused = self.vast.limits.refuse(endpoint, self.headers.get("Authorization", "") + address, address)
        if refused is not None:
            headers, kind, text = refused
            with self.vast._lock:
                self.vast.calls[endpoint] += 1
            self.send(429, text, kind, headers)
            return
        try:
            body = json.loads(raw) if raw.strip() else None
        except ValueError:
            self.send(400, b'{"error": "invalid_request", "msg": "Invalid json body"}')
            return
        said = self.vast.answer(self.command, self.path, self.headers, body, address)  # type: ignore[arg-type]
        if isinstance(said, str):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif isinstance(said, bytes):
            self.send(200, said)
        else:
            self.send(said[0], json.dumps(said[1]).encode())

    do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

    def send(
        self, status: int, text: bytes, kind: str = "application/json", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(text)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        pass
