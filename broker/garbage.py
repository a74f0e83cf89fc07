"""Old blobs of a running job: which snapshots must stay whole, and the deletion of what none of them names."""

from __future__ import annotations

from itertools import islice

from broker import inheritance
from broker.home import Home, JobKeys
from broker.restore import DAY, collect_garbage, snapshots_of, walk_lineage
from broker.state import JobState


def kept_snapshots(home: Home, keys: JobKeys, state: JobState, keep: int) -> set[tuple[int, int]]:
    """(generation, seq) of everything that may still be restored or that a living guest skips uploads by.

    The lineage's newest `keep`; of every generation that has an instance its own newest `keep` and the snapshot it
    started from, since it verified that one.
    """
    kept = set(islice(walk_lineage(home, keys, state.parents, state.generation + 1), keep))
    held = [entry.held for entry in state.retiring] + ([state.live] if state.live else [])
    for placement in held:
        kept |= {(placement.generation, seq) for seq in snapshots_of(home, keys, placement.generation)[-keep:]}
        parent = state.parents.get(placement.generation)
        kept |= {parent} if parent else set()
    return kept


def collect(home: Home, keys: JobKeys, state: JobState, keep: int) -> int:
    """Delete the blobs that no kept snapshot names, nor the newest cache, and that are older than a day; how many.

    Only while some generation has told its parent: before that a guest may rely on a snapshot nobody here knows of.
    Raises HomeError; SnapshotCorrupt where a kept manifest cannot be read, and then nothing is deleted.
    """
    if any(placement.generation not in state.parents for placement in state.held):
        return 0
    kept, now = kept_snapshots(home, keys, state, keep), home.time(keys.clock)
    return inheritance.collect(home, keys, now, DAY) + (collect_garbage(home, keys, kept, now) if kept else 0)
