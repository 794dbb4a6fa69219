"""Ctrl-C while the command line is still being loaded."""

import signal
import subprocess
import sys

_INTERRUPTED_BY_ITS_IMPORT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "headrace.__main__":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
from headrace.entry import main
main()
"""


def test_an_interruption_while_modules_are_loaded_is_silent() -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED_BY_ITS_IMPORT], capture_output=True, timeout=100)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == b""
