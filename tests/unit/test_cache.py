"""Cache folders: what is kept of them, what comes back, and when it is worth it."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.allowance import Stopwatch, TooSlow, to_restore, to_send
from broker.cache import Cache, CacheKeys, Times, newest
from broker.cachefolders import OURS, CacheFolders, Moving
from broker.errors import HomeError, SnapshotCorrupt
from broker.home import Home, JobKeys

KEYS = JobKeys("j")
UV, HF = "~/.cache/uv", "~/.cache/huggingface"


def open_gate(_octets: int) -> None:
    pass


class Machine:
    """One generation's cache folders, below a home folder of its own."""

    def __init__(self, home: Home, place: Path, generation: int, hides: Callable[[bytes], bool] | None = None) -> None:
        self.root = place / f"machine-{generation}"
        # The program sees them elsewhere, as in a container.
        named = {
            name: (self.root / name.removeprefix("~/"), Path("/root") / name.removeprefix("~/")) for name in (UV, HF)
        }
        self.folders = CacheFolders(home, KEYS.job, generation, named, hides or (lambda _: False))
        self.cache = self.folders.find()

    def write(self, path: str, data: bytes = b"x", mode: int = 0o644) -> Path:
        file = self.root / ".cache" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(mode)
        return file

    def save(self, cold: float | None = None, warm: float | None = None) -> Cache | None:
        return self.folders.save(self.folders.look(), open_gate, Times(cold, warm))

    def bring(self) -> int:
        return self.folders.bring(self.folders.missing(), open_gate)

    def tree(self) -> dict[str, object]:
        """Everything below, with contents, modes, targets and times of writing."""
        found: dict[str, object] = {}
        for path in sorted(self.root.rglob("*")):
            name, state = str(path.relative_to(self.root)), path.lstat()
            if path.is_symlink():
                found[name] = str(path.readlink())
            elif path.is_dir():
                found[name] = stat.S_IMODE(state.st_mode)
            else:
                found[name] = (path.read_bytes(), stat.S_IMODE(state.st_mode), state.st_mtime_ns)
        return found


def blobs(home: Home) -> dict[str, int]:
    return {entry.key.rpartition("/")[2]: entry.size for entry in home.list(f"{KEYS.root}/cache/blobs")}


def fill(machine: Machine) -> None:
    """What Hugging Face and uv make: links to blobs and unpacked wheels, modes, empty and sparse files, odd names."""
    model = "huggingface/hub/models--me--tiny"
    machine.write(f"{model}/blobs/1f", os.urandom(3 << 20))
    machine.write(f"{model}/refs/main", b"abc")
    link = machine.root / ".cache" / model / "snapshots" / "abc" / "model.safetensors"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../blobs/1f")
    machine.write("uv/archive-v0/Xy/bin/tool", b"#!/bin/sh\n", 0o755)
    machine.write("uv/archive-v0/Xy/tool/__init__.py", b"")
    machine.write("uv/archive-v0/Xy/tool/py.typed", b"")
    machine.write("uv/archive-v0/Xy/tool/half.part", b"a package may hold such a name")
    machine.write("uv/ein Name mit Ümläut \U0001f917/data", b"y" * 1000)
    for number in range(50):
        machine.write(f"uv/archive-v0/Xy/tool/m{number}.py", b"%d\n" % number)
    wheel = machine.root / ".cache/uv/wheels-v5/pypi/tool/1.0-py3-none-any"
    wheel.parent.mkdir(parents=True)
    wheel.symlink_to("/root/.cache/uv/archive-v0/Xy")  # as older versions of uv write it
    with machine.write("uv/sparse").open("r+b") as sparse:
        sparse.truncate(1 << 20)
    (machine.root / ".cache/uv/empty").mkdir(mode=0o700)
    os.utime(machine.root / ".cache/uv/archive-v0/Xy/bin/tool", ns=(10**18 + 7, 10**18 + 7))


def test_what_was_saved_comes_back_as_it_was(home: Home, tmp_path: Path) -> None:
    one = Machine(home, tmp_path, 1)
    fill(one)
    saved = one.save(cold=12.5)
    assert saved is not None
    assert len(blobs(home)) == 4  # the model, the sparse file, and for each folder one pack of all that is small
    two = Machine(home, tmp_path, 2)
    assert two.cache == saved
    assert two.bring() == sum(saved.blobs.values())
    wheel = two.root / ".cache/uv/wheels-v5/pypi/tool/1.0-py3-none-any"
    assert (wheel / "bin/tool").read_bytes() == b"#!/bin/sh\n"
    assert wheel.readlink() == Path("../../../archive-v0/Xy")
    wheel.unlink()
    wheel.symlink_to("/root/.cache/uv/archive-v0/Xy")
    assert two.tree() == one.tree()
    assert two.folders.missing() == {}


