"""What setup downloads is downloaded once: not again after a move, nor by the next job of the name."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from crash.harness import Site

from broker import engine
from broker.home import JobKeys
from broker_local.cloud import take_back

# As Hugging Face's library does: a blob, and a link to it; what is there is not asked for again.
DOWNLOAD = """
import os, sys, urllib.request
cache = os.path.expanduser("~/.cache/hub")
link = cache + "/snapshots/main/weights"
if not os.path.exists(link):
    os.makedirs(cache + "/blobs"), os.makedirs(os.path.dirname(link))
    urllib.request.urlretrieve(sys.argv[1], cache + "/blobs/1f")
    os.symlink("../../blobs/1f", link)
assert os.path.getsize(link) == 1 << 20
"""


@pytest.fixture
def slow() -> Iterator[tuple[str, list[str]]]:
    """A server that takes a second for a file of 1 MiB, and what was asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            for _ in range(4):
                time.sleep(0.25)
                self.wfile.write(b"w" * (1 << 18))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/weights", asked
    server.shutdown()
    server.server_close()


def test_a_download_is_made_once(site: Site, slow: tuple[str, list[str]]) -> None:
    url, asked = slow
    (site.work / "download.py").write_text(DOWNLOAD)
    setup = f"{sys.executable} download.py {url}"
    task = site.task("count", pause=0.04, setup=setup, cache=("~/.cache/hub",))
    with engine.running(site.config) as live:
        job = site.submit(task)
        live.drive(job.id)
        saved = site.event(job, "cache", 1)
        assert saved.text.startswith("cache saved: 1.0 MiB in 1 files")
        site.event(job, "snapshot", 1)
        take_back(site.root, site.machine(job, 1).id, "vast")
        site.done(job)
        site.audit(lost_at_most=60)
        restored = site.event(job, "cache", 2)
        assert restored.text.startswith("cache restored: 1.0 MiB in ")
        assert "; fetching again took " in restored.text
        assert asked == ["/weights"]

        # The next night's job, whose own machine has a key for that job alone.
        following = site.submit(site.task("count", steps=20, setup=setup, cache=("~/.cache/hub",)))
        live.drive(following.id)
        site.done(following)
        assert following.status == "succeeded"
        told = [event.text for event in following.events() if event.kind == "cache"]
        assert told[0] == f"cache of {job.id} taken over: 1.0 MiB"
        assert told[1].startswith("cache restored, of an earlier job: 1.0 MiB in ")
        assert asked == ["/weights"]
        blobs = {Path(entry.key).name for entry in following.home.list(JobKeys(following.id).cached("").rstrip("/"))}
        assert len(blobs) == 1
        assert not list(Path.home().glob(".cache/hub"))
