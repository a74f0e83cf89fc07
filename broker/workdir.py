"""A task's workdir: packed for the trip on the broker's side, unpacked on the machine.

The same files give the same archive, byte for byte, so an unchanged workdir is known by its hash. Left behind are: what
`.gitignore` says (nested, and those above the workdir up to the repository's root), what `.brokerignore` says (the same
syntax; it has the last word, so `!data/` brings back what git ignores), caches and virtual environments, which work
nowhere else, and always `.git` and every `.env`: what is secret travels as `secrets:`.

Only the standard library is needed for `unpack`: the guest imports this module.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from broker.errors import ConfigError, TaskError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

SINGLE = "file"  # the name of the only member of what `pack_file` made
LARGE = 500 * 1000 * 1000  # bytes above which a person is asked before a workdir is sent
# What every packed file's time is set to. Not zero: zip files, and so Python wheels, cannot hold a time before 1980.
MTIME = 946_684_800  # 2000-01-01 UTC
IGNORE_FILES = (".brokerignore", ".gitignore")  # in the order in which they are asked
OUTPUTS = ".spotbroker-outputs"  # marks a folder of results: what was pulled does not travel with the next job
_NEVER = {".git", ".spotbroker", ".env"}
_CACHES = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", ".DS_Store"}
_BIGGEST = 5


@dataclass(frozen=True, slots=True)
class Size:
    """How big a workdir is before packing: bytes, number of files, and the biggest of them as (path, bytes)."""

    bytes: int
    files: int
    biggest: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed workdir: the archive (tar.gz), its SHA-256 and size in bytes; files and biggest as in `Size`.

    The archive is a temporary file; its taker removes it.
    """

    path: Path
    sha256: str
    size: int
    files: int
    biggest: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str  # POSIX path relative to the workdir
    path: Path
    stat: os.stat_result


def size(folder: Path, leave_out: Iterable[str | Path] = ()) -> int:
    """Bytes that `pack` would take, without packing them. Raises as `pack` does."""
    return measure(folder, leave_out).bytes


def measure(folder: Path, leave_out: Iterable[str | Path] = (), *, everything: bool = False) -> Size:
    """What `pack` would take, without packing it. Raises as `pack` does."""
    return _size(list(_walk(folder, leave_out, everything=everything)))


def pack(
    folder: Path, leave_out: Iterable[str | Path] = (), *, to: Path | None = None, everything: bool = False
) -> Packed:
    """Pack a workdir into a new temporary file, in the folder `to` if one is given.

    leave_out: paths, absolute or relative to the workdir, that are not taken, such as the checkpoint's folder or the
    broker's own state. everything: also what git ignores, caches and `.git`, since a folder of data was asked for by
    name. Modes and links inside the workdir are kept; empty folders too.

    Raises TaskError for a link that leads out of the workdir, and ConfigError for what cannot be read; both name it.
    """
    return _pack(list(_walk(folder, leave_out, everything=everything)), to)


def pack_file(path: Path, *, to: Path | None = None) -> Packed:
    """Pack one file, whatever its name, as the only member of an archive. Raises ConfigError if it cannot be read."""
    real = Path(os.path.realpath(path))
    return _pack([_Entry(SINGLE, real, _reading(real, real.stat))], to)


