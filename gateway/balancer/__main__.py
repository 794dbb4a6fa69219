"""Run the balancer: `python -m gateway.balancer`."""

from __future__ import annotations

from gateway.balancer.service import serve
from gateway.balancer.settings import BalancerSettings
from wire.flags import from_command_line
from wire.process import run

if __name__ == "__main__":
    run(serve, from_command_line(BalancerSettings), name="balancer")
