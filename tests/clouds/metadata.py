"""Metadata services: 169.254.169.254:80 inside one machine's own network, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

ADDRESS = "169.254.169.254"

Answer = tuple[int, Mapping[str, str], bytes]


class Metadata(Protocol):
    """What a cloud answers to one machine. Called from several threads at once."""

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """One request -> status, headers, body.

        path: as sent, with its query. headers: looked up in any case. Content-Length is added. What it raises becomes
        a 500 and a traceback on the runner's stderr.
        """
        ...
