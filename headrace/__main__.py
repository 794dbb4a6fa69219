"""The command line: up, serve, pull, chat, bench, doctor, keys, ledger, adapter, safety. All work is in modules."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace import adapter_commands, key_commands, safety_commands
from headrace.catalogue import CATALOGUE, DEFAULT_MODEL
from headrace.complain import fail
from headrace.up_options import TellsVariables
from wire import environment
from wire.flags import parse_flag_pairs
from wire.settings import SettingsError

app = typer.Typer(
    name="headrace",
    help="Serve language models as a team of small async services.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(key_commands.app, name="keys")
app.add_typer(adapter_commands.app, name="adapter")
app.add_typer(safety_commands.app, name="safety")
_STATE, _MODELS = "~/.local/state/headrace", "~/.local/share/headrace/models"
_PASS_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Serve language models as a team of small async services. To begin: `headrace up`."""


@app.command(cls=TellsVariables)
def up(
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of the catalogue or of --model-dir, or the path of a model directory; several names: a,b.",
            show_default=DEFAULT_MODEL,
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the API and the chat page.", show_default="8000")] = None,
    replicas: Annotated[int | None, typer.Option(help="Processes for each model.", show_default="1")] = None,
    prefill_replicas: Annotated[
        int | None, typer.Option(help="More processes for each model, for prompts alone.", show_default="0")
    ] = None,
    tensor_parallel: Annotated[int | None, typer.Option(help="Cards that share a model.", show_default="1")] = None,
    pipeline_parallel: Annotated[
        int | None, typer.Option(help="Cards that share a model, each with some layers.", show_default="1")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="fp8: keys and values in 8 bits.", show_default="auto")] = None,
    edges: Annotated[int | None, typer.Option(help="Edge processes that share the port.", show_default="1")] = None,
    split: Annotated[bool | None, typer.Option("--split", help="Run each desk as its own process.")] = None,
    state_dir: Annotated[
        str | None, typer.Option(help="Where the bus keeps its data, and the logs.", show_default=_STATE)
    ] = None,
    model_dir: Annotated[str | None, typer.Option(help="Where model directories live.", show_default=_MODELS)] = None,
    adapter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DIR", help="A LoRA adapter of the model; may be given again.")
    ] = None,
    adapter_dir: Annotated[
        str | None, typer.Option(help="Adapters below it may come and go at run time.", show_default=False)
    ] = None,
) -> None:
    """Start everything on this machine: get the model if needed, then serve API and chat page until Ctrl-C.

    Every other setting is a variable HEADRACE_NAME: `headrace serve edge --print-settings` shows those of a desk.
    """
    from headrace import up as command
    from headrace.settings import UpSettings

    try:
        if model and model_dir is None and ("/" in model or (Path(model) / "config.json").exists()):
            model, model_dir = command.model_place(model)
        flags = {
            "host": host, "port": port, "replicas": replicas, "prefill_replicas": prefill_replicas, "edges": edges,
            "tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel, "kv_dtype": kv_dtype,
            "split": split, "models": model, "adapters": adapter or None,
            "adapter_dir": adapter_dir,
        }  # fmt: skip
        settings = environment.load(UpSettings, overrides={**flags, "state_dir": state_dir, "model_dir": model_dir})
        command.check_desks(settings)
    except (SettingsError, command.UpError) as error:
        fail(str(error))
    raise typer.Exit(command.main(settings))


@app.command(context_settings=_PASS_ON)
def serve(
    context: typer.Context,
    role: Annotated[str, typer.Argument(help="edge, balancer, tokenizer, history, prefix, model; or several.")],
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port (of an edge alone).")] = 1,
    print_settings: Annotated[bool, typer.Option("--print-settings", help="Show the settings and leave.")] = False,
) -> None:
    """Run one desk (or several in one process): what compose files and `up` run. Flags are the desk's settings."""
    from headrace import roles

    names = [name.strip() for name in role.split(",") if name.strip()]
    try:
        flags = parse_flag_pairs(context.args)
        settings = roles.load_settings(names, flags)
    except SettingsError as error:
        fail(str(error))
    if print_settings:
        for name, found in settings.items():
            typer.echo(f"# {name}")
            typer.echo(environment.as_text(found))
        return
    if workers > 1:
        if names != ["edge"]:
            fail(f"--workers: only edges share a port, not {role}")
        from headrace import workers as command

        raise typer.Exit(command.main(settings["edge"], context.args, workers))
    roles.serve(names, settings)


