"""The mark of a turn that is admitted and not stored yet, and scripts that read one."""

from __future__ import annotations

from wire.bus.script import Script

# Number in order of admission, deadline, last turn seen ("?": not looked yet), overdue, parent, request, model.
_MARK = "'^(%d+) (%d+) (%S+) (%d) (%S+) (%S+) (.*)$'"


def script(text: str) -> Script:
    """Return a script; in its text MARK is the pattern of a mark."""
    return Script(text.replace("MARK", _MARK))
