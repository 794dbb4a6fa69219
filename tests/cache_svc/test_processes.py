"""History desk, prefix desk and balancer as processes of their own: they serve, they show settings, they stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import redis

from cache_svc.history.settings import HistorySettings
from cache_svc.prefix.settings import PrefixSettings
from gateway.balancer.settings import BalancerSettings
from wire import topics
from wire.environment import load
from wire.settings import Settings, SettingsError

DESKS = {
    "cache_svc.history": topics.history(0),
    "cache_svc.prefix": topics.prefix(0, "m"),
    "gateway.balancer": topics.balancer(0, "m"),
}


def test_each_desk_reads_its_stream_until_it_is_told_to_stop(bus_url: str) -> None:
    environ = {**os.environ, "HEADRACE_REDIS_URL": bus_url, "HEADRACE_MODELS": "m"}
    processes = [subprocess.Popen([sys.executable, "-m", module], env=environ) for module in DESKS]
    try:
        with redis.Redis.from_url(bus_url) as client:
            give_up = time.monotonic() + 60
            while not all(client.exists(stream) and client.xinfo_groups(stream) for stream in DESKS.values()):
                assert time.monotonic() < give_up
                assert all(process.poll() is None for process in processes)
                time.sleep(0.02)
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_settings_are_shown_and_a_wrong_flag_is_named() -> None:
    command = [sys.executable, "-m", "cache_svc.history"]
    shown = subprocess.run([*command, "--print-settings"], capture_output=True, text=True, check=True)
    assert "history_ttl_days = 30.0" in shown.stdout
    refused = subprocess.run([*command, "--history-ttl", "1"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--history-ttl: no such flag" in refused.stderr


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (HistorySettings, "history_ttl_days", 0),
        (HistorySettings, "history_turn_wait_s", -1),
        (HistorySettings, "history_rewrite_s", -1),
        (HistorySettings, "history_concurrency", 1),
        (PrefixSettings, "prefix_max_blocks", 0),
        (PrefixSettings, "prefix_concurrency", 0),
        (BalancerSettings, "balancer_policy", "psychic"),
        (BalancerSettings, "balancer_wait_s", -1),
        (BalancerSettings, "balancer_concurrency", 0),
    ],
)
def test_a_setting_out_of_range_is_named(cls: type[Settings], field: str, value: object) -> None:
    with pytest.raises(SettingsError, match=field):
        load(cls, environ={}, overrides={field: value})
