"""Makes a server that listens on loopback only reachable at one more address, under the same port."""

from __future__ import annotations

import contextlib
import socket
import threading

CHUNK = 1 << 18


class Relay:
    """Passes every connection to address:port on to 127.0.0.1:port, from its making until `close`."""

    def __init__(self, address: str, port: int) -> None:
        self.port = port
        self._listener = socket.create_server((address, port), backlog=128)
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def close(self) -> None:
        """No more connections; those that are open end with their peers."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="relay", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as server:
            there = threading.Thread(target=_pass, args=(client, server), name="relay", daemon=True)
            there.start()
            _pass(server, client)
            there.join()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
