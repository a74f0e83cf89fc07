"""The fields of a task file: the type of each, what it means, and what becomes of it here.

This is pydantic's part of reading a task file, the source of its JSON Schema and of the fields' documentation. Values
come as they were typed (`broker.document`): text, null, maps and lists. Types only; what values mean together is
`Task`'s to check.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from broker import gpus, images, quantity
from broker.offer import Trust

T = TypeVar("T")
HOW = ("honoured", "emulated", "ignored", "refused")

# Names that people bring along from elsewhere, and what to write here.
_ELSEWHERE = {
    "resources.spot": "write `spot` at the top level",
    "resources.gpu": "write `accelerators`",
    "env": "write `envs`",
    **dict.fromkeys(("command", "cmd", "script", "entrypoint"), "did you mean run?"),
    **dict.fromkeys(("gpu", "gpus", "accelerators"), "write `resources: {accelerators: A100:1}`"),
    "schedule.timezone": "write `tz`",
    "managed_secrets": "write `secrets: [NAME]`, whose values are taken from the environment",
}
# What only a cloud's virtual machine can boot: it would not be the task's container.


class Cards(tuple[tuple[str, int], ...]):
    """Alternatives: what and how many. `ordered`: given as a list, which is in order of preference."""

    ordered: bool = False


def _scalar(parse: Callable[[str], T]) -> BeforeValidator:
    def validate(value: object) -> T:
        if not isinstance(value, str):
            what = "a map" if isinstance(value, dict) else "a list"
            raise ValueError(f"must be one value, not {what}")  # noqa: TRY004 - pydantic collects ValueErrors only
        return parse(value)

    return BeforeValidator(validate)


def _written(*kinds: str) -> WithJsonSchema:
    return WithJsonSchema({"type": kinds[0] if len(kinds) == 1 else list(kinds)})


def _list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _cards(value: object) -> Cards:
    """`A100`, `A100:8`, `24GB+:2`, {A100: 8}, {A100: 1, L4: 1} and [A100:1, L4:1], the last in order of preference."""
    if isinstance(value, str):
        return Cards([gpus.counted(value)])
    if isinstance(value, list):
        if not value:
            raise ValueError("must not be an empty list")
        cards = Cards(card for item in value for card in _cards(item))
        cards.ordered = True
        return cards
    if not isinstance(value, dict) or not value:
        raise ValueError("must be a GPU such as A100 or A100:8")
    found = []
    for name, number in value.items():
        if ":" in name and not name.lower().startswith(("nvidia:", "amd:", "intel:")):
            raise ValueError(f"a space is missing after the colon in {name!r}: write {name.replace(':', ': ', 1)}")
        if number is not None and not isinstance(number, str):
            raise ValueError(f"the number of GPUs must be a whole number above zero: {name!r}")
        found.append(gpus.counted(name if number is None else f"{name}:{number}"))
    return Cards(found)


def _image(value: str) -> str:
    """A container image without its prefix; a machine image as it is, and with the prefix what only looks like one."""
    bare = value.removeprefix("docker:")
    if not bare.strip() or bare != bare.strip() or any(mark.isspace() for mark in bare):
        raise ValueError("must be the name of a container image, such as docker:pytorch/pytorch, or a machine image")
    alike = images.parse(bare)
    return value if alike is not None and alike.machine else bare


def _images(value: object) -> dict[str, str]:
    """The image by region; the empty region is any."""
    if isinstance(value, str):
        return {"": _image(value)}
    if not isinstance(value, dict) or not value or not all(isinstance(image, str) for image in value.values()):
        raise ValueError("must be a container image, or a map of regions and images")
    return {"" if region in ("null", "None", "*") else region: _image(image) for region, image in value.items()}


def _labels(value: object) -> dict[str, str]:
    """Names and values; a value that was left empty is the empty text."""
    if not isinstance(value, dict):
        raise ValueError("must be a map of names and values")  # noqa: TRY004 - pydantic collects ValueErrors only
    if wrong := [name for name, text in value.items() if text is not None and not isinstance(text, str)]:
        raise ValueError(f"the value of {wrong[0]} must be one text")
    return {name: text or "" for name, text in value.items()}


def _speeds(value: object) -> dict[str, float]:
    if not isinstance(value, dict) or not all(isinstance(given, str) for given in value.values()):
        raise ValueError("must be a map of cards and numbers, such as {H100: 2.1, A100: 1}")
    return {str(card): quantity.positive(given) for card, given in value.items()}


def _codes(value: object) -> tuple[int, ...]:
    items = value if isinstance(value, list) else [value]
    codes = [quantity.count(item) if isinstance(item, str) else -1 for item in items]
    if not codes or not all(0 <= code <= 255 for code in codes):
        raise ValueError("must be exit codes from 0 to 255")
    return tuple(codes)


def _as(name: str, model: type[BaseModel]) -> BeforeValidator:
    """One value stands for a map with that one field."""
    return BeforeValidator(
        lambda value: {name: value} if isinstance(value, str) else value, json_schema_input_type=str | model
    )


Text = Annotated[str, _written("string", "number", "boolean")]
Truth = Annotated[bool, _scalar(quantity.truth), _written("boolean", "string")]
Count = Annotated[int, _scalar(quantity.count), _written("integer", "string")]
Positive = Annotated[float, _scalar(quantity.positive), _written("number", "string")]
Size = Annotated[float, _scalar(quantity.size), _written("number", "string")]
Data = Annotated[float, _scalar(quantity.data), _written("number", "string")]
Duration = Annotated[float, _scalar(quantity.duration), _written("number", "string")]
Speeds = Annotated[dict[str, float], BeforeValidator(_speeds), WithJsonSchema(
    {"type": "object", "additionalProperties": {"type": ["number", "string"]}}
)]  # fmt: skip
Texts = Annotated[list[str], BeforeValidator(_list), WithJsonSchema(
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
)]  # fmt: skip
Values = Annotated[dict[str, str], WithJsonSchema(
    {"anyOf": [
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
        {"type": "array", "items": {"type": "string"}},
    ]}
)]  # fmt: skip

Secrets = Annotated[dict[str, str], WithJsonSchema(
    {"anyOf": [
        {"type": "object", "additionalProperties": {"anyOf": [
            {"type": ["string", "number", "boolean", "null"]},
            {"type": "object", "additionalProperties": False, "properties": {
                "value": {"type": ["string", "number", "boolean", "null"]},
                "trust": {"enum": list(map(str, Trust))},
            }},
        ]}},
        {"type": "array", "items": {"type": "string"}},
    ]}
)]  # fmt: skip


def _field(what: str, how: str = "honoured", why: str = "") -> Any:
    """A field that may be left out. how: what becomes of it, with the reason where it is not simply honoured."""
    assert how in HOW
    return Field(default=None, description=what, json_schema_extra={"how": how, "why": why})


def _ignored(why: str) -> Any:
    return _field(f"Ignored: {why}.", "ignored", why)


class Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class RecoveryFields(Fields):
    strategy: Text | None = _ignored("a move always goes to the best offer there is, and what was lost cools down")
    max_restarts_on_errors: Count | None = _field("As at the top level.")
    recover_on_exit_codes: (
        Annotated[tuple[int, ...], BeforeValidator(_codes), _written("integer", "string", "array")] | None
    ) = _field("Exit codes after which the program is started again from its newest snapshot, not counted.")


Recovery = Annotated[RecoveryFields, _as("strategy", RecoveryFields)]


class AlternativeFields(Fields):
    accelerators: Annotated[Any, BeforeValidator(_cards), _written("string", "object", "array", "null")] | None = (
        _field(
            "The GPUs: `A100`, `A100:8`, a map `{A100: 1, L4: 1}` of which any will do, a list in order of preference, "
            "or memory `24GB+`, `40GB+:2` (NVIDIA's; `amd:40GB+` is AMD's). `H100` is any form of it, `H100-SXM` that "
            "form only."
        )
    )
    cpus: Annotated[float, _scalar(quantity.at_least), _written("number", "string")] | None = _field(
        "At least so many CPUs; `4` and `4+` mean the same."
    )
    memory: Annotated[Any, _scalar(quantity.memory), _written("number", "string")] | None = _field(
        "At least so much main memory, in GiB: `32`, `32+`, `32GB`; `4x` is 4 for each of `cpus`."
    )
    disk_size: Size | None = _field("The disk, in GiB: `200`, `200GB`, `1TB`. 20 by default.")
    infra: Texts | None = _field(
        "Where: `provider[/region[/zone]]` with `*` for any; a list means any of them. Everywhere by default."
    )
    cloud: Text | None = _field("The provider.", "honoured", "read as infra")
    region: Text | None = _field("The region.", "honoured", "read as infra")
    zone: Text | None = _field("The zone.", "honoured", "read as infra")
    instance_type: Text | None = _field("The machine's type, in its provider's own words.")
    use_spot: Truth | None = _field(
        "SkyPilot's word for `spot`: true is `spot: auto`, false is `spot: never`.",
        "emulated",
        "true takes spot where it is cheaper, and on-demand where spot has none (spot: auto)",
    )
    image_id: Annotated[dict[str, str], BeforeValidator(_images), _written("string", "object", "null")] | None = _field(
        "The container image, with or without `docker:`, or a map of regions and images."
    )
    job_recovery: Recovery | None = _field("How often a failed program is started again.")
    spot_recovery: Recovery | None = _field("The older name of `job_recovery`.")
    max_hourly_cost: Positive | None = _field(
        "SkyPilot's word for `max_price`.", "honoured", "read as max_price: the live price, disk included"
    )
    autostop: Any = _ignored("a machine ends as soon as its job does, and none is ever idle")
    labels: Annotated[dict[str, str], BeforeValidator(_labels), _written("object")] | None = _field(
        "Tags of the machines, a map of names and values, for the provider's own bills and lists."
    )
    ports: Any = _ignored("no port is opened: logs and results come through the job's home")
    priority: Any = _ignored("jobs do not queue for one another here")
    priority_class: Any = _ignored("jobs do not queue for one another here")
    accelerator_args: Any = _ignored("they are for TPUs, which are not offered")
    disk_tier: Any = _ignored("the provider's usual kind of disk is taken")
    network_tier: Any = _ignored("a job has one machine, with its provider's usual network")
    local_disk: Any = _ignored("the machine's disk is the one of disk_size")
    ephemeral_storage: Any = _ignored("the machine's disk is the one of disk_size")
    volumes: Any = _ignored("no volume is attached: what must last goes through checkpoint.path and outputs")


class ResourcesFields(AlternativeFields):
    any_of: list[AlternativeFields] | None = _field(
        "Alternatives of which the best offer wins. Each takes over what stands around it."
    )
    ordered: list[AlternativeFields] | None = _field(
        "Alternatives in strict order: a later one is taken only where no earlier one can be had, whatever the prices."
    )


class CheckpointFields(Fields):
    path: Text | None = _field("The folder that the program saves to: relative to the workdir, `~/…`, or absolute.")
    every: Duration | None = _field("The least time between two snapshots: `30s`, `5m`. Each save by default.")
    keep: Count | None = _field("How many snapshots are kept. 3 by default.")
    complete: Text | None = _field(
        "A name or glob that exists inside a checkpoint's folder once it is whole, such as `DONE`. "
        "Known formats need none."
    )


class WorkFields(Fields):
    hours: Positive | None = _field("Hours that the whole work takes on one machine.")
    on: Text | None = _field("The card that `hours` were measured on.")
    steps: Count | None = _field("Steps that the whole work has, as `broker.guest.progress` counts them.")
    download: Data | None = _field("What each machine fetches, such as `400GB`: some hosts charge for it.")
    upload: Data | None = _field("What the program sends elsewhere, snapshots not counted: they are measured.")


class RehearseFields(Fields):
    deterministic: Truth | None = _field("The same seed gives the same bytes in the files of `compare`.")
    compare: Texts | None = _field("Files in the workdir that must be the same with and without interruption.")
    envs: Values | None = _field("Set over the task's own while it is rehearsed, to make it short for instance.")
    resources: ResourcesFields | None = _field("In the place of the task's own while it is rehearsed.")
    step: Text | None = _field(
        "A regular expression that finds the training step in a line of the program's log, as its group: "
        "`'step (\\d+)'`. Needed only where the usual ways of printing it are not used, nor `broker.guest.progress`."
    )


class WindowFields(Fields):
    begin: Text | None = Field(
        default=None, alias="from", description="The clock time from which a run may start, such as `22:00`.",
        json_schema_extra={"how": "honoured", "why": ""},
    )  # fmt: skip
    to: Text | None = _field("The clock time until which it may start.")
    start: Literal["cheapest", "first"] | None = _field(
        "`cheapest` waits for the hours at which prices were lowest in the past, and starts in time for the deadline; "
        "`first` starts at once. cheapest by default."
    )


class ScheduleFields(Fields):
    cron: Text | None = _field("Five fields as cron has them, or `@daily` and the like.")
    tz: Text | None = _field("The time zone of `cron` and of `deadline`, such as `Europe/Lisbon`. UTC by default.")
    deadline: Annotated[str, _scalar(quantity.deadline), _written("string")] | None = _field(
        "When each run must be done, over the task's own: `07:00` is the next one after its start, `8h` so long after."
    )
    max_price: Positive | None = _field("USD per hour of the whole machine, over the task's own.")
    missed: Literal["join", "skip"] | None = _field(
        "What becomes of runs whose time passed while nothing was awake: `join` makes one of them, at once; `skip` "
        "none. join by default."
    )
    overlap: Literal["skip", "queue"] | None = _field(
        "What becomes of a run whose predecessor still runs: `skip`, or `queue`, one at most. skip by default."
    )
    window: WindowFields | None = _field("Between which times of the day a run may start, where not at once.")


class NotifyFields(Fields):
    on: Texts | None = _field(
        "Which news: `finished`, `failed`, `moved`, `stuck`, `budget` (a limit was reached) and `nothing` (to be had). "
        "All but `moved` by default."
    )
    command: Text | None = _field("A shell command, run where the broker is, that gets the text on its stdin.")
    webhook: Text | None = _field("An http(s) URL that gets the news by POST as JSON, or `env:NAME` that holds it.")
    apprise: Texts | None = _field("URLs for the package apprise (`pip install 'spotbroker[notify]'`), or `env:NAME`.")


class KeepFields(Fields):
    seconds: Duration | None = Field(
        default=None, alias="for", description="At most so long, such as `30m`.",
        json_schema_extra={"how": "honoured", "why": ""},
    )  # fmt: skip
    max_usd: Positive | None = _field("At most for so many USD. What that time costs, by default.")


class MountFields(Fields):
    source: Text | None = _field("A file or folder here, relative to the task file, or a bucket's URL.")
    mode: Annotated[Literal["COPY", "MOUNT", "MOUNT_CACHED"], BeforeValidator(
        lambda value: value.upper() if isinstance(value, str) else value
    )] | None = _field("COPY, or MOUNT and MOUNT_CACHED, which are emulated by a copy.")  # fmt: skip
    name: Text | None = _field(
        "The bucket's name.",
        "emulated",
        "no bucket is made: what is written there is kept where checkpoint.path covers it",
    )
    store: Any = _ignored("what is kept is kept in the job's home")
    persistent: Any = _ignored("what is kept is kept in the job's home")
    type: Any = _ignored("what is kept is kept in the job's home")
    config: Any = _ignored("nothing is mounted")


class WorkdirFields(Fields):
    path: Text | None = _field("A folder here, relative to the task file.")
    url: Text | None = _field("A git repository.", "emulated", "it is fetched before setup, anew on every machine")
    ref: Text | None = _field(
        "A branch, tag or commit of it.", "emulated", "a branch may have moved on by the next machine"
    )


class TaskFields(Fields):
    name: Text | None = _field("The job's name. The file's, or its folder's, by default.")
    workdir: Annotated[WorkdirFields, _as("path", WorkdirFields)] | None = _field(
        "The folder whose copy `setup` and `run` start in, relative to the task file; or `{url, ref}` of a "
        "git repository. None by default: no file of yours goes along."
    )
    setup: Text | None = _field("A shell script that prepares the machine. It runs on every machine anew.")
    run: Text | None = _field("The shell script that is the work. The only field that a task must have.")
    envs: Values | None = _field(
        "Environment variables, a map or a list of NAME=VALUE. Values stay the text that was typed. An empty one must "
        "be given by `--env`."
    )
    secrets: Secrets | None = _field(
        "As `envs`, but never shown and never stored in plain. One without a value is taken from the environment. A "
        "secret goes to clouds and vouched data centres only; `{HF_TOKEN: {trust: community}}`, with `value` for its "
        "value, lets it go to anybody's machine, and `trust: cloud` keeps it on clouds."
    )
    resources: ResourcesFields | None = _field("What the machine must have.")
    num_nodes: Count | None = _field("The number of machines. 1: several at once are refused for now.")
    file_mounts: dict[str, Annotated[MountFields, _as("source", MountFields)]] | None = _field(
        "Files and folders brought along: a map from a path on the machine, `~/…` or absolute, to a path here, a "
        "bucket's URL, or a map with `source` and `mode`. They are in place before `setup`."
    )
    checkpoint: CheckpointFields | None = _field("How the program saves, so that it survives preemption.")
    cache: Texts | None = _field(
        "Folders that `setup` downloads to, such as `~/.cache/huggingface`: kept in the home, and back before `setup` "
        "runs on the next machine where that is faster and no dearer than fetching again."
    )
    outputs: Annotated[list[str], BeforeValidator(_list), _written("string", "array", "object")] | None = _field(
        "Files and globs in the workdir that are kept when the program has ended."
    )
    work: WorkFields | None = _field("How much there is to do.")
    spot: Literal["auto", "only", "never"] | None = _field(
        "`auto` takes spot where it pays and on-demand where not; `only`; `never`. auto by default."
    )
    max_price: Positive | None = _field("USD per hour of the whole machine, disk included. No limit by default.")
    max_hours: Positive | None = _field("Hours after which a machine ends, whatever happens. 72 by default.")
    max_moves: Count | None = _field("How often the job may move from machine to machine. 50 by default.")
    max_restarts_on_errors: Count | None = _field(
        "How often a program that failed is started again. 0 by default; moves are not counted."
    )
    stuck: Duration | None = _field(
        "How long the program may give no sign of life: no step, no line, no snapshot, no GPU at work; `20m`. It is "
        "saved, moved once, and ended where that does not help. For ever by default."
    )
    keep_on_failure: Annotated[KeepFields, _as("for", KeepFields)] | None = _field(
        "How long the machine is kept for you to look, by `broker ssh`, once the program, or `setup`, has failed for "
        "good: `30m`, or `{for: 30m, max_usd: 0.50}`. It is billed meanwhile. Not at all by default."
    )
    deadline: Annotated[str, _scalar(quantity.deadline), _written("string")] | None = _field(
        "When the work must be done: `6h`, `07:30`, `2027-01-31 07:30`. Needs `work`."
    )
    budget: Positive | None = _field(
        "USD that all machines of the job may cost together. At the limit it is saved and ended, and can be resumed."
    )
    speed: Speeds | None = _field(
        "How fast each card does this work, `{H100: 2.1, A100: 1}`, so that a dearer one may win. Else measured."
    )
    schedule: Annotated[ScheduleFields, _as("cron", ScheduleFields)] | None = _field(
        "When to run it again and again, by `broker schedule add`: a map, or a cron line with a time zone after it, "
        "such as `30 2 * * 1-5 Europe/Paris`."
    )
    notify: Annotated[NotifyFields, _as("command", NotifyFields)] | None = _field(
        "Whom the job tells how it goes: a command, or a map."
    )
    home: Text | None = _field("The URL of the store that keeps snapshots and results. The configured one by default.")
    rehearse: RehearseFields | None = _field("How a rehearsal makes the task short, and judges it.")
    inputs: Any = _ignored("the cost of data moving between clouds is not estimated from it")
    event_callback: Any = _ignored(
        "no script is run on a change of state; `broker logs -f` and `broker wait` tell of it"
    )
    config: Any = _ignored("it speaks to SkyPilot's own clouds; the program gets SIGTERM on a notice, without hooks")
    experimental: Any = _ignored("it speaks to SkyPilot's own clouds")
    service: Any = _ignored("a job runs to its end; nothing is served")
    pool: Any = _ignored("every job has a machine of its own")
    volumes: Any = _ignored("no volume is attached: what must last goes through checkpoint.path and outputs")
    volume_mounts: Any = _ignored("no volume is attached: what must last goes through checkpoint.path and outputs")
    api_server_access: Any = _ignored("there is no server")
    file_mounts_mapping: Any = _ignored("it is SkyPilot's own note")
    metadata: Any = Field(
        default=None, alias="_metadata",
        description="SkyPilot's free map. Fields of ours below `broker:` in it are read as if at the top level.",
        json_schema_extra={"how": "honoured", "why": "of it only `broker` is read"},
    )  # fmt: skip


MODELS: dict[str, type[Fields]] = {
    "": TaskFields,
    "workdir": WorkdirFields,
    "resources": ResourcesFields,
    "resources.any_of": AlternativeFields,
    "resources.ordered": AlternativeFields,
    "checkpoint": CheckpointFields,
    "work": WorkFields,
    "schedule": ScheduleFields,
    "schedule.window": WindowFields,
    "notify": NotifyFields,
    "keep_on_failure": KeepFields,
    "rehearse": RehearseFields,
    "file_mounts.*": MountFields,
}
for _outer in ("resources", "resources.any_of", "resources.ordered"):
    MODELS |= {f"{_outer}.{name}": RecoveryFields for name in ("job_recovery", "spot_recovery")}
MODELS |= {f"rehearse.{_name}": _model for _name, _model in MODELS.items() if _name.startswith("resources")}


PLACES = ("", "resources", "checkpoint")
"""Where a field that stands elsewhere is looked for."""


def general(path: tuple[str | int, ...]) -> str:
    """The path with what differs from file to file taken out: places in lists, and the targets of mounts."""
    steps = [step for step in path if isinstance(step, str)]
    if steps[:1] == ["file_mounts"] and len(steps) > 1:
        steps[1] = "*"
    return ".".join(steps)


def _known(outer: str) -> list[str]:
    return [info.alias or name for name, info in MODELS[outer].model_fields.items()] if outer in MODELS else []


FORMS = {"resources": "`resources: {accelerators: RTX4090:1}`", "work": "`work: {hours: 6}`"}
"""Maps for which people write the one value that matters."""


def explained(detail: Any) -> tuple[str, str, str]:
    """pydantic's word as field, message and fix."""
    path: tuple[str | int, ...] = detail["loc"]
    field, kind = ".".join(map(str, path)), detail["type"]
    if kind == "extra_forbidden":
        plain = general(path)
        outer = plain.rpartition(".")[0]
        if advice := _ELSEWHERE.get(plain.replace(".any_of", "").replace(".ordered", "")):
            return field, f"unknown field; {advice}", advice
        known = _known(outer)
        place = next((place for place in PLACES if place != outer and str(path[-1]) in _known(place)), None)
        if place is not None:
            where = f"under `{place}`" if place else "at the top of the file"
            return field, f"unknown field here; it belongs {where}", f"write it {where}"
        near = difflib.get_close_matches(str(path[-1]).strip().lower(), known, n=1)
        if near:
            return field, f"unknown field; did you mean {near[0]}?", f"write `{near[0]}`"
        return field, "unknown field", f"known here: {', '.join(known)}"
    if kind == "value_error":
        return field, str(detail["ctx"]["error"]), ""
    if kind == "literal_error":
        return field, f"must be {detail['ctx']['expected']}", ""
    wanted = {"string_type": "must be text", "list_type": "must be a list", "model_type": "must be a map"}
    wanted["dict_type"] = "must be a map"
    such = f", such as {FORMS[field]}" if kind == "model_type" and field in FORMS else ""
    return field, wanted.get(kind, detail["msg"]) + such, ""
