"""What to change in a task or its program, a line for each thing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from broker.rehearse.evidence import Evidence
from broker.rehearse.hand import SECONDS

if TYPE_CHECKING:
    from broker.rehearse.hand import TakeBack
    from broker.report import Report


def advise(report: Report, taken: Sequence[TakeBack], evidence: Evidence) -> Iterator[str]:
    """Beyond what single checks say: where it saves, whether it saves on SIGTERM, and whether in time."""
    restored = [move.restored is not None for move in report.moves]
    strays = next((seen.strays for _, seen in sorted(evidence.seen.items()) if seen.strays), ())
    if strays and not (restored and all(restored)):
        yield (
            f"it saves outside checkpoint.path: {', '.join(strays)}; let it save into $BROKER_CHECKPOINT_DIR, "
            "or name its folder as checkpoint.path"
        )
    for take in taken:
        yield from _on_notice(take, report, evidence)


def _on_notice(take: TakeBack, report: Report, evidence: Evidence) -> Iterator[str]:
    seen, seconds = evidence.of(take.generation), SECONDS[take.notice]
    slow = seen.save is not None and seen.save > seconds
    if not seconds:
        return
    if seen.not_asked or (seen.asked and not seen.saved and (slow or (seen.cut and not seen.in_time))):
        took = f"a save takes {seen.save:.0f} s" if slow else "its save on SIGTERM was cut off"
        yield (
            f"{took}, and a notice like {take.notice}'s leaves {seconds} s: save at regular times too, so that little "
            "is lost without, and let SIGTERM save less or faster"
        )
    elif seen.asked and not seen.saved:
        moved = next((move for move in report.moves if move.source == take.generation), None)
        if moved is None or moved.lost == 0:
            return
        ended = "" if seen.in_time else ", nor end"
        yield (
            f"on SIGTERM it did not save{ended}, though {take.notice} gives {seconds} s: catch SIGTERM, save and exit, "
            "and nothing is lost on a notice"
        )
