"""What a meter counted is shared among those who had work: by their work, and to the last joule."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from model_svc.engine.engine import Engine
from model_svc.engine.plan import StepOutput
from tests.model_svc.random_requests import EOS, VOCAB, random_request, spelled
from tests.model_svc.scripted_runner import Reply, ScriptedRunner, hashed_reply, scripted_reply
from wire.errors import InvalidRequestError
from wire.messages import Prompt, SamplingParams, TokenChunk, pack_ids

REST_W, BUSY_W = 50.0, 300.0


class Device(ScriptedRunner):
    """Takes its time for a step, and counts what it uses."""

    def __init__(self, reply: Reply, *, prompt_ms: float = 1.0, answer_ms: float = 10.0, **sizes: int) -> None:
        super().__init__(reply, **sizes)
        self.now, self.joules = 0.0, 1000.0
        self._took: dict[int, float] = {}
        self._prompt_ms, self._answer_ms = prompt_ms, answer_ms

    def submit(self, plan: Any) -> int:
        prompt = sum(item.num_tokens for item in plan.sequences if item.num_tokens - item.num_drafts > 1)
        answers = sum(1 for item in plan.sequences if item.num_tokens - item.num_drafts == 1)
        self._took[plan.step] = prompt * self._prompt_ms + (self._answer_ms if answers else 0.0)
        return super().submit(plan)

    def collect(self, handle: int) -> StepOutput:
        took_ms = self._took.pop(handle)
        self.now += took_ms / 1e3
        self.joules += BUSY_W * took_ms / 1e3
        return msgspec.structs.replace(super().collect(handle), compute_ms=took_ms)

    def rest(self, seconds: float) -> None:
        self.now += seconds
        self.joules += REST_W * seconds


class House:
    """A metered engine on such a device; `bills` are what last chunks told."""

    def __init__(self, device: Device, *, metered: bool = True) -> None:
        self.device = device
        self.engine = Engine(
            device, token_bytes=spelled, eos_token_ids=(EOS,), clock=lambda: device.now, metered=metered
        )
        self.bills: dict[str, float | None] = {}
        self.chunks: list[TokenChunk] = []

    def ask(self, name: str, num_prompt: int, max_tokens: int) -> None:
        ids = [1 + len(self.bills) + len(name), *range(2, num_prompt + 1)]
        prompt = Prompt(token_ids=pack_ids(ids), num_tokens=len(ids), block_root=name.encode(), max_tokens=max_tokens)
        request = random_request(Random(0), name)
        sampling = SamplingParams(ignore_eos=True)
        self.engine.add(msgspec.structs.replace(request, prompt=prompt, sampling=sampling, priority=0))

    def step(self) -> None:
        for chunk in self.engine.step():
            self.chunks.append(chunk)
            if chunk.finish_reason is not None:
                self.bills[chunk.request_id] = chunk.energy_j
        self.engine.events()

    def read(self) -> None:
        self.engine.read_energy(self.device.joules, self.device.now)

    def run(self, *, read: bool = True) -> None:
        while self.engine.has_work:
            self.step()
            if read:
                self.read()

    def learn_rest(self) -> None:
        """Let a while go by without work, as before a replica's first request."""
        for _ in range(3):
            self.read()
            self.device.rest(1.0)
        self.read()


@pytest.fixture
def house() -> Iterator[House]:
    made = House(Device(scripted_reply(7), num_blocks=256, max_num_batched_tokens=128, max_model_len=256))
    made.learn_rest()
    yield made


@pytest.mark.parametrize("seed", range(12))
def test_what_all_pay_and_what_is_nobodys_is_what_the_counter_said(seed: int) -> None:
    rng = Random(seed)
    house = House(
        Device(
            hashed_reply(VOCAB), prompt_ms=rng.choice([0.1, 2.0]), answer_ms=rng.choice([1.0, 20.0]), vocab_size=VOCAB,
            num_blocks=rng.choice([16, 64]), depth=rng.choice([0, 1, 2]), max_num_seqs=rng.choice([2, 8]),
            max_num_batched_tokens=rng.choice([8, 64]),
        )
    )  # fmt: skip
    first, bills = house.device.joules, list[float]()
    house.read()

    def step() -> None:
        for chunk in house.engine.step():
            assert chunk.energy_j is not None and chunk.energy_j >= 0
            bills.extend([chunk.energy_j] if chunk.finish_reason is not None else [])
        house.engine.events()

    for number in range(60):
        request = msgspec.structs.replace(random_request(rng, f"r{number}"), attempt=0)
        request = msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, grammar=None))
        try:
            house.engine.add(request)
        except InvalidRequestError:
            continue
        for _ in range(rng.choice([0, 1, 3, 30])):
            if rng.random() < 0.3:
                house.read()
            if rng.random() < 0.05:
                house.engine.cancel(f"r{rng.randrange(number + 1)}", rng.choice([None, 0, 1]))
            if house.engine.has_work:
                step()
            else:
                house.device.rest(rng.choice([0.0, 0.01, 5.0]))
    while house.engine.has_work:
        step()
    house.read()
    energy = house.engine.energy
    assert energy is not None and len(bills) > 60
    assert sum(bills) == pytest.approx(energy.paid_j)
    assert energy.paid_j + energy.nobodys_j == pytest.approx(house.device.joules - first)
    assert energy.paid_j > 0