def test_only_what_is_new_is_uploaded(home: Home, tmp_path: Path) -> None:
    one = Machine(home, tmp_path, 1)
    fill(one)
    one.save()
    before = blobs(home)
    assert one.save() is None
    two = Machine(home, tmp_path, 2)
    two.bring()
    assert two.save(cold=3.0, warm=1.0) is None
    found = newest(home, KEYS)
    assert found is not None
    assert (found[0], found[1].times) == (2, Times(3.0, 1.0))
    assert blobs(home) == before
    two.write("uv/new", b"small and new")
    two.write("huggingface/copy", (two.root / ".cache/huggingface/hub/models--me--tiny/blobs/1f").read_bytes())
    assert two.save() is not None
    new = blobs(home).keys() - before.keys()
    assert [blobs(home)[name] for name in new] == [len(b"small and new")]


def test_a_pack_of_which_little_is_needed_is_packed_anew(home: Home, tmp_path: Path) -> None:
    one = Machine(home, tmp_path, 1)
    for number in range(10):
        one.write(f"uv/{number}", b"%d" % number * 100)
    one.save()
    for number in range(9):
        (one.root / f".cache/uv/{number}").unlink()
    one.save()
    one.write("uv/new")
    saved = one.save()
    assert saved is not None
    assert sum(saved.blobs.values()) == 101
    assert Machine(home, tmp_path, 2).bring() == 101


def test_what_is_written_to_meanwhile_is_left_out_and_named(home: Home, tmp_path: Path) -> None:
    one = Machine(home, tmp_path, 1)
    fill(one)
    log = one.write("huggingface/xet/log", b"a")
    (one.root / ".cache/huggingface/latest").symlink_to("xet/log")
    looks = one.folders.look()
    log.write_bytes(b"ab")
    saved = one.folders.save(looks, open_gate)
    assert saved is not None
    assert list(one.folders.left) == [f"{HF}/xet/log"]
    files = saved.folders[HF].manifest.files
    assert "xet/log" not in files
    assert "hub/models--me--tiny/blobs/1f" in files
    assert "latest" not in saved.folders[HF].manifest.links


def test_nothing_is_saved_while_things_go_away(home: Home, tmp_path: Path) -> None:
    """Of a package that is being deleted half would be kept, and installed on the next machine."""
    one = Machine(home, tmp_path, 1)
    fill(one)
    first = one.save()
    one.write("uv/new")
    looks, gone = one.folders.look(), one.root / ".cache/uv/archive-v0/Xy/tool/m7.py"

    def deleting(_octets: int) -> None:
        gone.unlink(missing_ok=True)

    with pytest.raises(Moving, match=r"m7\.py went away"):
        one.folders.save(looks, deleting)
    found = newest(home, KEYS)
    assert found is not None
    assert found[1] == first


def test_a_token_and_a_file_that_holds_a_secret_stay_behind(home: Home, tmp_path: Path) -> None:
    one = Machine(home, tmp_path, 1, hides=lambda data: b"hf_Secret12345" in data)
    one.write("huggingface/token", b"hf_Another")
    one.write("huggingface/hub/token", b"a file of a model")
    one.write("uv/credentials", b"machine x password hf_Secret12345")
    one.write("uv/log", b"x" * ((1 << 20) - 5) + b"hf_Secret12345" + b"x" * 9)  # across two pieces of it
    one.write("uv/moved/huggingface/token", b"hf_Another")
    one.write("uv/moved/.netrc", b"machine x password hf_Another")
    one.write("uv/.aws/credentials", b"hf_Another")
    one.write("uv/kept")
    saved = one.save()
    assert saved is not None
    assert {f"{name}/{path}" for name in saved.folders for path in saved.folders[name].manifest.files} == {
        f"{HF}/hub/token", f"{UV}/kept",
    }  # fmt: skip
    kept_back = (".aws/credentials", "credentials", "log", "moved/.netrc", "moved/huggingface/token")
    assert set(one.folders.left) == {f"{HF}/token", *(f"{UV}/{path}" for path in kept_back)}
    assert not any(b"hf_" in home.get(entry.key) for entry in home.list(KEYS.root))


def test_what_lies_there_already_stays(home: Home, tmp_path: Path) -> None:
    """An image may bring its own; of what is missing only so much is fetched."""
    one = Machine(home, tmp_path, 1)
    fill(one)
    one.save()
    two = Machine(home, tmp_path, 2)
    two.write("huggingface/hub/models--me--tiny/refs/main", b"the image's own")
    two.write("huggingface/hub/models--image--big/blobs/2e", b"big")
    two.bring()
    hub = two.root / ".cache/huggingface/hub"
    assert (hub / "models--me--tiny/refs/main").read_bytes() == b"the image's own"
    assert (hub / "models--image--big/blobs/2e").read_bytes() == b"big"
    assert (hub / "models--me--tiny/snapshots/abc/model.safetensors").stat().st_size == 3 << 20
    assert not list(two.root.rglob(f"{OURS}*"))


