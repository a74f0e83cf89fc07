"""Snapshots on a real S3 server: parts, a killed upload, a file that changes on its way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from clouds.seaweedfs import SeaweedFS

from broker.blobs import Changed, _parts
from broker.complete import Stat
from broker.errors import SnapshotCorrupt
from broker.home import Access, Home, JobKeys
from broker.restore import write_parent
from broker.snapshot import Pace, Snapshotter, restore, restore_newest

KEYS = JobKeys("job-1")
PACE = Pace(chunk=5 << 20, files=2, parts=2)
ROOT = Path(__file__).resolve().parents[2]

PUBLISH = """
import json, sys
from pathlib import Path
from broker.home import Access, Home, JobKeys
from broker.snapshot import Pace, Snapshotter
home = Home(Access.from_json(json.loads(sys.argv[1])))
Snapshotter(home, JobKeys("job-1"), 1, Path(sys.argv[2]), quiet=0, pace=Pace(5 << 20, 1, 1)).publish()
"""


def wait_for(condition: Callable[[], Any], limit: float = 30.0) -> Any:
    deadline = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.005)
    return found


@pytest.fixture
def home(seaweedfs: SeaweedFS) -> Home:
    return Home(Access(seaweedfs.new_home(), seaweedfs.settings()))


def test_a_snapshot_of_many_parts_goes_and_comes_back(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    (folder / "step-1" / "empty").mkdir(parents=True)
    (folder / "step-1" / "große 100%.bin").write_bytes(os.urandom(17 << 20))
    (folder / "step-1" / "small").write_bytes(b"x")
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=0, pace=PACE)
    manifest = snapshotter.publish()
    assert manifest is not None
    assert snapshotter.bytes_uploaded == manifest.size == (17 << 20) + 1
    assert snapshotter.publish() is None
    restore(home, KEYS, manifest, tmp_path / "r", pace=PACE)
    for name in ("große 100%.bin", "small"):
        assert (tmp_path / "r" / "step-1" / name).read_bytes() == (folder / "step-1" / name).read_bytes()
    assert (tmp_path / "r" / "step-1" / "empty").is_dir()


@pytest.mark.parametrize("number", [1, 6], ids=["in parts", "as streams"])
def test_damaged_blobs_are_found(home: Home, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "ckpt"
    folder.mkdir()
    for count in range(number):
        (folder / f"step-{count}.bin").write_bytes(os.urandom((6 << 20) // number))
    write_parent(home, KEYS, 1, None)
    manifest = Snapshotter(home, KEYS, 1, folder, quiet=0, pace=PACE).publish()
    assert manifest is not None
    key = KEYS.blob(manifest.files["step-0.bin"].sha256)
    whole = home.get(key)
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-1], whole[: len(whole) // 2], b"", None):
        if damaged is None:
            home.delete([key])
        else:
            home.put(key, damaged)
        with pytest.raises(SnapshotCorrupt, match="1/1"):
            restore_newest(home, KEYS, 2, tmp_path / "r", {}, pace=PACE)
        assert not list(tmp_path.glob("*r*ing*"))
    home.put(key, whole)
    restored, _problems = restore_newest(home, KEYS, 2, tmp_path / "r", {}, pace=PACE)
    assert restored == manifest
    for path in folder.iterdir():
        assert (tmp_path / "r" / path.name).read_bytes() == path.read_bytes()


def test_a_killed_upload_leaves_no_snapshot(home: Home, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    folder.mkdir()
    (folder / "step-1.bin").write_bytes(os.urandom(120 << 20))
    import json

    bucket = urlsplit(home.url).netloc
    client = seaweedfs.client()
    program = subprocess.Popen(
        [sys.executable, "-c", PUBLISH, json.dumps(home.access.to_json()), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    try:

        def begun() -> Any:
            for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
                found = client.list_parts(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                return found.get("Parts")
            return None

        wait_for(begun)
    finally:
        program.kill()
        assert program.wait() == -9
    assert home.list(KEYS.root) == []
    assert restore_newest(home, KEYS, 2, tmp_path / "r", {1: None}) == (None, ())


def test_a_file_written_to_between_two_parts_gets_no_name(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(bytes(12 << 20))
    os.utime(path, (1000, 1000))
    parts = _parts(path, Stat.of(path.stat()), 5 << 20)

    def meanwhile() -> Any:
        yield next(parts)
        with path.open("r+b") as file:
            file.write(b"new")
        yield from parts

    with pytest.raises(Changed):
        home.store.put(KEYS.blob("0" * 64), meanwhile(), chunk_size=5 << 20, max_concurrency=2)
    assert home.list(KEYS.root) == []
