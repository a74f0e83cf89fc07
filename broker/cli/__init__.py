"""The command line: `broker VERB`, also installed as `spotbroker`.

Data goes to stdout and talk to stderr. One file per group of verbs; each imports what it needs at first use, so that
`broker --help` costs next to nothing.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the installed commands: run one verb and exit with its code."""
    from broker.cli.app import app
    from broker.cli.failure import exit_code

    sys.exit(exit_code(app))