def test_nothing_is_put_behind_a_link_that_leads_elsewhere(home: Home, tmp_path: Path) -> None:
    one = Machine(home, tmp_path, 1)
    one.write("uv/a/b", b"from elsewhere")
    one.save()
    two = Machine(home, tmp_path, 2)
    two.write("uv/own")
    (tmp_path / "outside").mkdir()
    (two.root / ".cache/uv/a").symlink_to(tmp_path / "outside")
    with pytest.raises(HomeError, match="is a link"):
        two.bring()
    assert not list((tmp_path / "outside").iterdir())
    assert sorted(path.name for path in (two.root / ".cache/uv").iterdir()) == ["a", "own"]


@pytest.mark.parametrize("how", ["missing", "other content"])
def test_a_damaged_cache_brings_nothing_and_is_stored_anew(home: Home, tmp_path: Path, how: str) -> None:
    one = Machine(home, tmp_path, 1)
    fill(one)
    one.save()
    for name, size in blobs(home).items():
        key = CacheKeys("j").blob(name)
        if size == 3 << 20:
            home.delete([key]) if how == "missing" else home.put(key, b"z" * size)
    two = Machine(home, tmp_path, 2)
    with pytest.raises(SnapshotCorrupt):
        two.bring()
    assert not (two.root / ".cache/huggingface").exists()
    two.folders.distrust()
    assert not list(two.root.rglob(f"{OURS}*"))
    for path in (one.root / ".cache").iterdir():
        target = two.root / ".cache" / path.name
        if not target.exists():
            path.rename(target)
    assert two.save() is not None
    three = Machine(home, tmp_path, 3)
    three.bring()
    assert (three.root / ".cache/huggingface/hub/models--me--tiny/blobs/1f").stat().st_size == 3 << 20


def test_a_damaged_manifest_is_passed_over(home: Home, tmp_path: Path) -> None:
    one = Machine(home, tmp_path, 1)
    fill(one)
    saved = one.save()
    home.put(KEYS.cache(2), b'{"v": 1}')
    assert newest(home, KEYS) == (1, saved)


def test_a_save_that_is_given_up_leaves_the_last_one(home: Home, tmp_path: Path) -> None:
    one = Machine(home, tmp_path, 1)
    fill(one)
    first = one.save()
    one.write("uv/large", os.urandom(1 << 20))

    class NoticedError(Exception):
        pass

    def closed(_octets: int) -> None:
        raise NoticedError

    with pytest.raises(NoticedError):
        one.folders.save(one.folders.look(), closed)
    assert newest(home, KEYS) == (1, first)
    assert not [t for t in threading.enumerate() if t.name.startswith("upload")]
    assert one.save() is not None


@pytest.mark.parametrize(
    ("cold", "warm", "hourly", "egress", "limit", "why"),
    [
        (180.0, None, 0.4, 0.0, 180.0, ""),
        (180.0, 30.0, 0.4, 0.0, 150.0, ""),
        (180.0, 30.0, 32.0, 0.09, 117.5625, ""),  # 3.2 GiB are 0.288 USD, and so 32.4 s of that machine
        (180.0, None, 0.4, 0.09, 0.0, "costs 0.29 USD and spares 180 s, which are 0.02 USD"),
        (20.0, 21.0, 0.4, 0.0, 0.0, "starting takes 20 s without it and 21 s with it"),
        (None, None, 0.4, 0.0, None, ""),
        (None, None, 0.4, 0.09, None, "was never measured"),
    ],
)  # fmt: skip
def test_a_cache_comes_back_where_that_is_faster_and_no_dearer(
    cold: float | None, warm: float | None, hourly: float, egress: float, limit: float | None, why: str
) -> None:
    found, reason = to_restore(int(3.2 * 2**30), Times(cold, warm), hourly, egress)
    assert found == (None if limit is None else pytest.approx(limit, rel=0.01))
    assert why in reason
    assert bool(why) == bool(reason)


@pytest.mark.parametrize(
    ("cold", "hourly", "leaving", "why"),
    [
        (180.0, 0.4, 0.0, ""),
        (180.0, 32.0, 0.09, ""),
        (180.0, 0.4, 0.09, "costs 0.29 USD, and fetching it again 180 s, 0.02 USD on this machine"),
        (None, 0.4, 0.0, ""),
        (None, 0.4, 0.09, "was never measured"),
    ],
)
def test_a_cache_is_sent_where_one_restore_pays_for_it(
    cold: float | None, hourly: float, leaving: float, why: str
) -> None:
    reason = to_send(int(3.2 * 2**30), cold, hourly, leaving)
    assert why in reason
    assert bool(why) == bool(reason)


def test_a_restore_that_turns_out_slow_is_broken_off() -> None:
    now = [0.0]
    watch = Stopwatch(1000, 20.0, lambda: now[0])
    now[0] = 4.0
    watch(100)  # too early to tell
    watch(100)
    now[0] = 6.0
    with pytest.raises(TooSlow, match="would take 30 s"):
        watch(0)
    endless = Stopwatch(1000, None, lambda: now[0])
    now[0] = 1e6
    endless(1)
