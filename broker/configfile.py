"""Changes to the configuration file that leave the user's comments and other keys as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from broker.errors import ConfigError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def change(file: Path, edit: Callable[[TOMLDocument], TOMLDocument]) -> None:
    """Put what `edit` makes of the document in its place, whole, readable by its owner only.

    Whatever goes wrong, the old file is there. Raises ConfigError where it cannot be read or written.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    place = file.resolve()  # a link stays a link
    try:
        text = place.read_text(encoding="utf-8") if place.exists() else ""
        document = tomlkit.parse(text)
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", fix=f"mend or remove {file}") from error
    document = edit(document)
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(tomlkit.dumps(document))
            out.flush()
            os.fsync(out.fileno())
        draft.replace(place)
    except OSError as error:
        draft.unlink(missing_ok=True)
        why = error.strerror or error
        raise ConfigError(f"{file} cannot be written: {why}", fix=f"make {file} writable") from error


def with_home(document: TOMLDocument, url: str, settings: Mapping[str, str | bool], *, anew: bool) -> TOMLDocument:
    """The document with that home. anew: it is another one, so that no setting of the old one's stays."""
    import tomlkit

    if "home" in document:
        document["home"] = url
    else:
        # In front of all else: a key of the top level must not stand below a table's head.
        document = tomlkit.parse(f"home = {tomlkit.item(url).as_string()}\n{tomlkit.dumps(document)}")
    table = document.setdefault("home_config", tomlkit.table())
    for key in list(table) if anew else []:
        del table[key]
    for key, value in settings.items():
        table[key] = value
    return document
