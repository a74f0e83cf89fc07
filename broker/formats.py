"""Checkpoint files and directories of known formats: what proves one whole, and what shows that it is not.

dcp    torch.distributed.checkpoint: shards `__RANK_N.distcp`, and `.metadata`, which names them and is renamed into
       place last (torch/distributed/checkpoint/filesystem.py, FileSystemWriter.finish)
orbax  `_CHECKPOINT_METADATA` (or `orbax.checkpoint`, from its version 1 on) in a directory that is written as
       `NAME.orbax-checkpoint-tmp…` and renamed once all is in it
       (https://orbax.readthedocs.io/en/latest/guides/checkpoint/checkpoint_format.html)

Nothing is unpickled: of `.metadata` only the names in it are read. Standard library only: this runs on the rented
machine.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.complete import Stat, Tree

ARCHIVES = {".pt", ".pth", ".ckpt", ".npz", ".zip"}
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".distcp", ".h5", ".msgpack"}
SHARD = re.compile(r"__\d+_\d+\.distcp$")
NAMED = re.compile(rb"__\d+_\d+\.distcp")
METADATA = re.compile(r"(?:__\d+)?\.metadata$")
ORBAX = ("_CHECKPOINT_METADATA", "orbax.checkpoint")
CHUNKED = (".zarray", ".zgroup", "zarr.json")
"""What Zarr puts into its directories; their chunks bear bare numbers."""
ORBAX_TMP = "*.orbax-checkpoint-tmp*"
OURS = "meta.pt"
"""What Lightning adds to a sharded checkpoint when all else is written."""


HEAD, LEAST_HEAD = 4096, 64
"""Bytes from a file's start that are looked at; a file of fewer zeros may mean something."""


@dataclass(frozen=True, slots=True)
class Finding:
    """form: the format a file proves to have, whole; fault: why it is not whole. Both empty: nothing can be said."""

    form: str = ""
    fault: str = ""


def inspect(path: Path, size: int) -> Finding:
    """Look at one file's header and directory. FileNotFoundError where it has gone; unreadable ones have a fault."""
    suffix = path.suffix.lower()
    if size == 0:
        known = suffix in ARCHIVES or suffix == ".safetensors"
        return Finding(fault="is empty (0 bytes)") if known else Finding()
    if suffix == ".distcp":
        return Finding()  # several archives in a row, or other bytes: its `.metadata` says when it is whole
    try:
        if suffix == ".safetensors":
            return _safetensors(path, size)
        with path.open("rb") as file:
            start = file.read(HEAD)
        if start.startswith(b"PK"):
            return _archive(path)
        if not any(start) and len(start) > LEAST_HEAD and (suffix in ARCHIVES or path.name.startswith("pytorch_model")):
            return Finding(fault="holds zeros where it begins: it was made and never written")
    except FileNotFoundError:
        raise
    except OSError as error:
        return Finding(fault=f"cannot be read: {error.strerror or error}")
    return Finding(fault="is no zip archive") if suffix in {".npz", ".zip"} else Finding()


def _safetensors(path: Path, size: int) -> Finding:
    """Format: https://huggingface.co/docs/safetensors: u64 header length, JSON header, tensors without gaps."""
    with path.open("rb") as file:
        raw = file.read(8)
        length = struct.unpack("<Q", raw)[0] if len(raw) == 8 else 0
        if len(raw) < 8 or length > min(size - 8, 100_000_000):
            return Finding(fault=f"is cut within its header ({size} bytes)")
        header = file.read(length)
    try:
        tensors = {key: value for key, value in json.loads(header).items() if key != "__metadata__"}
        end = max((int(value["data_offsets"][1]) for value in tensors.values()), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return Finding(fault="has a header that cannot be read")
    if 8 + length + end != size:
        return Finding(fault=f"is cut: {size} bytes of {8 + length + end}")
    return Finding(form="safetensors")


def _archive(path: Path) -> Finding:
    """A zip archive is whole once its central directory stands at its end; torch's holds a `data.pkl`."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, struct.error):
        return Finding(fault="is cut: a zip archive without its directory")
    return Finding(form="torch" if any(name.endswith("data.pkl") for name in names) else "zip")


def shards_of(paths: Iterable[str]) -> dict[str, list[str]]:
    """Directories that hold shards of DCP, with these; the path of a shard at the top is in the directory ``."""
    found: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if SHARD.match(name):
            found.setdefault(folder, []).append(path)
    return found


def dcp_fault(top: Path, folder: str, files: Mapping[str, Stat]) -> str:
    """Why a directory with shards cannot be loaded; empty where it can. top: what all paths are relative to."""
    base = f"{folder}/" if folder else ""
    inside = {path.removeprefix(base): found for path, found in files.items() if path.startswith(base)}
    metadata = [name for name in inside if METADATA.match(name)]
    if not metadata:
        return f"{base}.metadata is missing: the shards are not all written"
    named: set[str] = set()
    for name in metadata:
        named |= {found.decode() for found in NAMED.findall((top / base / name).read_bytes())}
    if absent := sorted(named - inside.keys()):
        return f"{base}{absent[0]} is missing"
    empty = sorted(name for name in named if not inside[name].size)
    return f"{base}{empty[0]} is empty (0 bytes)" if empty else ""


def dcp_settled(folder: str, files: Mapping[str, Stat]) -> bool:
    """Is nothing in the directory newer than the metadata that closes it? What is written over later is."""
    base = f"{folder}/" if folder else ""
    inside = {path.removeprefix(base): found for path, found in files.items() if path.startswith(base)}
    closing = [found.mtime_ns for name, found in inside.items() if METADATA.match(name) or name == OURS]
    last = OURS in inside or not folder.endswith(".ckpt")
    return last and max(closing, default=0) >= max((found.mtime_ns for found in inside.values()), default=0)


def has_format(names: Iterable[str]) -> bool:
    """Do the names in a directory say that it is a checkpoint of a known format, or an array?"""
    known = {"trainer_state.json", *ORBAX, *CHUNKED}
    return any(name in known or SHARD.match(name) or METADATA.match(name) for name in names)


def is_orbax(tree: Tree) -> bool:
    return tree.is_dir and any(f"{tree.name}/{name}" in tree.files for name in ORBAX)


def orbax_fault(top: Path, tree: Tree) -> str:
    """Why an Orbax checkpoint is not whole; empty where it is."""
    if unfinished := next((path for path in tree.left_out if "orbax-checkpoint-tmp" in path), ""):
        return f"{unfinished} is not finished"
    for path, found in tree.files.items():
        name = path.rpartition("/")[2]
        if name in ("manifest.ocdbt", "_METADATA", "_CHECKPOINT_METADATA") and not found.size:
            return f"{path} is empty (0 bytes)"
    path = f"{tree.name}/{ORBAX[0]}"
    if path not in tree.files:
        return ""
    try:
        metadata = json.loads((top / path).read_bytes())
        committed = metadata.get("commit_timestamp_nsecs", 0)
    except (ValueError, AttributeError):
        return f"{path} is cut"
    return f"{path} says that it is not committed" if committed is None else ""
