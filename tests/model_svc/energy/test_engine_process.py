"""The engine's process with a meter: it is opened for the devices, told of by tokens, and closed at the end."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest

from model_svc import engine_process
from model_svc.engine.request import EngineRequest
from model_svc.engine_link import engine_config
from model_svc.engine_messages import Progress, Ready, ToService
from model_svc.pipe import EngineEnd, Frames, frame
from tests.model_svc.house import make_model, settings_for
from tests.model_svc.scripted_runner import Script
from wire.messages import Prompt, SamplingParams, pack_ids


class Meter:
    """Counts a joule each time it is read."""

    def __init__(self) -> None:
        self._joules = map(float, count())
        self.closed = threading.Event()

    def joules(self) -> float:
        return next(self._joules)

    def close(self) -> None:
        self.closed.set()


def said_until(service: socket.socket, kind: type[Ready] | None) -> Iterator[ToService]:
    """Yield what the engine says, up to the message of a kind or the end of an answer."""
    frames = Frames[ToService](msgspec.msgpack.Decoder(ToService))
    while True:
        for message in frames.feed(service.recv(1 << 16)):
            yield message
            ended = isinstance(message, Progress) and any(chunk.finish_reason for chunk in message.chunks)
            if ended or (kind is not None and isinstance(message, kind)):
                return


@pytest.mark.parametrize("energy", [True, False])
def test_tokens_tell_what_was_used_if_the_setting_says_so(
    energy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter, asked = Meter(), list[tuple[str, tuple[str, ...]]]()

    def meter_of(device: str, cards: tuple[str, ...]) -> Meter:
        asked.append((device, cards))
        return meter

    monkeypatch.setattr(engine_process, "meter_of", meter_of)
    make_model(tmp_path, Script(pieces=[65]))
    encoder = msgspec.msgpack.Encoder()
    ours, service = socket.socketpair()
    service.settimeout(60)
    with ours, service:
        engine = threading.Thread(target=engine_process.serve, args=(EngineEnd(ours),))
        engine.start()
        service.sendall(frame(encoder, engine_config(settings_for(tmp_path, "", energy=energy))))
        assert any(isinstance(message, Ready) for message in said_until(service, Ready))
        prompt = Prompt(token_ids=pack_ids([1]), num_tokens=1, max_tokens=5)
        service.sendall(frame(encoder, EngineRequest(request_id="r", prompt=prompt, sampling=SamplingParams())))
        said = list(said_until(service, None))
        service.shutdown(socket.SHUT_RDWR)
        engine.join(60)
    gc.unfreeze()
    told = [chunk.energy_j for message in said if isinstance(message, Progress) for chunk in message.chunks]
    assert len(told) == 5
    assert asked == ([("scripted", ())] if energy else [])
    assert meter.closed.is_set() is energy
    assert all((joules is not None) is energy for joules in told)
