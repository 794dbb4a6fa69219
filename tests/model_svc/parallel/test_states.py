"""A model with states on two processes: each keeps the states of its part, and snapshots of them where plans say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_svc.engine.engine import Engine
from model_svc.engine.plan import Runner
from model_svc.layers.gated_delta_net import DeltaNetConfig
from model_svc.layers.group import Group
from model_svc.models.config import parse_config
from model_svc.parallel.load import check_model, load_runner
from model_svc.runner.load import load_runner as load_alone
from model_svc.runner.precision import RunnerConfigError
from tests.model_svc.models.test_parity import oracle_model
from tests.model_svc.runner.test_states import ask, prompt

OPTIONS: dict[str, Any] = {"dtype": "float32", "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 16}
MEMORY = 1 << 18


def uneven(path: Path, *, group: Group, **options: Any) -> Runner:
    """Load a rank, the last of which has the least memory."""
    return load_alone(path, group=group, kv_memory_bytes=MEMORY >> group.rank, **options)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    oracle_model("qwen3_5").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def runner(directory: Path) -> Iterator[Runner]:
    factory = "tests.model_svc.parallel.test_states:uneven"
    made = load_runner(directory, tensor_parallel=2, factory=factory, **OPTIONS)
    yield made
    made.close()


def test_a_conversation_goes_on_from_what_all_ranks_kept(runner: Runner, directory: Path) -> None:
    alone = load_alone(directory, num_blocks=60, **OPTIONS)
    together, single = (Engine(each, token_bytes=lambda _: b"x") for each in (runner, alone))
    answers = [ask(engine, "one", prompt(30, 1))[0] for engine in (together, single)]
    assert answers[0] == answers[1]
    turn = [*prompt(30, 1), *answers[0], *prompt(5, 2)]
    assert ask(together, "two", turn) == ask(single, "two", turn)
    assert ask(together, "again", turn)[1] > 40


def test_the_rank_with_the_least_room_says_how_many_states_there_are(runner: Runner, directory: Path) -> None:
    info, whole = runner.info, load_alone(directory, num_blocks=60, **OPTIONS).info.state_bytes
    most = (MEMORY // 2 // 2 // info.state_bytes - 1) // 2
    assert 0 < most < 6
    assert (info.max_num_seqs, info.num_snapshots) == (most, most)
    assert whole / 2 <= info.state_bytes < whole


def test_states_that_cannot_be_cut_so_are_refused_by_name() -> None:
    sizes = {"vocab_size": 9, "hidden_size": 24, "intermediate_size": 8, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 6, "linear_num_value_heads": 4, "mamba_n_heads": 6}
    for name, size, match in (
        ("Qwen3NextForCausalLM", 3, "tensor_parallel 3 does not divide the 4 parts of the model's states"),
        ("GraniteMoeHybridForCausalLM", 4, "tensor_parallel 4 does not divide the 6 parts of the model's states"),
    ):
        with pytest.raises(RunnerConfigError, match=match):
            check_model(parse_config(Path("x/config.json"), {"architectures": [name], **sizes, **heads}), size)
    pair = Group()
    pair.size = 2
    with pytest.raises(ValueError, match="set tensor_parallel to 1"):
        DeltaNetConfig(8, 2, 4, 8, 8, 4, 1e-6, in_turns=True).share(pair)
