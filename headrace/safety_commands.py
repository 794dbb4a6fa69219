"""`headrace safety`: the commands for safety policies. The work is in `headrace.safety`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.complain import fail

app = typer.Typer(help="Safety policies: see what their rules do.", no_args_is_help=True)


@app.callback()
def _safety() -> None:
    """Keep `test` a command of its own, though it is the only one."""


@app.command("test")
def test(
    policy: Annotated[Path, typer.Argument(help="The policy file (docs/safety.md).")],
    file: Annotated[Path, typer.Argument(help="The text; - reads standard input.")],
    direction: Annotated[str, typer.Option(help="prompt, answer, reasoning or tool.")] = "answer",
) -> None:
    """Show what each rule of a policy does to a text, and what would leave."""
    from gateway.postprocess.safety.policy import SafetyPolicyError
    from headrace import safety as command

    if direction not in ("prompt", "answer", "reasoning", "tool"):
        fail(f"--direction: {direction!r} is none of prompt, answer, reasoning, tool")
    try:
        raise typer.Exit(command.main(policy, file, direction, sys.stdout))  # type: ignore[arg-type]
    except (SafetyPolicyError, OSError) as error:
        fail(error)