def test_answers_of_one_length_pay_the_same_and_one_of_twice_as_many_tokens_twice_that(house: House) -> None:
    for name, max_tokens in (("a", 40), ("b", 40), ("c", 80)):
        house.ask(name, 1, max_tokens)
    house.run()
    a, b, c = (house.bills[name] for name in "abc")
    assert a is not None and c is not None
    assert a == pytest.approx(b)
    assert c == pytest.approx(a + BUSY_W * 0.4)  # alone, it has the second half of 10 ms steps for itself
    assert a == pytest.approx(BUSY_W * 0.4 / 3)


def test_a_prompt_pays_for_its_tokens_by_what_they_cost_beside_an_answers(house: House) -> None:
    house.ask("first", 20, 2)  # what prompts and answers cost is measured
    house.run()
    house.ask("answer", 1, 60)
    for _ in range(10):
        house.step()
    house.ask("prompt", 100, 1)
    house.run()
    paid = house.bills["prompt"]
    assert paid == pytest.approx(BUSY_W * 0.1, rel=0.05)  # 100 tokens of 1 ms
    assert house.bills["answer"] == pytest.approx(BUSY_W * 0.6, rel=0.05)  # 60 steps of 10 ms, one of them shared


def test_what_is_used_at_rest_is_nobodys_also_between_two_steps(house: House) -> None:
    energy = house.engine.energy
    assert energy is not None and not energy.paid_j and energy.nobodys_j == pytest.approx(3 * REST_W)
    house.ask("a", 1, 10)
    while house.engine.has_work:
        house.step()
        house.device.rest(0.09)
        house.read()
    assert house.bills["a"] == pytest.approx(BUSY_W * 0.1, rel=0.01)


def test_who_ends_before_the_next_reading_pays_at_the_price_of_the_time_before(house: House) -> None:
    house.ask("a", 1, 20)
    house.run(read=False)
    assert house.bills["a"] == pytest.approx(REST_W * 0.2)  # before the first reading: what it takes to be there
    house.read()
    house.ask("b", 1, 20)
    house.run(read=False)
    assert house.bills["b"] == pytest.approx(BUSY_W * 0.2)


def test_a_cancelled_answer_tells_what_it_has_used(house: House) -> None:
    house.ask("a", 1, 100)
    for _ in range(10):
        house.step()
        house.read()
    house.engine.cancel("a")
    house.run()
    assert house.chunks[-1].finish_reason == "cancelled"
    assert house.bills["a"] == pytest.approx(BUSY_W * 0.1)


def test_each_token_tells_what_was_used_so_far(house: House) -> None:
    house.ask("a", 1, 8)
    house.run()
    told = [chunk.energy_j for chunk in house.chunks]
    assert len(told) == 8 and None not in told
    assert told == sorted(told) and told[-1] == house.bills["a"]  # type: ignore[type-var]


def test_a_counter_that_begins_anew_takes_nothing_back_and_ends_nothing(house: House) -> None:
    house.ask("a", 1, 30)
    for _ in range(10):
        house.step()
        house.read()
    house.device.joules = 0.0
    house.run()
    assert house.bills["a"] == pytest.approx(BUSY_W * 0.29)  # of one step nobody knows


def test_without_a_meter_and_behind_its_last_reading_nothing_is_told() -> None:
    house = House(Device(scripted_reply(7)), metered=False)
    house.ask("a", 1, 3)
    house.run()
    assert house.bills["a"] is None
    house = House(Device(scripted_reply(7)))
    house.engine.stop_metering()
    house.ask("a", 1, 3)
    house.run()
    assert house.bills["a"] is None
