"""A task's labels: what its machines are tagged with besides our own tags. Checked for what every cloud could hold.

The limits are the narrowest of those that take free text: AWS ("Tag naming limits and requirements": 128 and 256
characters, no `aws:`) and Azure ("Limits and requirements" of tags: no `<>%&\\?/` in names, reserved prefixes). Some
APIs hold less, such as GCP's lower-case labels; what a provider cannot hold its adapter leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker.document import Problem

OURS = "spotbroker-"
RESERVED = ("aws:", "azure", "microsoft", "windows")
LONGEST_NAME, LONGEST_VALUE, MOST = 128, 256, 40
NOT_IN_NAMES = set("<>%&\\?/")


def problems(labels: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with a task's labels."""
    field = "resources.labels"
    if len(labels) > MOST:
        yield Problem(field, f"{len(labels)} are more than the {MOST} that a machine can carry")
    for name, value in labels.items():
        place = f"{field}.{name}"
        if not isinstance(name, str) or not isinstance(value, str):
            yield Problem(field, "names and values must be text")
        elif not name.strip() or name != name.strip() or not name.isprintable():
            yield Problem(field, f"{name!r} cannot be a label's name: it must be one printable word or more")
        elif name.lower().startswith(OURS):
            yield Problem(place, f"names that start with {OURS} are the broker's own", "choose another name")
        elif name.lower().startswith(RESERVED):
            yield Problem(place, "its name is reserved by a cloud", f"none may start with {', '.join(RESERVED)}")
        elif bad := sorted(NOT_IN_NAMES.intersection(name)):
            yield Problem(place, f"{' '.join(bad)} cannot stand in a label's name")
        elif len(name) > LONGEST_NAME:
            yield Problem(field, f"the name {name[:20]}… has {len(name)} characters, at most {LONGEST_NAME} are held")
        elif len(value) > LONGEST_VALUE:
            yield Problem(place, f"has {len(value)} characters, of which at most {LONGEST_VALUE} are held")
        elif value and not value.isprintable():
            yield Problem(place, "must be one printable line")
