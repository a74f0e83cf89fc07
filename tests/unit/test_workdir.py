"""workdir: what goes along, that the same files give the same archive, and that nothing leaves its folder."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError, TaskError
from broker.workdir import Packed, measure, pack, size, unpack


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def put(folder: Path, **files: str) -> None:
    """Names with `__` for `/`; the text may be anything."""
    for name, text in files.items():
        write(folder, name.replace("__", "/"), text)


def write(folder: Path, name: str, text: str = "x") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def packed(folder: Path, *leave_out: str | Path) -> Packed:
    return pack(folder, leave_out, to=folder.parent)


def names(folder: Path, *leave_out: str | Path) -> list[str]:
    """The files and links that are taken."""
    with tarfile.open(packed(folder, *leave_out).path) as archive:
        return [member.name for member in archive if not member.isdir()]


def test_the_same_files_give_the_same_archive(work: Path, tmp_path: Path) -> None:
    put(work, b__one="1", a="2", b__two="3")
    first = packed(work)
    other = tmp_path / "other"
    other.mkdir()
    put(other, b__two="3", a="2", b__one="1")
    os.utime(other / "a", (1, 1))
    second = packed(other)
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.path.read_bytes()[4:8] == bytes(4)  # no time in the header either
    assert first.sha256 == second.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert (first.size, first.files) == (first.path.stat().st_size, 3)
    (other / "a").chmod(0o755)
    assert packed(other).sha256 != first.sha256


def test_modes_links_empty_folders_and_names_survive_the_trip(work: Path, tmp_path: Path) -> None:
    write(work, "run.sh", "#!/bin/sh\n").chmod(0o755)
    write(work, "deep/" * 30 + "ünï ✓ \n.txt", "far")
    (work / "empty").mkdir()
    (work / "link").symlink_to("deep/deep")
    (work / "deep" / "up").symlink_to("../run.sh")
    (work / "dangling").symlink_to("not/there/yet")
    to = tmp_path / "machine" / "work"
    unpack(packed(work).path, to)
    assert (to / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (to / ("deep/" * 30 + "ünï ✓ \n.txt")).read_text() == "far"
    assert (to / "empty").is_dir()
    assert [(to / name).readlink().as_posix() for name in ("link", "deep/up", "dangling")] == [
        "deep/deep", "../run.sh", "not/there/yet"
    ]  # fmt: skip
    # A zip file, so a Python wheel built there, cannot hold a time before 1980.
    assert (to / "run.sh").stat().st_mtime > 315_532_800


def test_ignore_files_nest_as_gits_do(work: Path) -> None:
    write(work, ".gitignore", "*.log\n/build\ndata/\n!keep.log\n# comment\n\\#odd\n")
    write(work, "sub/.gitignore", "!*.log\nlocal\n")
    for name in ("a.log", "keep.log", "build/x", "data/big", "sub/data/big", "sub/b.log", "sub/local", "local", "#odd"):
        write(work, name)
    write(work, "sub/build/x")
    assert names(work) == [".gitignore", "keep.log", "local", "sub/.gitignore", "sub/b.log", "sub/build/x"]


def test_it_takes_what_git_takes(work: Path) -> None:
    lines = [
        "*.o",
        "!main.o",
        "/top",
        "doc/**/*.txt",
        "a/**",
        "!a/keep",
        "**/tmp/",
        "x[0-9]",
        "src/**/",
        "trail\\ ",
        "*/one",
    ]
    write(work, ".gitignore", "\n".join(lines) + "\n")
    write(work, "inner/.gitignore", "!*.o\n/top\nfoo*\n!foobar\n")
    for folder in ("", "a/", "doc/", "doc/deep/", "inner/", "inner/tmp/", "tmp/", "src/", "src/in/"):
        for name in ("main.o", "b.o", "top", "t.txt", "keep", "x1", "xx", "trail ", "one", "foobar", "foo"):
            write(work, folder + name)
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    command = ["git", "-c", "core.excludesFile=", "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(command, cwd=work, check=True, capture_output=True, text=True).stdout
    assert sorted(names(work)) == sorted(name for name in listed.split("\0") if name)


def test_brokerignore_has_the_last_word(work: Path) -> None:
    put(work, data__set="x", model="x", notes="x", data__junk="x")
    write(work, ".gitignore", "data/\nmodel\n")
    write(work, "data/.gitignore", "*\n")
    write(work, ".brokerignore", "!data/\nnotes\njunk\n")
    assert names(work) == [".brokerignore", ".gitignore", "data/.gitignore", "data/set"]


def test_the_repositorys_own_rules_count_above_the_workdir(tmp_path: Path) -> None:
    write(tmp_path, ".git/config")
    write(tmp_path, ".gitignore", "*.ckpt\n/apart/\n")
    work, apart = tmp_path / "part" / "work", tmp_path / "apart" / "work"
    for folder in (work, apart):
        put(folder, a="x")
        write(folder, "w.ckpt")
    assert names(work) == ["a"]
    assert names(apart) == ["a", "w.ckpt"]  # ignored as a whole, yet asked for by name
    (tmp_path / ".git" / "config").unlink()
    (tmp_path / ".git").rmdir()
    assert names(work) == ["a", "w.ckpt"]


def test_secrets_git_caches_and_environments_never_go_along(work: Path) -> None:
    for name in (
        ".env", ".env.local", "sub/.env", "sub/.ENV", "sub/.env.production", ".git/config", "sub/.git",
        ".spotbroker/db",
        "__pycache__/a.pyc", "b.pyc", "venv/pyvenv.cfg", "venv/bin/python", ".DS_Store",
    ):  # fmt: skip
        write(work, name, "hush")
    put(work, env="x", environment="x")
    write(work, ".envrc")
    write(work, ".brokerignore", "!.env\n!.git\n!.env.local\n")
    archive = packed(work)
    assert names(work) == [".brokerignore", ".envrc", "env", "environment"]
    with tarfile.open(archive.path) as opened:
        assert not any(b"hush" in (opened.extractfile(m) or io.BytesIO()).read() for m in opened if m.isfile())


def test_what_is_to_be_left_out_is(work: Path) -> None:
    put(work, checkpoints__old="x", state__db="x", a="x", sub__checkpoints__mine="x")
    assert names(work, "checkpoints", work / "state", "/elsewhere", "~/none") == ["a", "sub/checkpoints/mine"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "../sub/../../outside", "{work}/sub/a"])
def test_a_link_that_leads_out_is_refused_by_name(work: Path, target: str) -> None:
    put(work, sub__a="x")
    (work / "sub" / "bad").symlink_to(target.format(work=work))
    with pytest.raises(TaskError, match="/sub/bad is a link that leads out of the workdir") as caught:
        packed(work)
    assert caught.value.field == "workdir"
    with pytest.raises(TaskError, match="leads out"):
        size(work)
    write(work, ".brokerignore", "bad\n")
    assert names(work) == [".brokerignore", "sub/a"]


AS_NOBODY = """
import os, sys
from pathlib import Path
import pathspec
from broker.errors import ConfigError
from broker.workdir import pack

