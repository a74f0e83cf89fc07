"""`Layer`: what stands before moto's server and makes it behave like EC2 where moto does not.

Every call is written down. Told faults come first, then what the modules beside this one answer themselves, and moto
answers the rest.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from clouds.aws import launches, market
from clouds.aws.state import Ec2
from clouds.aws.wire import Answer, Request, as_json, ec2_error, json_error, passed_on, query_error, read

App = Callable[..., Iterable[bytes]]
MARKET: dict[str, Callable[[Ec2, Request], Answer | None]] = {
    "DescribeRegions": market.describe_regions,
    "DescribeAvailabilityZones": market.describe_availability_zones,
    "DescribeSpotPriceHistory": market.describe_spot_price_history,
    "DescribeInstanceTypeOfferings": market.describe_instance_type_offerings,
    "DescribeImages": market.describe_images,
    "GetSpotPlacementScores": market.get_spot_placement_scores,
    "GetParameters": market.get_parameters,
    "GetProducts": market.get_products,
    "ListServiceQuotas": market.list_service_quotas,
}
LAUNCHES: dict[str, Callable[[Ec2, App, Request], Answer]] = {
    "RunInstances": launches.run_instances,
    "TerminateInstances": launches.terminate_instances,
    "DescribeInstances": launches.describe_instances,
    "DescribeSpotInstanceRequests": launches.describe_spot_instance_requests,
    "CreateLaunchTemplate": launches.create_launch_template,
    "CreateFleet": launches.create_fleet,
}


class Layer:
    """A WSGI application around another."""

    def __init__(self, moto: App, world: Ec2) -> None:
        self.moto, self.world = moto, world
        self._types: dict[tuple[str, str], Answer] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        request = read(environ)
        answer = self.answer(request)
        if request.action == "RunInstances" and self.world.break_connections:
            self.world.break_connections -= 1
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        kept = [(name, value) for name, value in answer.headers.items() if name.lower() != "content-length"]
        start(f"{answer.status} -", [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body))), *kept])
        return [answer.body]

    def answer(self, request: Request) -> Answer:
        if request.path == "/spot-advisor-data.json":
            return Answer(200, json.dumps(self.world.advisor).encode(), "application/json")
        if request.path == "/federation/credentials":
            return self._portal()
        with self.world.lock:
            self.world.calls.append((request.service, request.region, request.action, request.form or request.data))
        told = self._fault(request)
        if told is not None:
            return told
        # The first of all regions can be left out of an account's list here, but always answers for it.
        home = request.action == "DescribeRegions" and request.region == "us-east-1"
        if request.service == "ec2" and request.region not in self.world.enabled and not home:
            return ec2_error("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
        if request.form.get("DryRun") == "true":
            return ec2_error("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        if request.action in LAUNCHES:
            return LAUNCHES[request.action](self.world, self.moto, request)
        if request.action in MARKET:
            own = MARKET[request.action](self.world, request)
            if own is not None:
                return own
        if request.action == "DescribeInstanceTypes":
            # moto reads through all of EC2's types for each answer, and they never change.
            known = (request.region, json.dumps(sorted(request.form.items())))
            if known not in self._types:
                self._types[known] = passed_on(self.moto, request)
            return self._types[known]
        return passed_on(self.moto, request)

    def _portal(self) -> Answer:
        """IAM Identity Center's GetRoleCredentials."""
        if self.world.sso is None:
            return json_error("UnauthorizedException", "Session token not found or invalid", 401)
        told = self.world.sso()
        keys = {
            "accessKeyId": told["AccessKeyId"],
            "secretAccessKey": told["SecretAccessKey"],
            "sessionToken": told["Token"],
            "expiration": int((time.time() + 3600) * 1000),
        }
        return as_json({"roleCredentials": keys})

    def _fault(self, request: Request) -> Answer | None:
        with self.world.lock:
            for fault in self.world.faults:
                fits = fault.action in ("*", request.action) and fault.region in (None, request.region)
                if fault.times >= 1 and fits and fault.service in (None, request.service):
                    fault.times -= 1
                    break
            else:
                return None
        if request.data or "x-amz-target" in request.headers:
            return json_error(fault.code, fault.message, fault.status)
        shape = ec2_error if request.service == "ec2" else query_error
        return shape(fault.code, fault.message, fault.status)
