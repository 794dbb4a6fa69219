"""Where a replica listens that names no address: on the way that leads to the bus, whatever the host's name maps to."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from model_svc.disagg.address import facing

IN_A_NAMESPACE = """
import subprocess, sys
from model_svc.disagg.address import facing
for name, address in (("ring", "10.89.0.7/24"), ("other", "10.77.0.9/24")):
    for words in (
        ["link", "add", name, "type", "veth", "peer", "name", "far" + name], ["addr", "add", address, "dev", name],
        ["link", "set", name, "up"], ["link", "set", "far" + name, "up"],
    ):
        subprocess.run(["ip", *words], check=True)
print(facing(sys.argv[1]))
"""


def test_a_bus_on_this_host_is_faced_from_loopback() -> None:
    assert facing("unix:///run/headrace/bus.sock") == "127.0.0.1"
    assert facing("redis://headrace:secret@127.0.0.1:6379/0") == "127.0.0.1"
    assert facing("rediss://[::1]:6380/0") == "::1"
    assert facing("redis+cluster://localhost:7000") in ("127.0.0.1", "::1")


def test_a_bus_whose_name_nobody_knows_is_an_error() -> None:
    with pytest.raises(OSError, match=r".+"):
        facing("redis://no-such-host.invalid:6379")


@pytest.mark.parametrize(("bus", "own"), [("10.89.0.2", "10.89.0.7"), ("10.77.0.2", "10.77.0.9")])
def test_of_several_networks_the_one_of_the_bus_is_taken(bus: str, own: str) -> None:
    alone = ["unshare", "--net", "--map-root-user"]
    if not shutil.which("ip") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    command = [*alone, sys.executable, "-c", IN_A_NAMESPACE, f"redis://{bus}:6379/0"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == own