if os.geteuid() == 0:  # who may read everything
    os.setresuid(65534, 65534, 65534)
try:
    pack(Path(sys.argv[1]), to=Path(sys.argv[2]))
except ConfigError as error:
    print(error)
"""


def test_an_unreadable_file_is_named_and_nothing_is_left() -> None:
    # Not in pytest's own folder, which nobody else may enter.
    with tempfile.TemporaryDirectory() as base:
        work, to = Path(base) / "work", Path(base) / "to"
        to.mkdir()
        write(work, "a/fine", "x")
        write(work, "a/secret").chmod(0)
        Path(base).chmod(0o755)
        to.chmod(0o777)
        command = [sys.executable, "-c", AS_NOBODY, str(work), str(to)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
        assert f"{work}/a/secret cannot be read: Permission denied" in done.stdout
        assert list(to.iterdir()) == []


def test_sockets_and_pipes_stay(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(work, a="x")
    os.mkfifo(work / "pipe")
    monkeypatch.chdir(work)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
        assert names(work) == ["a"]


def test_sizes_are_told_without_packing(work: Path) -> None:
    put(work, a="x" * 10, b__big="x" * 1000, c="x" * 7, ignored="x" * 9999)
    write(work, ".gitignore", "ignored\n")
    told = measure(work)
    assert (told.bytes, told.files, told.biggest[0]) == (10 + 1000 + 7 + 8, 4, ("b/big", 1000))
    assert size(work) == told.bytes
    assert packed(work).biggest == told.biggest
    with pytest.raises(TaskError, match="no such folder"):
        size(work / "none")
    with pytest.raises(TaskError, match="no such folder"):
        size(work / "a")


def evil(path: Path, *members: tuple[str, bytes, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, 3 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"bad") if member.size else None)
    return path


@pytest.mark.parametrize("old_python", [False, True])
@pytest.mark.parametrize(
    "members",
    [
        [("../out", tarfile.REGTYPE, "")],
        [("a/../../out", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, "/tmp")],
        [("link", tarfile.SYMTYPE, ".."), ("link/out", tarfile.REGTYPE, "")],
        [("device", tarfile.CHRTYPE, "")],
    ],
)
def test_unpacking_never_writes_outside(
    tmp_path: Path, members: list[tuple[str, bytes, str]], old_python: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old_python:  # 3.11.0 to 3.11.3 have no filters
        monkeypatch.delattr(tarfile, "data_filter")
    to = tmp_path / "in" / "to"
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        unpack(evil(tmp_path / "evil.tar.gz", *members), to)
    assert not (tmp_path / "in" / "out").exists()
    assert not (to / "link").exists()


def test_a_damaged_archive_is_refused(work: Path, tmp_path: Path) -> None:
    write(work, "a", "x" * 100_000)
    path = packed(work).path
    for raw in (path.read_bytes()[:-30], b"not a tar", b""):
        path.write_bytes(raw)
        with pytest.raises(ConfigError, match="cannot be unpacked"):
            unpack(path, tmp_path / "to")


def test_unpacking_needs_the_standard_library_only(work: Path, tmp_path: Path) -> None:
    put(work, a="here")
    code = (
        "import sys; sys.modules['pathspec'] = None\nfrom pathlib import Path; from broker.workdir import unpack\n"
        "unpack(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, str(packed(work).path), str(tmp_path / "to")]
    subprocess.run(command, check=True, cwd=root)
    assert (tmp_path / "to" / "a").read_text() == "here"


parts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(files=st.dictionaries(parts, st.binary(max_size=200), max_size=5))
def test_any_name_and_content_come_through(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    base = tmp_path_factory.mktemp("trip")
    work, to = base / "work", base / "to"
    work.mkdir()
    kept: dict[str, bytes] = {}
    for name, content in files.items():
        if not name.startswith((".", "__pycache__")) and not name.endswith(".pyc") and len(name.encode()) < 200:
            (work / name).write_bytes(content)
            kept[name] = content
    unpack(packed(work).path, to)
    assert {path.name: path.read_bytes() for path in to.iterdir()} == kept
