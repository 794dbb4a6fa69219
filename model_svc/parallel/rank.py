"""The process of a rank but the first: loads its part of the model and takes every plan that rank 0 takes.

It reads nothing that it computes: what is drawn it draws for itself, from the same logits. Only the last of several
stages does, as it alone draws, and tells rank 0. A rank ends when rank 0 does.
"""

from __future__ import annotations

import gc
import importlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from model_svc.card import waking
from model_svc.engine.plan import Runner
from model_svc.parallel.adapters import obey_adapter_order
from model_svc.parallel.answers import Answers
from model_svc.parallel.orders import AdvanceAdapter, Begin, BeginAdapter, LeaveAdapter, Masks, Order, Step, UseIdleTime
from model_svc.pipe import Frames
from wire.lifeline import die_with

if TYPE_CHECKING:  # imported later, with torch
    from model_svc.layers.group import Group

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 18


def orders(sock: socket.socket) -> Iterator[Order]:
    """Yield what rank 0 says, until it is gone."""
    frames: Frames[Order] = Frames(msgspec.msgpack.Decoder(Order))
    while data := sock.recv(_READ_BYTES):
        yield from frames.feed(data)


def obey(runner: Runner, said: Iterator[Order], answers: Answers | None = None, group: Group | None = None) -> None:
    """Do what rank 0 does; who has `answers` tells it there what each step drew."""
    handle: Any = None
    for order in said:
        match order:
            case Step(plan):
                handle = runner.submit(plan)
                if answers is not None:
                    answers.follow(handle)
            case Masks(masks):
                runner.mask(handle, masks)
            case UseIdleTime():
                runner.use_idle_time()  # type: ignore[attr-defined]  # rank 0 has asked whether it is there
            case BeginAdapter() | AdvanceAdapter() | LeaveAdapter():
                assert group is not None
                obey_adapter_order(runner, group, order)
            case Begin():
                raise ValueError("the rank has begun already")


def factory_named(name: str) -> Callable[..., Runner]:
    """Return a factory `module:function` of runners."""
    module, function = name.split(":")
    found: Callable[..., Runner] = getattr(importlib.import_module(module), function)
    return found


def serve(sock: socket.socket, answers: socket.socket | None = None) -> None:
    """Load what the first order names, then obey the others."""
    said = orders(sock)
    begin = next(said, None)
    if begin is None:
        return
    assert isinstance(begin, Begin), "the first order says how to begin"
    with waking(begin.device):
        join = importlib.import_module("model_svc.parallel.join")  # and with it torch
    store = join.arrive(begin.rank, begin.size, begin.place)
    group = join.join(store, begin.rank, begin.size, begin.device, begin.patience_s, staged=begin.staged)
    runner = factory_named(begin.factory)(begin.model_path, device=begin.device, group=group, **begin.options)
    gc.collect()
    gc.freeze()
    told = Answers(runner, answers) if answers is not None else None
    obey(runner, said, told, group)
    if told is not None:
        told.close()
    runner.close()
    group.close()


def main(argv: list[str]) -> None:
    """Arguments: rank 0's process id, the log level, the file descriptors that orders come by and answers go by."""
    leader_pid, level, *descriptors = argv
    logging.basicConfig(level=level, format="%(asctime)s rank %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with(int(leader_pid))
    try:
        serve(*(socket.socket(fileno=int(each)) for each in descriptors))
    except Exception as error:
        log.exception("this rank stops")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main(sys.argv[1:])
