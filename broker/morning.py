"""What happened in the night: one job as the text of a mail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.schedule import told, upcoming

if TYPE_CHECKING:
    from broker.job import Job
    from broker.report import Report
    from broker.schedule import Schedule
    from broker.timetable import Run

LAST_LINES = 8
WIDEST = 200


def summary(job: Job, schedule: Schedule | None = None, run: Run | None = None) -> str:
    """A dozen lines at most: how it ended, what it cost, where its results are, what to do, what comes next.

    schedule, run: those that the job was launched by, if any.
    """
    from broker.report import shown

    report = shown(job.refresh())
    lines = [f"{job.id} {report.outcome or report.status}"]
    if schedule is not None and run is not None:
        lines += [f"run of {told(run.slot, schedule.zone)}", *([run.note] if run.note else [])]
    lines += [_took(report)]
    if job.row.exit_code == 0 and (kept := _outputs(job)):
        lines.append(f"outputs: {kept}: broker pull {job.id}")
    if job.row.exit_code:
        lines.append(f"try: {job.row.fix or f'broker logs {job.id}'}")
        lines += [f"  | {line}" for line in _last_lines(job)]
    if schedule is not None and run is not None:
        lines += [f"next: {told(at, schedule.zone)}" for at in upcoming(schedule, run.at, 1)]
    return "\n".join(lines)


def _took(report: Report) -> str:
    from broker.cli.tables import duration, money

    count, moves = len(report.stays), len(report.moves)
    if not count:
        return "nothing was rented"
    spent = money(report.spent, simulated=report.simulated)
    saved = ""
    if report.on_demand and report.on_demand > report.spent:
        share = 100 * (1 - report.spent / report.on_demand)
        saved = f"; on demand {money(report.on_demand)}, saved {share:.0f}%"
    where = " → ".join(dict.fromkeys(stay.place for stay in report.stays))
    machines = f"{count} machine{'s' * (count != 1)} ({where}), {moves} move{'s' * (moves != 1)}"
    return f"took {duration(report.end - report.created)}, {machines}; cost {spent}{saved}"


def _outputs(job: Job) -> str:
    from broker.errors import HomeError

    try:
        count = len(job.outputs())
    except HomeError as error:
        return f"not known now, since {error}"
    return f"{count} file{'s' * (count != 1)}" if count else ""


def _last_lines(job: Job) -> list[str]:
    from broker.errors import HomeError
    from broker.output import Output, shown

    try:
        found = [shown(line) for _, line in Output(job).last(job.placements(), LAST_LINES, final=True)]
    except HomeError:
        return []
    return [_short("".join(letter if letter.isprintable() else " " for letter in line)) for line in found]


def _short(line: str) -> str:
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 1]}…"
