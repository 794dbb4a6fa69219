"""A Chromium that hears nothing of the machine's network interfaces, and makes no more of itself than tests need.

It gives up every open request when an address comes or goes (ERR_NETWORK_CHANGED), also those to the machine itself;
and they come and go whenever a container is started beside. And each new window would run two web pages for what drops
down from the address bar, which nobody sees: more than half of what a window costs.
Run by `conftest.py`: `deaf.py CHROMIUM ARGUMENTS…`
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
_AF_NETLINK = 16
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_NOT_WANTED = ("SpareRendererForSitePerProcess", "WebUIOmniboxAimPopup", "WebUIOmniboxPopup")
_LOAD, _SKIP_UNLESS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EAFNOSUPPORT
_CALL_AT, _FAMILY_AT = 0, 16  # in what the kernel shows of a call


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def hear_nothing() -> None:
    """Take from this process, and all that it starts, the sockets by which the kernel tells of interfaces."""
    number = _SOCKET_CALL.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    steps = [
        (_LOAD, 0, 0, _CALL_AT),
        (_SKIP_UNLESS_EQUAL, 0, 3, number),
        (_LOAD, 0, 0, _FAMILY_AT),
        (_SKIP_UNLESS_EQUAL, 0, 1, _AF_NETLINK),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program = _Program(len(steps), b"".join(struct.pack("=HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "the filter was not taken")


def without_extras(arguments: list[str]) -> list[str]:
    """Return the arguments with more features off: of several such lists, the last one alone would count."""
    off = "--disable-features="
    return [",".join((one, *_NOT_WANTED)) if one.startswith(off) else one for one in arguments]


if __name__ == "__main__":
    hear_nothing()
    os.execv(sys.argv[1], without_extras(sys.argv[1:]))
