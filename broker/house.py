"""This installation itself, looked over for `broker check`: its folders, its command's name, its clock, its home."""

from __future__ import annotations

import contextlib
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path

from broker import buckets, identity
from broker.access import mint, only_identities, own, strangers
from broker.config import APP, Config
from broker.errors import BrokerError, ConfigError, HomeAccessDenied, HomeError
from broker.home import Home, JobKeys, folder_url
from broker.policy.egress import store
from broker.provider import Finding

SKEW = 60.0
"""Seconds that the clock may be wrong: signatures of a store are refused after a quarter of an hour."""
LITTLE = 1 << 30
"""Bytes free in the state folder below which packing a workdir is likely to fail."""


def house(config: Config, *, rents: bool) -> list[Finding]:
    """Everything that is looked at but the providers. rents: real machines are to be rented, which need a real home."""
    return [*name_findings(), state_finding(config), *secret_findings(config), *home_findings(config, rents=rents)]


def name_findings() -> Iterator[Finding]:
    """PyPI has another project whose package and command are called `broker`; one overwrites the other."""
    others = sorted(set(clashing()))
    if others:
        yield Finding(
            "name",
            False,
            f"{' and '.join(others)} installs a package or command `broker` here too, over this one's files",
            f"pip uninstall {' '.join(others)}, then pip install --force-reinstall {APP}; "
            f"or keep each in an environment of its own: uv tool install {APP}",
        )
    command = shutil.which("broker")
    if command is not None and not others and not _is_ours(Path(command)):
        yield Finding(
            "name", False, f"the command `broker` is another program: {command}", f"call this one `{APP}` instead"
        )
    elif not others:
        yield Finding("name", True, "no other project's `broker` is in the way")


def clashing() -> Iterator[str]:
    """Other distributions here that install an import package or a command `broker`."""
    for dist in metadata.distributions():
        name = dist.metadata["Name"] or ""
        if not name or name.lower() == APP:
            continue
        command = any(e.name == "broker" and e.group == "console_scripts" for e in dist.entry_points)
        listed = (dist.read_text("top_level.txt") or "").split()
        if command or "broker" in listed or any(file.parts[0] == "broker" for file in dist.files or () if file.parts):
            yield name


def _is_ours(command: Path) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = command.read_text(encoding="utf-8")
        return "broker.cli" in text or "-m broker" in text
    return False


def state_finding(config: Config) -> Finding:
    """Can the state folder be written, and is there room in it?"""
    state = config.state
    probe = state / f".probe-{uuid.uuid4().hex[:8]}"
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe.write_bytes(b"x")
        probe.unlink()
        free = shutil.disk_usage(state).free
    except OSError as error:
        fix = "make it writable, or name another folder in SPOTBROKER_STATE"
        return Finding("state folder", False, f"{state} cannot be written: {error.strerror or error}", fix)
    if free < LITTLE:
        return Finding("state folder", False, f"{state} has {free / 2**20:.0f} MiB left", "make room on its disk")
    return Finding("state folder", True, f"{state}, {free / 2**30:.0f} GiB free")


def secret_findings(config: Config) -> Iterator[Finding]:
    """Files that hold keys and can be read by others."""
    for path in (config.file, config.state / "installation.key", *sorted((config.state / "keys").glob("*"))):
        with contextlib.suppress(OSError):
            if stat.S_IMODE(path.stat().st_mode) & 0o077 and (path != config.file or _holds_keys(config)):
                yield Finding("secrets", False, f"{path} can be read by other users", f"chmod 600 {path}")


def _holds_keys(config: Config) -> bool:
    return bool(config.home_config or config.providers or config.database)


def home_findings(config: Config, *, rents: bool) -> Iterator[Finding]:
    """Is there a home that machines can reach, and does it do what a home must?"""
    url = config.home or folder_url(config.state / "home")
    if url.startswith("file:") and rents:
        yield Finding(
            "home",
            False,
            f"{url} is a folder on this computer, which no rented machine can reach",
            "broker home setup makes one in an object store",
        )
        return
    try:
        yield proof_of(Home(own(config, url)))
        if url.startswith("s3:"):
            yield _keys(config, url)
            yield from _bucket(config, url)
    except (BrokerError, OSError) as error:
        yield Finding("home", False, str(error), getattr(error, "fix", "") or "broker home setup makes another one")
    if url.startswith("s3:"):
        yield clock_finding(config.home_config.get("endpoint") or "https://s3.amazonaws.com")


