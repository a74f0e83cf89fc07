"""What a refusal means that its adapter does not know, by its words: vendors spell the same thing anew all the time.

Only where it is plain: an error that stays unknown is counted, and a row of them ends the job.
"""

from __future__ import annotations

import re

from broker.errors import Ambiguous, AuthFailed, InvalidRequest, NoCapacity, ProviderError, QuotaExceeded, RateLimited
from broker.offer import Offer

PAUSE = 5.0
"""Seconds to wait where too many calls were made."""
FAULT = re.compile(
    r"something went wrong|internal (server )?error|tim(ed|e)[ -]?out|\bgateway\b|hang up|econnre|"
    r"service unavailable|unexpected error",
    re.IGNORECASE,
)
"""A fault of the vendor's own. What came of a call that ends so is not known, whatever its status is."""
_THING = (
    r"(capacity|stock|resources?|gpus?|machines?|instances?|pods?|vms?|hosts?|servers?|offers?|asks?|nodes?"
    r"|cards?)"
)


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(rf"\b({pattern})\b" for pattern in patterns))


_CREDIT = _any(
    "(insufficient|not enough|no|low|out of) (account )?(balance|credits?|funds)",
    r"(balance|credits?|funds)( \w+){0,3}? (too low|insufficient|required|needed|deficit|exhausted|negative)",
    "lacks? (credits?|funds)",
    "payment (is )?(required|method)|billing",
    r"(must|need to) have at least \d+",
    r"account( \w+){0,3} (suspended|inactive|disabled|locked|blocked|restricted|banned|closed|terminated)",
    r"(kyc|identity|account)( \w+){0,2} (required|not verified|unverified)",
    r"email( \w+){0,3} not verified",
    "verify your (email|identity|account|phone)|(email|user|account|identity|phone) verification",
)
_KEY = _any(
    "(invalid|wrong|expired|revoked|unknown|disabled) (api )?(key|token|credentials?)",
    "(key|token|credentials?) (is |are |was |has been )?(invalid|wrong|expired|revoked|disabled|deleted)",
    "not authori[sz]ed|unauthori[sz]ed|(permission|access) denied|forbidden",
    r"(not have|lacks?|missing|no)( \w+){0,3}? permissions?|read only (api )?(key|token)",
)
_OFTEN = _any(
    "rate limit(s|ed)?|request limit exceeded|too frequent|throttl(ed|ing)|slow down",
    "too many (api )?(requests|calls)",
)
_QUOTA = _any(
    r"quotas?|limit exceeded|count exceeded|limit of \d+|(vcpu|instance|pod|spend|spending) (limit|cap)",
    r"(reached|exceed(s|ed|ing)?)( \w+){0,6} (limit|maximum)",
    r"max(imum)?( \w+){0,4} reached",
    rf"(can|may)( \w+){{0,3}}? (up to|at most|no more than) \d+( \w+){{0,2}}? {_THING}",
    "too many (instances|pods|machines|vms)",
)
_FORM = _any("lengths?|characters|bytes|sizes?|format|too long")  # a limit on what is written in a request
_SPEND = re.compile(r"\bspend")
_CAPACITY = _any(
    rf"{_THING}( \w+){{0,5}} (unavailable|exhausted|sold out|already (rented|taken|in use)|no longer available)",
    rf"(no|not enough|insufficient|lack of|out of|exhausted|at)( \w+){{0,4}} {_THING}",
    rf"{_THING}( \w+){{0,2}}? (is |are )?(currently )?(not available|offline|overloaded|full|busy)",
    "supply constraint|temporarily unavailable|(closed|down) for maintenance|under maintenance",
    rf"not have (sufficient|enough|the)( \w+){{0,5}} {_THING}",
    "not available (in|at|here)|no longer (available|rentable)|sku not available|no such (ask|offer)",
    "already (rented|taken)",
    "sold out|stockout|allocation (request )?failed|overconstrained|capacity (unavailable|exceeded|error)",
    "different (machine|host|region|zone)",
    r"bid( \w+){0,4} (too low|below|at least|minimum|outbid)",
)


def read(error: ProviderError, offer: Offer) -> ProviderError:
    """What a refused launch comes to: the same error, unless nobody has classified it and its words do."""
    unclear = type(error) is ProviderError or (type(error) is InvalidRequest and error.code.isdigit())
    if not unclear:
        return error
    words = _words(f"{error.code} {error.message}")
    told = {"provider": error.provider or offer.provider, "code": error.code, "fix": error.fix}
    if _CREDIT.search(words):
        return AuthFailed(error.message, **{**told, "fix": error.fix or "look at the account's billing page"})
    if _KEY.search(words):
        return AuthFailed(error.message, **{**told, "fix": error.fix or f"broker check {offer.provider} tests the key"})
    if _OFTEN.search(words):
        return RateLimited(error.message, retry_after=PAUSE, **told)
    if _QUOTA.search(words) and not _FORM.search(words):
        scope = offer.provider if _SPEND.search(words) else f"{offer.provider}/{offer.region}/{offer.market}"
        return QuotaExceeded(error.message, scope=scope, **told)
    if _CAPACITY.search(words):
        return NoCapacity(error.message, **told)
    return Ambiguous(error.message, **told) if FAULT.search(words) else error


def _words(text: str) -> str:
    """`InsufficientFooCapacity`, `NO_CAPACITY` and `out of  stock` as small words."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return " ".join(re.findall(r"[a-z0-9]+", apart.lower()))
