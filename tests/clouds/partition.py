"""A partition between an object store and some of those who use it: a proxy that knows each request by its access key.

Everybody talks to the store through it. `cut` takes one key's traffic away while all others go on, as a broken route
between one machine and the store would; `heal` gives it back.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

EVERYBODY = "*"
LONGEST_HEAD = 65536
LOOK = 0.05  # seconds between two looks at whether a connection may go on
CREDENTIAL = re.compile(rb"(?:Credential=|X-Amz-Credential=)([^/%,&\s]+)(?:/|%2F)", re.IGNORECASE)
CONNECTION = re.compile(rb"\r\nConnection:[^\r\n]*", re.IGNORECASE)


class Partition:
    """A running proxy. endpoint: its URL. served, refused: requests by access key id."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (str(parts.hostname), int(parts.port or 80))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.served: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._cut: dict[str, str] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self, key: str = EVERYBODY, *, how: str = "drop") -> None:
        """Take a key's traffic away, running requests included.

        how: `drop` resets its connections; `hold` is a black hole: nothing passes and nothing is said, and what was
        sent meanwhile by somebody who still waits arrives late, after `heal`.
        """
        with self._changed:
            self._cut[key] = how
            self._changed.notify_all()

    def heal(self, key: str | None = None) -> None:
        """Undo one `cut`, or all of them."""
        with self._changed:
            if key is None:
                self._cut.clear()
            else:
                self._cut.pop(key, None)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._listener.close()
        for thread in self._threads:
            thread.join(5.0)

    # One thread per connection, and one request per connection: the answer always says `Connection: close`.

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="partition", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError, ValueError):
                if select.select([self._listener], [], [], LOOK)[0]:
                    client, _ = self._listener.accept()
                    self._start(self._serve, client)
                    self._threads = [thread for thread in self._threads if thread.is_alive()]

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(120.0)
            head, rest = self._head(client)
            if not head:
                return
            found = CREDENTIAL.search(head)
            key = unquote(found.group(1).decode()) if found else ""
            if not self._passes(key, client):
                self.refused[key] += 1
                return
            self.served[key] += 1
            with socket.create_connection(self._upstream, timeout=120.0) as upstream:
                upstream.sendall(CONNECTION.sub(b"", head) + b"\r\nConnection: close\r\n\r\n" + rest)
                self._relay(client, upstream, key)

    def _head(self, client: socket.socket) -> tuple[bytes, bytes]:
        """The request's head without its empty line, and what came after it."""
        data = b""
        while b"\r\n\r\n" not in data:
            if not self._readable(client) or not (chunk := client.recv(65536)) or len(data) > LONGEST_HEAD:
                return b"", b""
            data += chunk
        head, _, rest = data.partition(b"\r\n\r\n")
        return head, rest

    def _readable(self, client: socket.socket) -> bool:
        while not self._closed:
            if select.select([client], [], [], LOOK)[0]:
                return True
        return False

    def _relay(self, client: socket.socket, upstream: socket.socket, key: str) -> None:
        while self._passes(key, client):
            for ready in select.select([client, upstream], [], [], LOOK)[0]:
                data = ready.recv(65536)
                if not data:
                    return
                (upstream if ready is client else client).sendall(data)

    def _passes(self, key: str, client: socket.socket) -> bool:
        """May this key's traffic pass? Waits in a black hole; False where the connection is reset."""
        with self._changed:
            while not self._closed:
                how = self._cut.get(EVERYBODY) or self._cut.get(key)
                if how is None:
                    return True
                if how == "drop":
                    # Zero linger makes the close a reset.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return False
                self._changed.wait(LOOK)
        return False


@contextmanager
def before(upstream: str) -> Iterator[Partition]:
    """A proxy before the store at that URL, for as long as the block runs."""
    proxy = Partition(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
