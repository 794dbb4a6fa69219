"""Settings of the tokenizer desk."""

from __future__ import annotations

from tokenizer_svc.effort import EffortTableError, parse_override
from wire.settings import Settings, SettingsError


class TokenizerSettings(Settings, frozen=True, kw_only=True):
    """`tokenizer_threads` work at a time; a chat template may render for `template_timeout_s` of CPU time.

    `reasoning_budgets` are entries `low=512` or `model:low=512` that change the table of efforts; `reasoning_bridge` is
    a sentence that the model is made to say before thinking is closed by its budget.
    """

    tokenizer_threads: int = 4
    template_timeout_s: float = 2.0
    reasoning_budgets: tuple[str, ...] = ()
    reasoning_bridge: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range("tokenizer_threads", least=1, most=1024)
        self._check_range("template_timeout_s", above=0, most=60)
        for entry in self.reasoning_budgets:
            try:
                parse_override(entry)
            except EffortTableError as error:
                raise SettingsError(str(error)) from None