def _pack(entries: Sequence[_Entry], to: Path | None) -> Packed:
    handle, name = tempfile.mkstemp(prefix="workdir-", suffix=".tar.gz", dir=to)
    try:
        with os.fdopen(handle, "wb") as file:
            hashing = _Hashing(file)
            # Level 3: a third of the time of the usual 6 for some 5 % more bytes, and the user is waiting.
            with (
                gzip.GzipFile("", "wb", 3, cast("IO[bytes]", hashing), mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                for entry in entries:
                    _add(archive, entry)
    except BaseException:
        Path(name).unlink()
        raise
    sizes = _size(entries)
    return Packed(Path(name), hashing.sha256.hexdigest(), hashing.size, sizes.files, sizes.biggest)


def mark_outputs(folder: Path) -> None:
    """Have `pack` leave out a folder of results that lies in a workdir."""
    (folder / OUTPUTS).write_text("What a job has made: it stays behind when this folder's parent is a workdir.\n")


def unpack(archive: Path, to: Path) -> None:
    """Unpack what `pack` made into the folder `to`, made if missing. Nothing is ever written outside it.

    Raises ConfigError for an archive that is damaged or tries to.
    """
    to.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r:gz") as packed:
            if hasattr(tarfile, "data_filter"):
                packed.extractall(to, filter="data")
            else:  # Python 3.11 before 3.11.4, as Debian 12 has it
                for member in packed:
                    _refuse_unsafe(member)
                packed.extractall(to)  # noqa: S202 - every member was looked at just before
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise ConfigError(f"the packed workdir cannot be unpacked: {error}") from error


def _refuse_unsafe(member: tarfile.TarInfo) -> None:
    """What tarfile's own filter refuses, for the Pythons that have none."""
    target = PurePosixPath(member.name).parent / member.linkname if member.issym() else PurePosixPath(member.name)
    inside = not os.path.normpath(target).startswith("..") and not target.is_absolute()
    if not inside or not (member.isfile() or member.isdir() or member.issym()):
        raise tarfile.TarError(f"{member.name} leads out of the folder")


class _Hashing:
    """A file to write to that hashes and counts what passes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size += len(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def _size(entries: Sequence[_Entry]) -> Size:
    files = [(entry.name, entry.stat.st_size) for entry in entries if stat.S_ISREG(entry.stat.st_mode)]
    biggest = sorted(files, key=lambda file: (-file[1], file[0]))[:_BIGGEST]
    return Size(sum(count for _, count in files), len(files), tuple(biggest))


def _add(archive: tarfile.TarFile, entry: _Entry) -> None:
    member = tarfile.TarInfo(entry.name)
    member.mtime = MTIME
    member.mode = stat.S_IMODE(entry.stat.st_mode) & 0o777
    if stat.S_ISLNK(entry.stat.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, _reading(entry.path, lambda: str(entry.path.readlink()))
        archive.addfile(member)
    elif stat.S_ISDIR(entry.stat.st_mode):
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    else:
        member.size = entry.stat.st_size
        with _reading(entry.path, lambda: entry.path.open("rb")) as file:
            try:
                archive.addfile(member, file)
            except OSError as error:
                if error.errno is not None:  # writing the archive: a full disk
                    raise
                raise ConfigError(f"{entry.path} became shorter while it was packed", fix="try again") from error


def _reading(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}", fix="mend it, or name it in .brokerignore"
        ) from error


def _walk(folder: Path, leave_out: Iterable[str | Path], *, everything: bool = False) -> Iterator[_Entry]:
    """Everything that goes along, sorted by name, folders before what is in them."""
    root = folder.expanduser().resolve()
    if not root.is_dir():
        raise TaskError(f"no such folder: {folder}", field="workdir")
    left = {Path(os.path.normpath(root / Path(path).expanduser())) for path in leave_out}
    ignored = _Ignored(root, everything=everything)
    pending = [root]
    while pending:
        here = pending.pop()
        ignored.enter(here)
        names = sorted(_reading(here, partial(os.listdir, here)))
        folders = []
        for name in names:
            path = here / name
            found = _reading(path, path.lstat)
            is_folder = stat.S_ISDIR(found.st_mode)
            if path in left or (_never(name) and not (everything and name == ".git")) or ignored(path, is_folder):
                continue
            if stat.S_ISLNK(found.st_mode):
                _refuse_outside(path, root, "folder" if everything else "workdir")
            elif not (is_folder or stat.S_ISREG(found.st_mode)):
                continue  # sockets, pipes and devices mean nothing elsewhere
            if is_folder and not everything and (path / OUTPUTS).is_file():
                continue
            yield _Entry(path.relative_to(root).as_posix(), path, found)
            if is_folder:
                folders.append(path)
        pending.extend(reversed(folders))


def _never(name: str) -> bool:
    lower = name.lower()
    return lower in _NEVER or lower.startswith(".env.")


def _refuse_outside(link: Path, root: Path, what: str) -> None:
    target = _reading(link, link.readlink)
    if target.is_absolute() or not Path(os.path.realpath(link)).is_relative_to(root):
        raise TaskError(
            f"{link} is a link that leads out of the {what}, to {target}",
            field="workdir" if what == "workdir" else "file_mounts",
            fix="replace it by a copy of what it points to, or name it in .brokerignore",
        )


class _Ignored:
    """Says whether a path stays behind. Git's rules: the deepest file with a word on it decides, by its last one."""

    def __init__(self, root: Path, *, everything: bool) -> None:
        self.root = root
        self.kinds = IGNORE_FILES[:1] if everything else IGNORE_FILES
        self.everything = everything
        self.specs: dict[tuple[str, Path], GitIgnoreSpec] = {}
        above = [] if everything else self._above()
        for folder in above:
            self._read(folder, ".gitignore")
        if any(self._said(".gitignore", path, folder=True) for path in (root, *root.parents) if above):
            # The workdir itself is ignored where it lies, yet it was asked for: the rules above are not for it.
            self.specs.clear()

    def _above(self) -> list[Path]:
        """The folders above the workdir, up to its repository's root; none outside a repository."""
        if (self.root / ".git").exists():
            return []
        parents = list(self.root.parents)
        roots = [number for number, folder in enumerate(parents) if (folder / ".git").exists()]
        return parents[: roots[0] + 1] if roots else []

    def enter(self, folder: Path) -> None:
        for kind in self.kinds:
            self._read(folder, kind)

    def _read(self, folder: Path, kind: str) -> None:
        from pathspec import GitIgnoreSpec

        path = folder / kind
        if path.is_file():
            text = _reading(path, lambda: path.read_text(encoding="utf-8", errors="replace"))
            try:
                self.specs[kind, folder] = GitIgnoreSpec.from_lines(
                    map(_as_git_means, text.replace("\r\n", "\n").split("\n"))
                )
            except ValueError as error:
                raise ConfigError(f"{path} has a line that is no pattern: {error}", fix=f"mend {path}") from error

    def _said(self, kind: str, path: Path, *, folder: bool) -> bool | None:
        """True: ignored, False: taken all the same, None: nothing said."""
        for above in path.parents:
            spec = self.specs.get((kind, above))
            if spec is not None:
                name = path.relative_to(above).as_posix() + ("/" if folder else "")
                if (said := spec.check_file(name).include) is not None:
                    return said
        return None

    def __call__(self, path: Path, folder: bool) -> bool:
        for kind in self.kinds:
            if (said := self._said(kind, path, folder=folder)) is not None:
                return said
        if self.everything:
            return False
        # A virtual environment holds absolute paths and would not run anywhere else.
        return path.name in _CACHES or path.suffix == ".pyc" or (folder and (path / "pyvenv.cfg").is_file())


def _as_git_means(line: str) -> str:
    """`a/**` is what is in `a`, not `a` itself; pathspec (1.1) takes both, and then `!a/keep` could not help."""
    bare = line.rstrip()
    if bare.endswith("/**"):
        return f"{bare}/*"
    return f"{bare}*/" if bare.endswith("/**/") else line
