"""The installation's key, and what is kept encrypted under it: the secrets of jobs that have not ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from broker.errors import ConfigError

KEY_FILE = "installation.key"


def _key(state: Path) -> bytes:
    from cryptography.fernet import Fernet

    path = state / KEY_FILE
    try:
        return path.read_bytes().strip()
    except FileNotFoundError:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = state / f"{KEY_FILE}.{os.getpid()}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(Fernet.generate_key())
        file.flush()
        os.fsync(file.fileno())
    try:
        # A link, unlike a rename, fails when another process was first; then its key is the key.
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return path.read_bytes().strip()


def seal(state: Path, secrets: Mapping[str, str]) -> bytes | None:
    """Encrypt secrets under the installation's key (made at first use, 0600); None for none."""
    if not secrets:
        return None
    from cryptography.fernet import Fernet

    return bytes(Fernet(_key(state)).encrypt(json.dumps(dict(secrets)).encode()))


def unseal(state: Path, sealed: bytes | None) -> dict[str, str]:
    """Decrypt what `seal` made. Raises ConfigError where the key is another one."""
    if not sealed:
        return {}
    from cryptography.fernet import Fernet, InvalidToken

    try:
        data: dict[str, str] = json.loads(Fernet(_key(state)).decrypt(sealed))
    except (InvalidToken, ValueError) as error:
        raise ConfigError(
            f"this job's secrets were sealed under another key than {state / KEY_FILE}",
            fix="run this on the machine that submitted the job, or copy that file here",
        ) from error
    return data
