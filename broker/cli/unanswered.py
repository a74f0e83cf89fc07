"""Who could not be asked for offers, each said once and briefly."""

from __future__ import annotations

from collections.abc import Mapping

from broker.cli.screen import Screen


def tell_unanswered(screen: Screen, failures: Mapping[str, str]) -> None:
    """Warn of those that did not answer; those that were never set up are only named."""
    from broker.registry import NEEDS

    failing, absent = unanswered(failures)
    for text in failing:
        # Nobody has to want every provider: one that was never installed is no cause for alarm.
        if NEEDS in text:
            screen.say(text, style="dim")
        else:
            screen.warn(text)
    if absent:
        screen.say(f"{absent}; broker check says how to set up", style="dim")


def unanswered(failures: Mapping[str, str]) -> tuple[list[str], str]:
    """A line for each provider or region that did not answer; and one for all without a key, empty for none of them."""
    from broker.market import NOT_SET_UP

    absent = [name for name, text in failures.items() if text == NOT_SET_UP]
    failing = [f"{name}: {text.removeprefix(f'{name} ')}" for name, text in failures.items() if text != NOT_SET_UP]
    return failing, f"{', '.join(absent)}: {NOT_SET_UP}" if absent else ""
