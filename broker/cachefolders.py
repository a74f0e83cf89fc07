"""`CacheFolders`: a task's cache folders on one machine, saved as they stand and put back whole.

Runs on the rented machine: standard library and obstore only.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from broker.blobs import MIB, Changed, Gate, Pace, Uploads, fetch, free_space, hash_file, read_file, room, settle
from broker.cache import UNTIMED, Cache, CacheKeys, Folder, Pack, Times, newest, told_size
from broker.complete import Stat, read_tree
from broker.errors import HomeError, SnapshotCorrupt
from broker.home import Home, JobKeys
from broker.manifest import File, Manifest
from broker.restore import fill

SMALL = 256 * 1024
"""Bytes up to which a file travels in a pack."""
PACK = 8 * MIB
LARGEST, MOST = 64 * 2**30, 300_000
"""Bytes and files of all folders together beyond which nothing of them is kept."""
OURS = ".spotbroker-"
"""How the names begin of what is put into a cache folder on the way."""
PRIVATE = {
    *("token", "stored_tokens", ".netrc", "_netrc", ".git-credentials", ".pypirc", ".pgpass", ".npmrc", "kaggle.json"),
    *("id_rsa", "id_ecdsa", "id_ed25519", "gh/hosts.yml", ".aws/credentials", ".docker/config.json"),
    *("gcloud/credentials.db", "gcloud/access_tokens.db", "gcloud/application_default_credentials.json"),
}
"""How the paths end of files in which tools keep a user's login, wherever they lie: Hugging Face's two come first."""
LONGEST = 8192
"""Bytes of a secret that lies across two pieces of a file, up to which it is seen."""


class Secret(Exception):  # noqa: N818 - not an error: the file is left out
    """A file holds a secret."""


class Moving(Exception):  # noqa: N818 - not an error: a program goes on writing
    """Something went away while it was saved, so what is left may be half of something. Its text names it."""


@dataclass(frozen=True, slots=True)
class Look:
    """A folder as it lies there at one moment. links: with targets relative to themselves. left: path -> why not."""

    files: Mapping[str, Stat]
    folders: Mapping[str, int]
    links: Mapping[str, str]
    left: Mapping[str, str]


NOTHING = Look({}, {}, {}, {})


def look(folder: Path, seen: Path) -> Look | None:
    """Stat everything in a folder; None where there is none. seen: where its program sees it."""
    files: dict[str, Stat] = {}
    folders: dict[str, int] = {}
    links: dict[str, str] = {}
    left: dict[str, str] = {}
    try:
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(OURS))
    except (FileNotFoundError, NotADirectoryError):
        return None
    for name in names:
        try:
            tree = read_tree(folder, name, whatever=True, seen=seen)
        except FileNotFoundError:
            continue
        files |= tree.files
        folders |= tree.folders
        links |= tree.links
        left |= tree.left_out
    for path in [p for p in files if _private(seen / p)]:
        left[path] = "it is where a login is kept"
        del files[path]
    return Look(files, folders, links, left)


def _private(path: Path) -> bool:
    """Is it where a tool keeps a login? Below a hub's own folder lie models, whatever their files are called."""
    if path.name == "token" and "hub" in path.parts:
        return False
    return path.name in PRIVATE or "/".join(path.parts[-2:]) in PRIVATE


