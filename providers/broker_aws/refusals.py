"""What EC2's errors mean: the SDK's exceptions into the project's.

Codes are those of "Error codes for the Amazon EC2 API"; InsufficientInstanceCapacity comes with status 500. What is
matched by a pattern is a kind: a new spelling of "no capacity" or of a limit must not be taken for something else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from broker.errors import (
    Ambiguous,
    AuthFailed,
    BrokerError,
    ConfigError,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from broker.offer import Market, Offer
from broker_aws import quotas

NAME = "aws"
RETRY_AFTER = 2.0  # seconds, where EC2 names none; its buckets of calls fill again within seconds
HOW_TO_LOG_IN = "log in with `aws configure`, `aws sso login` or AWS_PROFILE; `broker check aws` says who you are then"

CAPACITY = re.compile(r"(Server\.)?(?!Invalid)\w*Capacity\w*|Unfulfillable\w*|SpotMaxPrice\w+")
NOT_HERE = frozenset({"Unsupported", "UnsupportedOperation", "InsufficientFreeAddressesInSubnet"})
AUTH = frozenset(
    {
        "AuthFailure",
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "SignatureDoesNotMatch",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "IncompleteSignature",
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "Blocked",
    }
)
DENIED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
RATE = re.compile(
    r"RequestLimitExceeded|Throttl\w*|\w*ThrottledException|TooManyRequests\w*|RequestThrottled\w*|SlowDown"
)
LIMIT = re.compile(r"Max\w+Exceeded|\w+(?<!Request)(Limit|Count|Quota)Exceeded\w*|PendingVerification")
# Of machines, and of one market; other limits are of disks, addresses or the region.
MACHINES = re.compile(r"\w*(Spot|Vcpu|Instance)\w*Exceeded")
# The region as a whole is of no use to this account: it is skipped, the others are kept.
REGION = frozenset({"OptInRequired", "VPCIdNotSpecified", "DefaultVpcDoesNotExist"})
FIXES = {
    "OptInRequired": "enable the region in the AWS console under Account, or take it out of providers.aws.regions",
    "VPCIdNotSpecified": "make a default VPC (`aws ec2 create-default-vpc --region REGION`) or name subnets in "
    "[providers.aws]",
    "InsufficientFreeAddressesInSubnet": "the subnet is full: name a larger one in [providers.aws] subnets",
    "MissingInput": "make one (`aws ec2 create-default-subnet --region REGION --availability-zone ZONE`), or name "
    "subnets in [providers.aws]",
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": "somebody with the right to must do it once: aws iam "
    "create-service-linked-role --aws-service-name spot.amazonaws.com",
    "PendingVerification": "AWS still verifies the account for this region; it takes up to four hours",
    "InvalidAMIID.NotFound": "an AMI belongs to one region and may need to be shared with this account",
    "InvalidSubnetID.NotFound": "see [providers.aws] subnets",
    "InvalidGroup.NotFound": "see [providers.aws] security_groups",
    "OperationNotPermitted": "where it is protected from its end: aws ec2 modify-instance-attribute --region REGION "
    "--instance-id ID --no-disable-api-termination",
}
# An image of the AWS Marketplace is refused by the code of a region that is not enabled.
TERMS = re.compile(r"marketplace|accept (the )?terms", re.IGNORECASE)
CLOCK = re.compile(r"not yet current|signature expired|is now (earlier|later) than|skew", re.IGNORECASE)
SET_CLOCK = "set this computer's clock: AWS refuses what is signed more than a few minutes off"
# What a type cannot do, told as a wrong parameter: another type may be right.
OF_THE_TYPE = re.compile(
    r"instance type|architecture|boot mode|virtualization|\bENA\b|NVMe|not supported", re.IGNORECASE
)
TOO_SMALL = re.compile(r"smaller than snapshot.*?(\d+)\s*GB", re.IGNORECASE)


@contextlib.contextmanager
def translated(*, creating: bool = False, offer: Offer | None = None, region: str = "") -> Iterator[None]:
    """Raise the project's errors for what the SDK raises. creating: a machine may come of the call. offer: of which."""
    try:
        yield
    except BrokerError:
        raise
    except Exception as error:
        known = translate(error, creating=creating, offer=offer, region=region)
        if known is None:
            raise
        raise known from error


