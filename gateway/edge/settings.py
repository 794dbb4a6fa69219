"""Settings of the edge."""

from __future__ import annotations

from ipaddress import ip_address

from gateway.edge.picture_header import MOST_PIXELS
from gateway.postprocess.tools.styles import STYLES
from wire.settings import Settings, SettingsError
from wire.tool_style import HARMONY


class EdgeSettings(Settings, frozen=True, kw_only=True):
    """How the edge listens, what it admits and when it gives up on a client.

    `allowed_hosts` are names in the Host header beyond loopback names, IP addresses and names without a dot ("*" allows
    all). `cors_origins` are pages of other origins that may call; none by default. `max_pending_tokens` bounds what is
    kept for a client that reads slowly: beyond it that one request is aborted. A client that takes no byte for
    `send_timeout_s` is cut off, and so is one that does not send a request's headers (at most `max_head_bytes`) within
    `head_timeout_s`, and a second more for each 100 bytes. Beyond `max_connections` (0: as there are file descriptors)
    the one that has been idle longest ends for a new one. A request whose first token is predicted to come later than
    `max_wait_s` (0: than its deadline, `request_timeout_s`) is refused. A client that lost a resumable stream is waited
    for `resume_wait_s`. `safety_policy` is a policy file, or a directory with one for each tenant and `default.toml`,
    looked at for changes every `safety_reload_s`; `safety_judgements` texts may be before judges at a time.
    `tool_styles` are entries `hermes` or `model=hermes` that say how models write tool calls, if their chat templates
    do not tell. `api_keys` is the path of a file of keys, looked at again every `api_keys_poll_s`; without one nobody
    is asked for a key. A response made in the background has `background_timeout_s`; its events are kept for
    `background_events_s` after the last one; an edge that does not renew its promise for `background_lease_s` is
    taken for dead, and another one goes on. A request may have `max_images` pictures of `max_image_bytes` and
    `max_image_pixels` each; where a model sees some, bodies that can hold any may have `max_image_body_bytes`, if that
    is more than `max_body_bytes`.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    reuse_port: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_inflight: int = 256
    max_choices: int = 16
    max_prompts: int = 64
    max_body_bytes: int = 8 * 1024 * 1024
    max_head_bytes: int = 64 * 1024
    max_images: int = 16
    max_image_bytes: int = 10 * 1024 * 1024
    max_image_pixels: int = 40_000_000
    max_image_body_bytes: int = 32 * 1024 * 1024
    max_connections: int = 0
    max_pending_tokens: int = 65_536
    request_timeout_s: float = 600.0
    max_wait_s: float = 0.0
    background_timeout_s: float = 3600.0
    background_events_s: float = 3600.0
    background_lease_s: float = 10.0
    history_timeout_s: float = 10.0
    tokenize_timeout_s: float = 10.0
    keep_alive_s: float = 15.0
    send_timeout_s: float = 30.0
    head_timeout_s: float = 30.0
    resume_wait_s: float = 60.0
    safety_policy: str = ""
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    safety_reload_s: float = 2.0
    safety_judgements: int = 64
    tool_styles: tuple[str, ...] = ()
    api_keys: str = ""
    api_keys_poll_s: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(
            "safety_judgements",
            "max_inflight",
            "max_choices",
            "max_prompts",
            "max_body_bytes",
            "max_head_bytes",
            "max_images",
            "max_image_bytes",
            "max_image_body_bytes",
            "max_pending_tokens",
            least=1,
        )
        self._check_range("max_image_pixels", least=1, most=MOST_PIXELS)
        self._check_range(
            "background_timeout_s",
            "background_events_s",
            "background_lease_s",
            "request_timeout_s",
            "safety_reload_s",
            "history_timeout_s",
            "tokenize_timeout_s",
            "keep_alive_s",
            "resume_wait_s",
            "send_timeout_s",
            "head_timeout_s",
            "api_keys_poll_s",
            above=0,
            most=1e9,
        )
        self._check_range("max_wait_s", "max_connections", least=0)
        self._check_range("port", least=0, most=65_535)
        self._check_host("host")
        if not self.reasoning_fields or not set(self.reasoning_fields) <= {"reasoning_content", "reasoning"}:
            raise SettingsError("reasoning_fields must be reasoning_content, reasoning or both, separated by a comma")
        for entry in self.tool_styles:
            if entry.rpartition("=")[2] not in (styles := [style for style in STYLES if style != HARMONY]):
                raise SettingsError(f"tool_styles: {entry!r} must end with one of {', '.join(styles)}")

    def tool_style(self, model: str) -> str | None:
        """Return the style of tool calls that is set for a model; an entry of its own counts before one for all."""
        styles = {name: style for name, _, style in (entry.rpartition("=") for entry in self.tool_styles)}
        return styles.get(model, styles.get(""))


def is_ip_address(host: str) -> bool:
    """Tell whether a host is a literal address."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
