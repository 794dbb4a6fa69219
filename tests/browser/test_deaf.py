"""The browser under test is told nothing of the machine's network, in which containers come and go."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.browser import deaf

TRY = "import socket; socket.socket(); socket.socket(getattr(socket, {!r}), socket.SOCK_RAW)"


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux only")
def test_what_is_started_may_speak_with_servers_and_not_with_the_kernel() -> None:
    command = [sys.executable, deaf.__file__, sys.executable, "-c", TRY.format("AF_NETLINK")]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert "Address family not supported by protocol" in told
    again = subprocess.run(command[2:], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr


def test_its_windows_are_without_extras_and_what_else_is_told_holds() -> None:
    told = deaf.without_extras(["chromium", "--disable-features=One,Two", "--headless"])
    assert told[0] == "chromium" and told[2] == "--headless"
    assert told[1].startswith("--disable-features=One,Two,") and "WebUIOmniboxPopup" in told[1]
