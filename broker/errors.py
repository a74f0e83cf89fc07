"""Every exception that spotbroker raises, one class for each decision somebody has to take.

::

    BrokerError                       exit code 1
    ├── ConfigError                   78  the configuration or the environment is wrong
    │   └── TaskError                 78  a task file is wrong: carries file, line, column, field
    ├── ProviderError                 1   an answer nobody has seen before: next offer, a bounded number of times
    │   ├── NoCapacity                    next offer now; this one cools down
    │   ├── QuotaExceeded                 skip everything within `scope`; other scopes go on
    │   ├── AuthFailed                    provider off for this run; say how to fix it
    │   ├── RateLimited                   ask again after `retry_after` seconds
    │   ├── InvalidRequest                a bug or a bad task: stop
    │   ├── NotFound                      the thing is gone, or not visible yet
    │   ├── ProviderUnavailable           no answer; unknown is not gone
    │   └── Ambiguous                     it may have been created: look before doing anything else
    ├── HomeError                     1   the object store of the job
    │   ├── HomeUnavailable               no answer in time; ask again
    │   ├── HomeAccessDenied              the key does not reach this prefix
    │   ├── HomeAccessExpired             the key did, once: renew it
    │   └── SnapshotCorrupt               a blob does not hash to its name, or is missing
    ├── NothingAvailable              75  no offer within price and capacity now; cron may try again
    ├── JobNotFound                   102
    └── JobEnded                      the job ended otherwise than by success
        ├── JobFailed                 100
        ├── JobUnfinished             101 time ran out while waiting, or a verdict is not proven
        ├── JobStopped                103
        └── LimitReached              104 budget or deadline; the newest snapshot is safe

Exit codes 100-103 are SkyPilot's, so scripts carry over; 75 and 78 are sysexits' EX_TEMPFAIL and EX_CONFIG.
"""

from __future__ import annotations


class BrokerError(Exception):
    """Something that spotbroker refuses or cannot do.

    `fix` is the next thing to try, as one line a person can act on; it may be empty.
    """

    exit_code = 1

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class ConfigError(BrokerError):
    """The configuration, the environment or an argument is wrong."""

    exit_code = 78


class TaskError(ConfigError):
    """A task file is wrong; the text starts with `file:line:column` where these are known."""

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        line: int | None = None,
        column: int | None = None,
        field: str = "",
        fix: str = "",
    ) -> None:
        place = ":".join(str(part) for part in (file, line, column) if part not in ("", None))
        super().__init__(f"{place}: {message}" if place else message, fix=fix)
        self.file, self.line, self.column, self.field = file, line, column, field


class ProviderError(BrokerError):
    """A provider's refusal. Raised itself, it is an answer nobody has classified: try the next offer.

    `provider` names the adapter and `code` is the provider's own word, kept exactly as it came.
    """

    def __init__(self, message: str, *, provider: str = "", code: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.provider = provider
        self.code = code


class NoCapacity(ProviderError):
    """The offer cannot be had now. Take the next one and let this one cool down."""


class QuotaExceeded(ProviderError):
    """The account may not rent more within `scope`. Waiting does not help; skip the scope.

    `scope` is a prefix of offer keys, such as `aws/us-east-1`, `aws/us-east-1/spot` or `aws/us-east-1/*/p5*/spot`.
    """

    def __init__(self, message: str, *, scope: str, provider: str = "", code: str = "", fix: str = "") -> None:
        super().__init__(message, provider=provider, code=code, fix=fix)
        self.scope = scope


class AuthFailed(ProviderError):
    """Credentials are missing, wrong or not allowed to do this. The provider is off for this run."""

    exit_code = 78


class RateLimited(ProviderError):
    """Too many calls. Ask again after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float, provider: str = "", code: str = "", fix: str = "") -> None:
        super().__init__(message, provider=provider, code=code, fix=fix)
        self.retry_after = retry_after


class InvalidRequest(ProviderError):
    """The provider will never accept this request: a bug here, or a task that asks the impossible."""


class NotFound(ProviderError):
    """No such instance: gone, or not visible yet just after its launch."""


class ProviderUnavailable(ProviderError):
    """The provider did not answer, or answered with a fault of its own. Unknown is not gone."""


class Ambiguous(ProviderError):
    """A launch may or may not have created a machine. Look by tag before anything else."""


class HomeError(BrokerError):
    """The object store that keeps a job's snapshots did not do what was asked."""


class HomeUnavailable(HomeError):
    """The store did not answer in time. Ask again."""


class HomeAccessDenied(HomeError):
    """The key does not reach this part of the store."""


class HomeAccessExpired(HomeError):
    """The key has expired. Renew it."""


class SnapshotCorrupt(HomeError):
    """A snapshot's blob is missing or does not hash to its name. Its predecessor is used."""


class NothingAvailable(BrokerError):
    """No offer fits within price and capacity now."""

    exit_code = 75


class JobNotFound(BrokerError):
    """No job of that name or id is known here."""

    exit_code = 102


class JobEnded(BrokerError):
    """The job ended otherwise than by success; `job` is its id."""

    exit_code = 100

    def __init__(self, message: str, *, job: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.job = job


class JobFailed(JobEnded):
    """The task's own program failed."""


class JobUnfinished(JobEnded):
    """Not finished within the time given to wait."""

    exit_code = 101


class JobStopped(JobEnded):
    """Stopped by its user."""

    exit_code = 103


class LimitReached(JobEnded):
    """Budget or deadline reached; the newest snapshot is safe."""

    exit_code = 104
