"""The console script: Ctrl-C while Python still loads modules ends it, without a traceback of theirs."""

from __future__ import annotations

import signal


def main() -> None:
    """Load the command line and run it."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else our parent has it ignored
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from headrace.__main__ import main as run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