def _keys(config: Config, url: str) -> Finding:
    """What key a machine gets: its own, or the home's, which then must tell it nothing that is not the broker's."""
    way = config.home_config.get("mint", "none")
    if only_identities(config.home_config):
        return Finding(
            "home's keys", True, "no machine gets one: machines that have the instance profile alone are rented"
        )
    if way != "none":
        try:
            narrow_proof(config, url)
        except BrokerError as error:
            return Finding("home's keys", False, f"machines' own keys ({way}): {error.message}", error.fix)
        return Finding("home's keys", True, f"each machine gets its own, for its job only ({way}), as tried just now")
    if config.home_config.get("dedicated", "").lower() != "true":
        return Finding("home's keys", True, "machines get the home's own key: marketplace hosts are left out")
    if strange := strangers(config, url):
        fix = "move them elsewhere: marketplace hosts are left out meanwhile"
        seen = ", ".join(strange[:3])
        return Finding("home's keys", False, f"the bucket holds {seen} besides the broker's data", fix)
    return Finding("home's keys", True, "the bucket is the broker's own, so machines may have its key")


def _bucket(config: Config, url: str) -> Iterator[Finding]:
    """What AWS says of a bucket of its own, where it can be asked; nothing of other stores."""
    settings = config.home_config
    whose = store(url, settings)
    if whose not in ("", identity.GIVER):
        return
    try:
        s3 = buckets.client(settings)
    except (ConfigError, ImportError):
        return
    bucket = url.removeprefix("s3://").partition("/")[0]
    kms, known = buckets.encryption(s3, bucket), settings.get("kms_key", "")
    if kms and kms != known:
        fix = f"broker home setup once more, for {url}: it lets them"
        yield Finding("encryption", False, f"by a KMS key that machines' keys may not use: {kms}", fix)
    asked = whose or settings.get("sts_endpoint")  # no other store's key is shown to AWS
    if asked and (foreign := buckets.foreign(s3, bucket, settings)):
        yield foreign


def proof_of(home: Home) -> Finding:
    """Put, list, get, delete and a conditional put, really done. Raises HomeError for what does not work."""
    began = time.monotonic()
    key = f"probe/{uuid.uuid4().hex}"
    made = home.create(key, b"one")
    again = home.create(key, b"two")
    try:
        if home.get(key) not in (b"one", b"two") or key not in {entry.key for entry in home.list("probe")}:
            raise HomeError(f"{home.url} does not give back what was written to it")
    finally:
        home.delete([key])
    if home.find(key) is not None:
        raise HomeError(f"{home.url} still has an object that was deleted")
    spent = time.monotonic() - began
    unable = home.access.config.get("conditional_put") == "disabled" or not made or again
    works = "get, delete and conditional put work"
    if unable:
        works = "get and delete work; it has no conditional put, which is done without"
    return Finding("home", True, f"{home.url}: put, list, {works}; {spent:.1f} s for all")


def narrow_proof(config: Config, url: str) -> None:
    """Mint a key for a job that there is not, for a quarter of an hour, and see that it reaches that job and no other.

    Raises HomeError where it does not, or reaches further.
    """
    job, other = (f"probe-{uuid.uuid4().hex[:12]}" for _ in range(2))
    guest = Home(mint(config, url, job, 1, time.time() + 900))
    broker, keys = Home(own(config, url)), JobKeys(job)
    foreign = JobKeys(other).control
    written = [keys.control, keys.beat(1)]
    broker.put(foreign, b"foreign")
    try:
        for key in written:
            guest.put(key, b"own")
            if guest.get(key) != b"own":
                raise HomeError("a narrow key does not read what it wrote")
        if [entry.key for entry in guest.list(keys.root)][:1] != [keys.control]:
            raise HomeError("a narrow key does not list its own job")
        for what, attempt in (
            ("reads", lambda: guest.get(foreign)),
            ("writes", lambda: guest.put(foreign, b"taken over")),
            ("lists", lambda: guest.list(JobKeys(other).root)),
        ):
            try:
                attempt()
            except HomeAccessDenied:
                continue
            raise HomeError(f"a narrow key {what} another job's objects")
    finally:
        broker.delete([*written, foreign])


def clock_finding(endpoint: str) -> Finding:
    """This computer's clock beside that of a server, by the Date of any answer."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(endpoint, method="HEAD", headers={"User-Agent": APP})  # noqa: S310 - a configured URL
    try:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                told = answer.headers.get("Date")
        except urllib.error.HTTPError as error:
            told = error.headers.get("Date")
        off = time.time() - parsedate_to_datetime(told or "").timestamp()
    except (OSError, ValueError) as error:
        return Finding("clock", True, f"not compared: {endpoint} told no time ({error})")
    if abs(off) > SKEW:
        way = "ahead of" if off > 0 else "behind"
        fix = "switch on the system's time synchronisation: timedatectl set-ntp true"
        return Finding("clock", False, f"{abs(off):.0f} s {way} {endpoint}: stores will refuse what is signed", fix)
    return Finding("clock", True, f"within {max(1, abs(off)):.0f} s of {endpoint}")
