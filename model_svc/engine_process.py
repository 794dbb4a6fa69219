"""The engine's process: loads the model, then steps while there is work and sleeps while there is none.

Commands are looked at between two steps, so a cancel takes effect at the next one. The process ends when the service
does: the pipe's end says so, and on Linux the kernel kills us even in the middle of a long step.
"""

from __future__ import annotations

import gc
import importlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from model_svc.card import waking
from model_svc.departures import Departures
from model_svc.disagg.engine_end import EngineBlocks, HasBlocks
from model_svc.disagg.orders import ReadBlocks, WriteBlocks
from model_svc.disagg.staging import Staging
from model_svc.energy.meter import meter_of
from model_svc.energy.sampler import Sampler
from model_svc.engine.adapter_places import AdapterPlaces, HasAdapterPlaces
from model_svc.engine.drafter import Drafter
from model_svc.engine.engine import Engine
from model_svc.engine.matchers import LlguidanceMatchers
from model_svc.engine.plan import Runner, UsesIdleTime
from model_svc.engine.request import EngineRequest
from model_svc.engine.token_bytes import tag_bytes
from model_svc.engine_adapters import EngineAdapters
from model_svc.engine_messages import (
    Broken,
    CancelSequences,
    CloseThinking,
    DropAdapter,
    EngineConfig,
    LoadAdapter,
    Progress,
    Ready,
    Refused,
    ReportNames,
    ToEngine,
)
from model_svc.pipe import EngineEnd
from model_svc.runner import start_times
from model_svc.runner.spare_time import HasSpareTime, SpareTime
from model_svc.spec.ngram import PROPOSERS
from wire.errors import HeadraceError, StartError
from wire.grammar import grammar_tokenizer
from wire.lifeline import die_with
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

log = logging.getLogger(__name__)

LOAD_EVERY_S = 0.1
_FILES_S = 0.01
QUIET_S = 0.1  # a client that asks anew after each answer does so sooner


def load_runner(config: EngineConfig) -> Runner:
    """Call the runner factory that the settings name."""
    module, function = config.runner.split(":")
    gc.disable()  # hardly anything of modules is garbage, and looking for it takes a tenth of their import
    try:
        with start_times.part("import of the runner"), waking(str(config.runner_options.get("device", ""))):
            factory: Callable[..., Runner] = getattr(importlib.import_module(module), function)
    finally:
        gc.enable()
    return factory(Path(config.model_path), **config.runner_options)


def _drafter(config: EngineConfig, runner: Runner) -> Drafter | None:
    max_drafts = runner.info.max_drafts
    if not config.proposer or not max_drafts:
        return None
    return Drafter(PROPOSERS[config.proposer](), max_length=config.num_draft_tokens, max_drafts=max_drafts)


def _sampler(config: EngineConfig, runner: Runner) -> Sampler | None:
    """Return what reads the energy of the runner's devices, where it can be read."""
    meter = meter_of(runner.info.device, runner.info.cards) if config.metered else None
    return Sampler(meter) if meter is not None else None


class EngineLoop:
    """Between pipe and engine."""

    def __init__(
        self,
        pipe: EngineEnd,
        engine: Engine,
        spare: SpareTime | None = None,
        use_idle_time: Callable[[], bool] | None = None,
        stream_interval: int | None = None,
        blocks: EngineBlocks | None = None,
        awake_s: float = 0.0,
        sampler: Sampler | None = None,
        adapters: EngineAdapters | None = None,
    ) -> None:
        """`use_idle_time` does a short part of what can wait, and tells whether more may be left for now."""
        self._blocks = blocks
        self._adapters = adapters or EngineAdapters(pipe, engine, None)
        self._awake_s = awake_s
        self._sampler = sampler
        self._pipe = pipe
        self._engine = engine
        self._use_idle_time = use_idle_time
        self._departures = Departures(pipe, spare, stream_interval)
        self._step = 0
        self._load_sent_at = 0.0

    def run(self) -> None:
        """Work until the service is gone."""
        if self._sampler is not None:
            self._read_energy(self._sampler, was_idle=True)
        try:
            while True:
                idle = not self._engine.has_work
                if idle:
                    self._departures.let_go()
                    if not self._adapters.is_loading:
                        self._idle()
                commands = self._pipe.receive(wait=idle and not self._loads_on())
                if self._sampler is not None:
                    self._read_energy(self._sampler, was_idle=idle)
                for command in commands:
                    self._obey(command)
                self._adapters.advance()
                if self._engine.has_work:
                    self._advance()
        finally:
            self._departures.let_go()  # also what came before a step that failed

    def _idle(self) -> None:
        """Use the time until something arrives, once nothing has for a while."""
        if self._awake_s and self._pipe.look_for_news(self._awake_s):
            return
        quiet_s = QUIET_S
        while self._use_idle_time is not None and not self._pipe.has_news(quiet_s) and self._use_idle_time():
            quiet_s = 0.0

    def _loads_on(self) -> bool:
        """Tell whether an adapter is loaded, of which no message tells how far it is; files are given a moment."""
        if self._adapters.is_reading:
            self._pipe.has_news(_FILES_S)
        return self._adapters.is_loading

    def _advance(self) -> None:
        chunks = self._engine.step()
        events = self._engine.events()
        self._step += 1
        now = time.monotonic()
        load = None
        if now - self._load_sent_at >= LOAD_EVERY_S or not self._engine.has_work:
            load = self._engine.load()
            self._load_sent_at = now
        if chunks or events or load is not None:
            progress = Progress(step=self._step, chunks=tuple(chunks), events=tuple(events), load=load)
            self._departures.leave(progress, more_follows=self._engine.has_work)
        else:
            self._departures.let_go()  # who knows when there will be more to go with

    def _read_energy(self, sampler: Sampler, *, was_idle: bool) -> None:
        """Have what was used shared out; in the middle of work the newest reading, if there is work to share it by."""
        if sampler.failed:
            self._engine.stop_metering()
            self._sampler = None
        elif was_idle:
            for reading in sampler.take():
                self._engine.read_energy(*reading)
        elif self._engine.has_unread_work and (readings := sampler.take()):
            self._engine.read_energy(*readings[-1])

    def _obey(self, command: ToEngine) -> None:
        match command:
            case EngineRequest():
                self._add(command)
            case CancelSequences():
                self._engine.cancel(command.request_id, command.choice)
            case CloseThinking():
                self._engine.end_reasoning(command.request_id)
            case ReportNames():
                self._engine.report_blocks()
            case LoadAdapter():
                self._adapters.load(command)
            case DropAdapter():
                self._adapters.drop(command)
            case ReadBlocks() | WriteBlocks():
                assert self._blocks is not None, "blocks are asked for that this runner cannot give"
                self._pipe.send(self._blocks.obey(command))
            case EngineConfig():
                raise ValueError("the engine is configured already")

    def _add(self, request: EngineRequest) -> None:
        try:
            self._engine.add(request)
        except HeadraceError as error:
            refused = Refused(
                request_id=request.request_id,
                attempt=request.attempt,
                code=error.code,
                message=error.message,
                param=error.param,
            )
            self._pipe.send(refused)


