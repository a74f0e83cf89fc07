"""Whether restored files are read, as the kernel tells it: real readers, writers and movers in other processes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.guest.opened import Opened


def made(folder: Path) -> Opened:
    for name, content in (("a", "weights"), ("b", "state"), ("empty", "")):
        (folder / name).write_text(content)
    return Opened(folder, ["a", "b", "empty", "gone"])


def shell(folder: Path, script: str) -> None:
    subprocess.run(["sh", "-c", script], cwd=folder, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("script", "read"),
    [
        ("true", 0),
        ("ls -l; stat a; test -f a; find . -name a", 0),  # names are no content
        ("cat a", 1),
        ("cat a b", 2),
        ("head -c 1 a; rm a", 1),  # read and gone before anybody looks
        ("cat a; mv a c; echo new > a", 1),
        ("echo more >> a", 0),
        ("echo over > a", 0),
        ("rm a; mv b c; touch c", 0),
        ("echo new > .a; mv .a a; cat a", 0),  # what took its place is not what was restored
        ("mv a c; cat c", 0),  # after a change the guest itself reads: only what comes before counts
        ("exec 3>>a; chmod 600 a; cat a; echo x >&3", 0),  # once it has changed others may read it too
        ("exec 3>>a; chmod 600 a; echo x >&3", 0),
        ("exec 3<>a; read -r line <&3; echo x >&3", 1),  # in place
    ],
)
def test_what_counts_as_read(tmp_path: Path, script: str, read: int) -> None:
    opened = made(tmp_path)
    shell(tmp_path, script)
    opened.end()
    assert (opened.read, opened.of, opened.why) == (read, 2, "")
    assert (opened.first is not None) == bool(read)


def test_a_file_mapped_into_memory_and_kept_was_read(tmp_path: Path) -> None:
    opened = made(tmp_path)
    with (tmp_path / "a").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert not opened.poll()
    (tmp_path / "a").unlink()
    opened.end()
    assert (opened.read, opened.first) == (1, "a")
    mapped.close()


def test_it_is_known_at_once_and_told_once(tmp_path: Path) -> None:
    opened = made(tmp_path)
    shell(tmp_path, "cat a")
    assert opened.poll()
    shell(tmp_path, "cat a")
    assert not opened.poll()
    shell(tmp_path, "cat b")
    assert opened.poll()
    assert opened._fd == -1, "once all were read nothing is watched any more"


def test_reads_beyond_what_the_kernel_queues_do_not_make_it_doubtful(tmp_path: Path) -> None:
    opened = made(tmp_path)
    for _ in range(6000):
        for name in ("a", "b"):
            (tmp_path / name).read_bytes()
    opened.end()
    assert (opened.read, opened.why) == (2, "")


def test_a_flood_of_changes_makes_it_doubtful(tmp_path: Path) -> None:
    opened = made(tmp_path)
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 100_000:
        pytest.skip("this system queues too much")
    files = [os.open(tmp_path / name, os.O_WRONLY) for name in ("a", "b")]
    for _ in range(limit // 2 + 10):
        for file in files:
            os.fchmod(file, 0o600)
    opened.poll()
    for file in files:
        os.close(file)
    assert "more happened" in opened.why


def test_where_the_system_refuses_it_cannot_tell(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    code = (
        "import ctypes, os, resource, sys\nfrom pathlib import Path\nfrom broker.guest.opened import Opened\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)); os.open('/', 0)\n"
        "print(Opened(Path(sys.argv[1]), ['a']).why)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "does not report reads: " in done.stdout


def test_empty_files_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "DONE").touch()
    assert Opened(tmp_path, ["DONE"]).why == "every restored file is empty"
    assert Opened(tmp_path, []).of == 0
