"""A whole house whose model is on two processes says what one process says, also after one of them was killed."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.house import House, headrace_up, wait_for
from tests.e2e.test_kernel_forms import NAME, random_weights
from tests.tiny_model import write_tiny_model


def _answer(house: House) -> str:
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": "hello world"}],
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
    }
    with house.client() as client:
        reply = client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"]["completion_tokens"] == 24
        return str(reply.json()["choices"][0]["message"]["content"])


def test_a_model_on_two_processes_says_what_it_says_on_one(tmp_path: Path) -> None:
    models = tmp_path / "models"
    random_weights(write_tiny_model(models / NAME, max_model_len=256))
    arguments = (f"--model={NAME}", f"--model-dir={models}")
    environ = {"HEADRACE_DTYPE": "float32", "HEADRACE_NUM_BLOCKS": "64"}
    with headrace_up(tmp_path / "one", *arguments, environ=environ) as house:
        alone = _answer(house)
    with headrace_up(tmp_path / "two", *arguments, "--tensor-parallel=2", environ=environ) as house:
        assert _answer(house) == alone
        (rank,) = (each for each in house.family() if "model_svc.parallel.rank" in each.cmdline())
        rank.kill()
        wait_for(lambda: not rank.is_running(), timeout_s=60, what="the rank is gone")
        assert _answer(house) == alone  # of the replica that took its place