@app.command()
def pull(
    source: Annotated[
        str | None,
        typer.Argument(
            help=f"A name of the catalogue ({', '.join(CATALOGUE)}), a .gguf file (of a split one any part), a hub "
            "repository (owner/name) or a file of one (owner/name/file.gguf); none: the models of HEADRACE_MODELS."
        ),
    ] = None,
    model_dir: Annotated[Path | None, typer.Option(help="Where model directories live.", show_default=_MODELS)] = None,
    name: Annotated[str | None, typer.Option(help="Name to serve it under.")] = None,
    pre: Annotated[str | None, typer.Option(help="Pre-tokenizer of a .gguf file that does not name its own.")] = None,
    mmproj: Annotated[
        str | None,
        typer.Option(
            help="File with which the model of a .gguf file sees; by default one that fits is found beside it. 'none': "
            "it shall see nothing."
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Replace a model directory that exists.")] = False,
) -> None:
    """Make a model directory in Hugging Face form. One that is there already is kept, without asking the network."""
    from headrace.pull import PullError
    from headrace.pull import pull as command
    from headrace.settings import UpSettings

    console = Console(stderr=True)
    try:
        settings = environment.load(UpSettings)
        for target in [source] if source else settings.models:
            directory = model_dir or Path(settings.model_dir)
            made = command(target, directory, console=console, name=name, pre=pre, mmproj=mmproj, again=again)
            typer.echo(made)
    except SettingsError as error:
        fail(str(error))
    except PullError as error:
        fail(str(error), 1)


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="Server to talk to.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Model; the server's first one if not given.")] = None,
    effort: Annotated[str | None, typer.Option(help="Thinking: none, minimal, low, medium, high or xhigh.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; what the model's makers advise if not given.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Key of the server; asked for, unseen, when it wants one and none is given.")
    ] = None,
) -> None:
    """Chat in the terminal with a running server. Ctrl-C stops an answer, Ctrl-D ends."""
    from headrace import chat as command

    raise typer.Exit(command.main(url, model=model, effort=effort, temperature=temperature, api_key=api_key))


@app.command()
def doctor() -> None:
    """Look at device, kernels, bus, model and ports, and say how to mend what is wrong."""
    from headrace import doctor as command

    raise typer.Exit(command.main())


@app.command()
def ledger(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's requests.")] = None,
    after: Annotated[str, typer.Option(help="Only entries behind the one of this id.")] = "-",
    sums: Annotated[bool, typer.Option("--sum", help="Totals by tenant and model instead of entries.")] = False,
    state_dir: Annotated[str | None, typer.Option(help="That of the `headrace up` whose ledger it is.")] = None,
) -> None:
    """Print what requests cost: prompt, cached, reasoning and completion tokens, one JSON object a line."""
    from headrace import ledger as command
    from headrace.settings import UpSettings

    try:
        settings = environment.load(UpSettings, overrides={"state_dir": state_dir})
        command.check_place(after)
    except SettingsError as error:
        fail(str(error))
    raise typer.Exit(command.main(settings, tenant=tenant, after=after, sums=sums))


@app.command(context_settings={**_PASS_ON, "help_option_names": []})
def bench(context: typer.Context) -> None:
    """Measure TTFT, TPOT and throughput of any OpenAI-style server (see `headrace bench --help`)."""
    from loadtest import bench as command

    raise typer.Exit(command.main(context.args))


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="headrace")


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[func-returns-value]
