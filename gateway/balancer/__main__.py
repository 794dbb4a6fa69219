"""Run the balancer: `python -m gateway.balancer`."""

from __future__ import annotations

from gateway.balancer.service import serve
from gateway.balancer.settings import BalancerSettings
from wire.process import run
from wire.settings import from_command_line

if __name__ == "__main__":
    run(serve, from_command_line(BalancerSettings), name="balancer")