def translate(
    error: Exception, *, creating: bool = False, offer: Offer | None = None, region: str = ""
) -> BrokerError | None:
    """None for what is not of the SDK."""
    if isinstance(error, ModuleNotFoundError):
        return ConfigError(f"provider 'aws' needs the package {error.name}", fix="pip install 'spotbroker[aws]'")
    from botocore import exceptions as sdk
    from botocore.parsers import ResponseParserError

    if isinstance(error, sdk.ClientError):
        return refused(error.response, creating=creating, offer=offer, region=region)
    code, text = type(error).__name__, str(error)
    unsent = (sdk.EndpointConnectionError, sdk.ConnectTimeoutError, sdk.ProxyConnectionError, sdk.SSLError)
    if isinstance(error, unsent):
        return ProviderUnavailable(f"AWS cannot be reached: {text}", provider=NAME, code=code)
    if isinstance(error, sdk.HTTPClientError | ResponseParserError):
        return _silent(f"AWS did not answer: {text}", code, creating)
    if isinstance(error, sdk.ProfileNotFound | sdk.ConfigParseError | sdk.ConfigNotFound):
        return AuthFailed(text, provider=NAME, code=code, fix="see ~/.aws/config and AWS_PROFILE")
    if isinstance(error, sdk.BotoCoreError) and re.search(r"Credential|Token|SSO|Login|Refresh", code):
        return AuthFailed(f"no AWS credentials: {text}", provider=NAME, code=code, fix=HOW_TO_LOG_IN)
    if isinstance(error, EOFError):  # the SDK asks for it at a terminal, and there is none
        fix = "log in where you can be asked, such as by `aws sso login`, or take a profile without mfa_serial"
        return AuthFailed("no AWS credentials: a code of an MFA device is wanted", provider=NAME, code="MFA", fix=fix)
    if isinstance(error, sdk.ParamValidationError):
        return InvalidRequest(text, provider=NAME, code=code)
    return None


def refused(response: Any, *, creating: bool, offer: Offer | None, region: str) -> ProviderError:
    """An answer with an error in it, by its code; by its status where nobody knows the code."""
    told = response.get("Error", {})
    code, message = str(told.get("Code", "")), str(told.get("Message", ""))
    region = region or (offer.region if offer else "")
    text = f"{code}: {message}" + (f" ({region})" if region else "")
    known = {
        "provider": NAME,
        "code": code,
        "fix": FIXES.get(code, "").replace("REGION", region).replace("ZONE", offer.zone if offer else "ZONE"),
    }
    elsewhere = (code == "MissingInput" and "subnet" in message) or "invalid availability zone" in message.lower()
    if code == "OptInRequired" and TERMS.search(message):
        return InvalidRequest(text, **{**known, "fix": "accept the image's terms at the address that AWS names"})
    if CAPACITY.fullmatch(code) or code in NOT_HERE or elsewhere:
        return NoCapacity(text, **known)
    if RATE.fullmatch(code):
        return RateLimited(text, retry_after=_retry_after(response), **known)
    if code in AUTH or code.startswith("AuthFailure."):
        return _denied(code, message, text, offer)
    if LIMIT.fullmatch(code) or code in REGION:
        return _limited(code, text, offer, region, known["fix"])
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code.endswith(".NotFound") and code.startswith("InvalidInstanceID"):
        return NotFound(text, **known)
    if status >= 500:
        return _silent(text, code, creating)
    if code.startswith(("Invalid", "Missing", "Malformed", "Idempotent", "UnknownParameter", "Validation")):
        if small := TOO_SMALL.search(message):
            known["fix"] = f"set disk_size: {small[1]} in the task's resources: the machine's image needs as much"
        elif code.startswith("InvalidParameter") and OF_THE_TYPE.search(message):
            return ProviderError(text, **known)
        return InvalidRequest(text, **known)
    return ProviderError(text, **known)


def _denied(code: str, message: str, text: str, offer: Offer | None) -> ProviderError:
    """A key that is wrong, has expired, or may not do this. A region that an organisation bars bars only itself."""
    if offer is not None and "service control policy" in message:
        fix = f"the organisation bars {offer.region}: take it out of providers.aws.regions"
        return QuotaExceeded(text, scope=f"{NAME}/{offer.region}", provider=NAME, code=code, fix=fix)
    if code in FIXES:
        fix = FIXES[code]
    elif CLOCK.search(message):
        fix = SET_CLOCK
    elif code in EXPIRED:
        fix = "log in again (`aws sso login`); if that does not help, set this computer's clock"
    elif code in DENIED:
        fix = "give the user or role the policy in providers/broker_aws/README.md"
    else:
        fix = HOW_TO_LOG_IN
    return AuthFailed(text, provider=NAME, code=code, fix=fix)


def _limited(code: str, text: str, offer: Offer | None, region: str, fix: str) -> QuotaExceeded:
    """A quota is regional, of one market and of some types; another limit closes the region."""
    scope = f"{NAME}/{region}" if region else NAME
    if offer is not None and MACHINES.fullmatch(code):
        market = Market.SPOT if "Spot" in code else offer.market
        quota = quotas.of(offer.instance_type, market)
        scope += f"/*/{quota.types}/{market}"
        fix = f"ask for {offer.cpus:g} vCPUs or more of “{quota.name}” in {region}: {quotas.page(region, quota.code)}"
    return QuotaExceeded(text, scope=scope, provider=NAME, code=code, fix=fix)


def _silent(text: str, code: str, creating: bool) -> ProviderError:
    kind = Ambiguous if creating else ProviderUnavailable
    return kind(text, provider=NAME, code=code)


def _retry_after(response: Any) -> float:
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return max(0.0, float(headers.get("retry-after", RETRY_AFTER)))
    except ValueError:
        return RETRY_AFTER