def _blocks(config: EngineConfig, runner: Runner, engine: Engine) -> EngineBlocks | None:
    """Return what exchanges blocks with other replicas, where this runner's can be."""
    layout = runner.info.kv
    if layout is None or config.staging_fd < 0:
        return None
    assert isinstance(runner, HasBlocks), "a layout of blocks is told that cannot be copied"
    return EngineBlocks(engine.scheduler.roster, runner.blocks, Staging(config.staging_fd, layout.block_bytes))


def _places(runner: Runner) -> AdapterPlaces | None:
    """Return the room for adapters that come at run time, if there is some."""
    return runner.adapter_places if runner.info.adapter_room and isinstance(runner, HasAdapterPlaces) else None


def serve(pipe: EngineEnd) -> None:
    """Load what the first message names, then run the loop. An exception ends the process; its reason goes ahead."""
    try:
        config = pipe.receive(wait=True)[0]
        assert isinstance(config, EngineConfig), "the first message configures the engine"
        path = Path(config.model_path)
        with start_times.part("vocabulary"):
            card, vocabulary = ModelCard.load(path), Vocabulary.load(path)
        # Made while the weights are read: it takes longer than the first request with a grammar should wait.
        matchers = LlguidanceMatchers(lambda: grammar_tokenizer(vocabulary, card.eos_token_ids, card.vocab_size))
        runner = load_runner(config)
        sampler = _sampler(config, runner)
        engine = Engine(
            runner,
            token_bytes=tag_bytes(vocabulary),
            eos_token_ids=card.eos_token_ids,
            policy=config.policy,
            inter_token_ms=config.inter_token_ms,
            patience_s=config.patience_s,
            matchers=matchers,
            drafter=_drafter(config, runner),
            metered=sampler is not None,
        )
        gc.collect()
        gc.freeze()  # what is loaded stays: the collector need not walk it in the middle of a step
        log.info("ready: %s", start_times.told())
        pipe.send(Ready(info=runner.info, seconds=start_times.seconds))
        try:
            spare = runner.spare if isinstance(runner, HasSpareTime) else None
            idle = runner.use_idle_time if isinstance(runner, UsesIdleTime) else None
            blocks = _blocks(config, runner, engine)
            if sampler is not None:
                sampler.start()
            adapters = EngineAdapters(pipe, engine, _places(runner))
            interval, awake_s = config.stream_interval, config.awake_s
            EngineLoop(pipe, engine, spare, idle, interval, blocks, awake_s, sampler, adapters).run()
        finally:
            if sampler is not None:
                sampler.close()
            runner.close()
            matchers.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the service is gone
    except StartError as error:  # it says all
        log.error("the engine stops: %s", error)
        pipe.send(Broken(message=str(error)))
        raise SystemExit(1) from error
    except Exception as error:
        log.exception("the engine stops")
        pipe.send(Broken(message=f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from error


def main(argv: list[str]) -> None:
    """Arguments: the pipe's file descriptor, the service's process id, the log level."""
    descriptor, service_pid, level = argv
    logging.basicConfig(level=level.upper(), format="%(asctime)s engine %(levelname)s %(name)s: %(message)s")
    # Signals for the whole group are the service's affair.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with(int(service_pid))
    serve(EngineEnd(socket.socket(fileno=int(descriptor))))


if __name__ == "__main__":
    main(sys.argv[1:])
