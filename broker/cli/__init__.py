"""The command line: `broker VERB`, also installed as `spotbroker`.

Data goes to stdout and talk to stderr. One file per group of verbs; each imports what it needs at first use, so that
`broker --help` costs next to nothing.
"""

from __future__ import annotations

import gc
import sys

COLLECT_AFTER = 20_000
"""Objects made and kept, after which garbage is looked for. Python's 700 are met hundreds of times by imports alone."""


def main() -> None:
    """Entry point of the installed commands: run one verb and exit with its code."""
    gc.set_threshold(COLLECT_AFTER)
    from broker.cli.app import app
    from broker.cli.failure import exit_code

    code = exit_code(app)
    # Else Python looks through all that was imported, as it ends, which takes a quarter of a short verb's time.
    gc.freeze()
    sys.exit(code)
