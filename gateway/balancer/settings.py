"""Settings of the balancer."""

from __future__ import annotations

from gateway.balancer.policy import POLICIES
from wire.settings import Settings, SettingsError


class BalancerSettings(Settings, frozen=True, kw_only=True):
    """How replicas are chosen and how long a request waits for one.

    `balancer_policy` names a function of `gateway.balancer.policy`. A request waits up to `balancer_wait_s` when no
    replica is known, and up to `balancer_loading_wait_s` while one says that it is loading, or since one left: another
    will take its place. `balancer_concurrency` may wait at a time. A replica fetches KV blocks from another one where
    that is predicted to take at most `balancer_fetch_share` of the time of computing them (0: never); the prediction is
    rough, and the other one has something else to do, too.
    """

    balancer_policy: str = "prefix_and_load"
    balancer_wait_s: float = 5.0
    balancer_loading_wait_s: float = 120.0
    balancer_concurrency: int = 256
    balancer_fetch_share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.balancer_policy not in POLICIES:
            raise SettingsError(f"balancer_policy must be one of {', '.join(POLICIES)}, not {self.balancer_policy!r}")
        self._check_range("balancer_wait_s", "balancer_loading_wait_s", "balancer_fetch_share", least=0)
        self._check_range("balancer_concurrency", least=1)