class CacheFolders:
    """The cache folders of one machine, and what the home has of them. Used by one thread at a time.

    folders: name in the task -> (where it lies here, where its program sees it). hides: does this content give a secret
    away? pace: of saving; what is restored is waited for, and comes as fast as a snapshot. last: the newest that the
    home has; of it only what was seen to be sound counts as stored.
    """

    def __init__(
        self,
        home: Home,
        job: str,
        generation: int,
        folders: Mapping[str, tuple[Path, Path]],
        hides: Callable[[bytes], bool] = lambda _: False,
        pace: Pace | None = None,
    ) -> None:
        self.home, self.keys, self.generation = home, CacheKeys(job), generation
        self.folders, self.hides, self.pace = folders, hides, pace or Pace()
        self.last: Cache | None = None
        self.source = generation
        self.left: dict[str, str] = {}
        self.own: dict[str, set[str]] = {}
        self._known: set[str] = set()
        self._hashes: dict[tuple[str, str], tuple[Stat, str]] = {}

    def find(self) -> Cache | None:
        """What the home has for these folders. Raises HomeError."""
        found = newest(self.home, self.keys)
        if found is not None:
            self.source, cache = found
            folders = {name: folder for name, folder in cache.folders.items() if name in self.folders}
            self.last = replace(cache, folders=folders) if folders else None
        self._known = set(self.last.blobs) if self.last is not None else set()
        return self.last

    def distrust(self) -> None:
        """Something of what the home has is damaged: all of it is stored anew."""
        self.last, self._known = None, set()

    def look(self) -> dict[str, Look]:
        """The folders that are there, without what the task has laid into them itself."""
        found = {name: look(here, seen) for name, (here, seen) in self.folders.items()}
        return {name: _without(seen, self.own.get(name, ())) for name, seen in found.items() if seen is not None}

    def lain(self, before: Mapping[str, Look]) -> None:
        """The task has put its own files in place since `before`: no part of a cache, as each job brings its own."""
        for name, now in self.look().items():
            was = before.get(name, NOTHING)
            files = {path for path, found in now.files.items() if was.files.get(path) != found}
            self.own[name] = files | {path for path, to in now.links.items() if was.links.get(path) != to}

    # Restoring

    def missing(self) -> dict[str, Folder]:
        """Of what the home has, what does not lie here. What lies here already stays as it is."""
        found = {}
        for name, folder in (self.last.folders if self.last is not None else {}).items():
            here, manifest = self.folders[name][0], folder.manifest
            files = {path: file for path, file in manifest.files.items() if not os.path.lexists(here / path)}
            links = {path: to for path, to in manifest.links.items() if not os.path.lexists(here / path)}
            contents = {file.sha256 for file in files.values()}
            packs = {sha: pack for sha, pack in folder.packs.items() if contents & pack.members.keys()}
            if files or links:
                found[name] = Folder(replace(manifest, files=files, links=links), folder.times, packs)
        return found

    def bring(self, wanted: Mapping[str, Folder], gate: Gate) -> int:
        """Put what is missing into place, each folder whole or not at all; the bytes fetched.

        Raises SnapshotCorrupt for a missing or damaged blob, HomeError for a full disk, and what the gate raises.
        """
        return sum(self._bring(name, folder, gate) for name, folder in wanted.items())

    def _bring(self, name: str, folder: Folder, gate: Gate) -> int:
        to, manifest = self.folders[name][0], folder.manifest
        inside = to.is_dir()
        place, mark = to if inside else to.parent, uuid.uuid4().hex[:8]
        place.mkdir(parents=True, exist_ok=True)
        for stale in place.glob(f"{OURS}*"):
            shutil.rmtree(stale, ignore_errors=True)
        needed = manifest.size + sum(pack.size for pack in folder.packs.values())
        if needed > (free := free_space(place)):
            raise HomeError(f"{told_size(needed)} are needed at {to}, and {told_size(free)} are free")
        fresh, packs = place / f"{OURS}fresh-{mark}", place / f"{OURS}packs-{mark}"
        try:
            fetched = fill(self.home, self.keys, manifest, fresh, None, partial(_unpacked, folder.packs, packs, gate))
            for path in manifest.files:
                os.utime(fresh / path, ns=(folder.times.get(path, 0),) * 2)
            if inside:
                _lay(fresh, to, manifest)
            else:
                fresh.rename(to)
        finally:
            for left in (fresh, packs):
                shutil.rmtree(left, ignore_errors=True)
        for path, file in manifest.files.items():
            self._hashes[name, path] = (Stat.of((to / path).lstat()), file.sha256)
        return fetched

    def remove(self, brought: Mapping[str, Folder]) -> None:
        """Take out again what was brought; of the rest of the folders nothing."""
        for name, folder in brought.items():
            for path in {*folder.manifest.links, *folder.manifest.files} - self.own.get(name, set()):
                with suppress(OSError):
                    (self.folders[name][0] / path).unlink()
        self.distrust()

    # Saving

    def unsent(self, looks: Mapping[str, Look]) -> int:
        """About how many bytes a save would send: of files that are not known to be stored."""
        packs = [pack for folder in (self.last.folders if self.last else {}).values() for pack in folder.packs.values()]
        stored = self._known.union(*(pack.members for pack in packs))
        return sum(
            found.size
            for name, seen in looks.items()
            for path, found in seen.files.items()
            if (known := self._hashes.get((name, path))) is None or known[0] != found or known[1] not in stored
        )

    def save(self, looks: Mapping[str, Look], gate: Gate, times: Times = UNTIMED) -> Cache | None:
        """Store what has changed, then the manifest; None where only the times are news. looks: what `look` has found.

        Raises Moving where it may not be taken as it is, HomeError, and what the gate raises; the last one stays then.
        """
        files, size = sum(len(seen.files) for seen in looks.values()), size_of(looks)
        if size > LARGEST or files > MOST:
            raise HomeError(
                f"{told_size(size)} in {files:,} files are more than is kept: {told_size(LARGEST)}, {MOST:,} files"
            )
        before = self.last.folders if self.last is not None else {}
        self.left = {}
        folders = {name: self._store(name, seen, before.get(name), gate) for name, seen in looks.items()}
        cache = Cache({**before, **folders}, times, time.time())
        same = self.last is not None and cache.same_content(self.last)
        if same and self.last is not None and times == self.last.times:
            return None
        self.home.put(self.keys.cache(self.generation), cache.to_bytes())
        # A pack of which little is needed by now is no longer counted on, so what is left of it goes into a new one.
        wasteful = {sha for folder in folders.values() for sha in _wasteful(folder)}
        self.last, self._known = cache, cache.blobs.keys() - wasteful
        return None if same else cache

    def _store(self, name: str, seen: Look, before: Folder | None, gate: Gate) -> Folder:
        here = self.folders[name][0]
        packs = {sha: pack for sha, pack in (before.packs if before else {}).items() if sha in self._known}
        left = dict(seen.left)
        files: dict[str, File] = {}
        fresh = _Packing(self.home, self.keys, gate)
        stored = {content for pack in packs.values() for content in pack.members}
        settle(max((found.mtime_ns for found in seen.files.values()), default=0))
        with Uploads(self.home, self.keys, self.pace, self._known, gate) as uploads:
            for path, found in seen.files.items():
                try:
                    content, data = self._content(name, path, found, stored)
                    files[path] = File(content, found.size, found.mode)
                    if found.size > SMALL:
                        uploads.add(content, here / path, found)
                    elif data and content not in stored:
                        fresh.add(content, data)
                        stored.add(content)
                except (Changed, Secret) as why:
                    left[path] = str(why)
            uploads.finish()
        fresh.close()
        left |= self._moved(name, seen, files, uploads.changed)
        for path in left.keys() & files.keys():
            del files[path]
        self.left |= {f"{name}/{path}": why for path, why in left.items()}
        links = {path: to for path, to in seen.links.items() if _target(path, to) not in left}
        tops = dict.fromkeys((path.partition("/")[0] for path in (*files, *links, *seen.folders)), "cache")
        manifest = Manifest(self.generation, 0, time.time(), None, tops, files, {}, seen.folders, links)
        times = {path: seen.files[path].mtime_ns for path in files}
        return Folder(manifest, times, _used({**packs, **fresh.packs}, manifest))

    def _content(self, name: str, path: str, found: Stat, stored: set[str]) -> tuple[str, bytes | None]:
        """The content's hash, and a small one itself where it is not stored yet. Raises Changed and Secret."""
        here = self.folders[name][0] / path
        known = self._hashes.get((name, path))
        content = known[1] if known is not None and known[0] == found else None
        if content is not None and (found.size > SMALL or not found.size or content in stored):
            return content, None
        if found.size > SMALL:
            content, data = hash_file(here, found, see=self._seeing()), None
        else:
            data = read_file(here, found)
            self._seeing()(data)
            content = sha256(data).hexdigest()
        self._hashes[name, path] = (found, content)
        return content, data

    def _seeing(self) -> Callable[[bytes | memoryview], None]:
        """Looks at a file's pieces, one after the other, for secrets. It raises Secret."""
        last = b""

        def see(piece: bytes | memoryview) -> None:
            nonlocal last
            data = last + bytes(piece)
            if self.hides(data):
                raise Secret("it holds a secret")
            last = data[-LONGEST:]

        return see

    def _moved(
        self, name: str, seen: Look, files: Mapping[str, File], changed: Mapping[str, str]
    ) -> Iterator[tuple[str, str]]:
        """What was written to meanwhile, with the reason. Raises Moving where something went away."""
        now = look(*self.folders[name])
        if now is None or (gone := sorted(files.keys() - now.files.keys())):
            raise Moving(f"{name}/{gone[0] if now is not None else ''} went away while it was saved")
        for path, file in files.items():
            if file.sha256 in changed or now.files[path] != seen.files[path]:
                yield path, changed.get(file.sha256) or "it changed while it was read"


