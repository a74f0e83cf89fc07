"""Snapshot and restore against the raw speed of the same store, in the same run.

    python benchmarks/snapshot.py [--size MIB] [--runs N]

1 GiB in 8 files goes to a real S3 server (SeaweedFS, started here) and back, by `Snapshotter.publish` and `restore`,
and by bare obstore calls with the same part size, the same number at once and the same disk. The two take turns;
medians are compared. What a snapshot does beyond that is hash everything, once each way. Then an unchanged folder is
published again, which must send nothing. The last line is the figure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from clouds.seaweedfs import running  # noqa: E402

from broker.home import Access, Home, JobKeys  # noqa: E402
from broker.snapshot import Pace, Snapshotter, restore  # noqa: E402

FILES = 8


def fill(folder: Path, size: int) -> None:
    folder.mkdir()
    for number in range(FILES):
        with (folder / f"part-{number}.bin").open("wb") as file:
            for _ in range(0, size // FILES, 1 << 20):
                file.write(os.urandom(1 << 20))


def raw_up(home: Home, folder: Path, prefix: str, pace: Pace) -> None:
    def send(path: Path) -> None:
        key = f"{prefix}/{path.name}"
        home.store.put(key, path, chunk_size=pace.part(path.stat().st_size), max_concurrency=pace.parts)

    with ThreadPoolExecutor(pace.files) as pool:
        list(pool.map(send, sorted(folder.iterdir())))


def raw_down(home: Home, folder: Path, prefix: str, to: Path, pace: Pace) -> None:
    to.mkdir()

    def get(key: str, descriptor: int, start: int, length: int) -> None:
        os.pwrite(descriptor, home.store.get_range(key, start=start, length=length), start)

    with ThreadPoolExecutor(pace.files * pace.parts) as pool:
        waiting = []
        files = []
        for path in sorted(folder.iterdir()):
            file = (to / path.name).open("wb", buffering=0)
            files.append(file)
            size = path.stat().st_size
            for start in range(0, size, pace.chunk):
                length = min(pace.chunk, size - start)
                waiting.append(pool.submit(get, f"{prefix}/{path.name}", file.fileno(), start, length))
        for future in waiting:
            future.result()
        for file in files:
            file.close()


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(home: Home, scratch: Path, size: int, runs: int) -> tuple[float, float, int]:
    """(ratio up, ratio down, bytes sent for an unchanged folder)"""
    pace = Pace()
    folder = scratch / "checkpoint"
    fill(folder, size)
    times: dict[str, list[float]] = {"raw up": [], "up": [], "raw down": [], "down": []}
    again = 0
    for run in range(runs + 1):
        keys = JobKeys(f"run-{run}")
        prefix = f"{keys.root}/raw"
        snapshotter = Snapshotter(home, keys, 1, folder, quiet=0.0)

        def down(keys: JobKeys = keys, snapshotter: Snapshotter = snapshotter) -> None:
            assert snapshotter.last is not None
            restore(home, keys, snapshotter.last, scratch / "restored")

        def up_raw(prefix: str = prefix) -> None:
            raw_up(home, folder, prefix, pace)

        def down_raw(prefix: str = prefix) -> None:
            raw_down(home, folder, prefix, scratch / "raw", pace)

        for pair in ((("raw up", up_raw), ("up", snapshotter.publish)), (("raw down", down_raw), ("down", down))):
            for name, work in pair if run % 2 else reversed(pair):
                took = timed(work)
                if run:  # the first round warms the server's volumes and the page cache
                    times[name].append(took)
        sent = snapshotter.bytes_uploaded
        assert sent == size, f"{sent} bytes sent instead of {size}"
        assert snapshotter.publish() is None
        again += snapshotter.bytes_uploaded - sent
        for name in ("restored", "raw"):
            shutil.rmtree(scratch / name)
        home.delete(entry.key for entry in home.list(keys.root))
    for name, values in times.items():
        print(f"{name:>8}: median {statistics.median(values):6.2f} s of {[round(value, 2) for value in values]}")
    median = {name: statistics.median(values) for name, values in times.items()}
    return median["up"] / median["raw up"], median["down"] / median["raw down"], again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="MiB in all (default 1024)")
    parser.add_argument("--runs", type=int, default=5, help="measured runs (default 5)")
    options = parser.parse_args()
    size = options.size // FILES * FILES << 20
    scratch = Path(tempfile.mkdtemp(prefix="spotbroker-benchmark-"))
    try:
        with running() as server:
            home = Home(Access(server.new_home(), server.settings()))
            up, down, again = measure(home, scratch, size, options.runs)
    finally:
        shutil.rmtree(scratch)
    print(
        f"snapshot {up:.2f}x, restore {down:.2f}x the time of raw obstore "
        f"({size >> 20} MiB in {FILES} files, SeaweedFS, medians of {options.runs}); unchanged: {again} bytes sent"
    )


if __name__ == "__main__":
    main()
