"""`headrace up` takes most settings from the environment: given one as an option, it names the variable."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from wire.environment import ENV_PREFIX


class TellsVariables(TyperCommand):
    """A command that knows the desks' settings, which are no options of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; an option that is a setting ends it with the way out."""
        from headrace.roles import ROLES, settings_class  # here, so that other commands start without them

        own = {name for param in self.params for name in param.opts}
        for option in (arg.partition("=")[0] for arg in args if arg.startswith("--")):
            name = option.removeprefix("--").replace("-", "_")
            if option not in own and any(name in settings_class(role).__struct_fields__ for role in ROLES):
                ctx.fail(f"No such option: {option} (set {ENV_PREFIX}{name.upper()} in the environment)")
        return super().parse_args(ctx, args)
