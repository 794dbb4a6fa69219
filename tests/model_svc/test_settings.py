"""A wrong setting of a replica is named at the start."""

from __future__ import annotations

import pytest

from model_svc.runner.precision import _DTYPES, _WORDS
from model_svc.settings import DTYPES, ModelSettings
from wire.environment import load
from wire.settings import SettingsError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODEL", "unknown"),
        ("SCHEDULING_POLICY", "random"),
        ("RUNNER", "no_function"),
        ("NUM_BLOCKS", "0"),
        ("MAX_NUM_SEQS", "0"),
        ("MAX_NUM_BATCHED_TOKENS", "-1"),
        ("HEARTBEAT_S", "0"),
        ("STALL_S", "nan"),
        ("THREADS", "many"),
        ("STREAM_INTERVAL", "0"),
        ("TENSOR_PARALLEL", "0"),
        ("DEVICE", ""),
        ("DEVICE", "gpu"),
        ("DTYPE", "float8"),
        ("KV_PORT", "65536"),
        ("KV_RAM_GIB", "-1"),
        ("KV_DISK_GIB", "nan"),
        ("INTER_TOKEN_MS", "-1"),
    ],
)
def test_a_setting_that_cannot_work_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(ModelSettings, {f"HEADRACE_{name}": value})
    assert str(caught.value).startswith(f"HEADRACE_{name}")


def test_the_first_model_is_served_unless_another_is_named() -> None:
    assert load(ModelSettings, {"HEADRACE_MODELS": "a,b"}).served_model == "a"
    assert load(ModelSettings, {"HEADRACE_MODELS": "a,b", "HEADRACE_MODEL": "b"}).served_model == "b"


def test_limits_are_numbers_or_left_to_the_machine() -> None:
    assert load(ModelSettings, {}).num_blocks is None
    assert load(ModelSettings, {"HEADRACE_NUM_BLOCKS": "512"}).num_blocks == 512


def test_a_replica_takes_each_dtype_that_a_runner_knows() -> None:
    assert set(DTYPES) == {*_WORDS, *_DTYPES}


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"KV_RAM_GIB": "1"}, "do not go together"),
        ({"DEVICE": "cuda"}, "for one process on a CPU"),
        ({"TENSOR_PARALLEL": "2"}, "for one process on a CPU"),
    ],
)
def test_a_file_of_blocks_is_for_one_process_on_a_cpu(others: dict[str, str], says: str) -> None:
    given = {"KV_DISK_GIB": "0.5", **others}
    with pytest.raises(SettingsError, match=f"^HEADRACE_KV_DISK_GIB.*{says}"):
        load(ModelSettings, {f"HEADRACE_{name}": value for name, value in given.items()})