class _Packing:
    """Small contents on their way into packs, stored one pack after the other."""

    def __init__(self, home: Home, keys: JobKeys, gate: Gate) -> None:
        self.home, self.keys, self.gate = home, keys, gate
        self.packs: dict[str, Pack] = {}
        self._data = bytearray()
        self._places: dict[str, tuple[int, int]] = {}

    def add(self, content: str, data: bytes) -> None:
        if content in self._places:
            return
        self._places[content] = (len(self._data), len(data))
        self._data += data
        if len(self._data) >= PACK:
            self.close()

    def close(self) -> None:
        """Store what is waiting."""
        if not self._data:
            return
        self.gate(len(self._data))
        data = bytes(self._data)
        name = sha256(data).hexdigest()
        with room(self.home.url):
            self.home.put(self.keys.blob(name), data)
        self.packs[name] = Pack(len(data), self._places)
        self._data, self._places = bytearray(), {}


def _used(packs: Mapping[str, Pack], manifest: Manifest) -> dict[str, Pack]:
    """The packs of which anything is needed."""
    needed = manifest.hashes
    return {sha: pack for sha, pack in packs.items() if needed & pack.members.keys()}


def _wasteful(folder: Folder) -> list[str]:
    """The packs of which less than half is needed."""
    needed = folder.manifest.hashes
    live = {sha: sum(n for c, (_, n) in pack.members.items() if c in needed) for sha, pack in folder.packs.items()}
    return [sha for sha, octets in live.items() if 2 * octets < folder.packs[sha].size]


def size_of(looks: Mapping[str, Look]) -> int:
    """Bytes of all files."""
    return sum(found.size for seen in looks.values() for found in seen.files.values())


def _without(seen: Look, own: Collection[str]) -> Look:
    if not own:
        return seen
    files = {path: found for path, found in seen.files.items() if path not in own}
    return replace(seen, files=files, links={path: to for path, to in seen.links.items() if path not in own})


def _target(path: str, to: str) -> str:
    """Where a link leads, relative to its cache folder."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), to))


def _unpacked(
    packs: Mapping[str, Pack],
    scratch: Path,
    gate: Gate,
    home: Home,
    keys: JobKeys,
    wanted: Mapping[Path, File],
    pace: Pace | None,
) -> int:
    """As `broker.blobs.fetch`, for files some of whose contents lie in packs. scratch: a new folder for these."""
    where = {content: (sha, *place) for sha, pack in packs.items() for content, place in pack.members.items()}
    alone = {path: file for path, file in wanted.items() if file.sha256 not in where}
    with room(str(scratch)):
        scratch.mkdir()
    whole = {scratch / sha: File(sha, pack.size, 0o600) for sha, pack in packs.items()}
    fetched = fetch(home, keys, {**alone, **whole}, pace, gate)
    inside: dict[str, list[tuple[Path, File, int, int]]] = {}
    for path, file in wanted.items():
        if path not in alone:
            sha, at, size = where[file.sha256]
            inside.setdefault(sha, []).append((path, file, at, size))
    for sha, members in inside.items():
        data = (scratch / sha).read_bytes()
        for path, file, at, size in members:
            if size != file.size or at + size > len(data):
                raise SnapshotCorrupt(f"{keys.blob(sha)} does not hold what the cache's manifest says")
            with room(str(path.parent)):
                path.write_bytes(data[at : at + size])
                path.chmod(file.mode)
        (scratch / sha).unlink()
    return fetched


def _lay(fresh: Path, to: Path, manifest: Manifest) -> None:
    """Move what is in a new folder into one that is there: files first, then the links that may lead to them."""
    made = [path for path in sorted(manifest.folders) if not (to / path).is_dir()]
    for path in made:
        (to / path).mkdir()
    for path in manifest.folders:
        if (to / path).is_symlink():
            raise HomeError(f"{to / path} is a link, and what lies behind it is not of the cache")
    for path in (*manifest.files, *manifest.links):
        (fresh / path).rename(to / path)
    for path in reversed(made):
        (to / path).chmod(manifest.folders[path])
