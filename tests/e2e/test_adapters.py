"""A house with two LoRA adapters and others that come and go: each name answers as its merged model alone does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers
from typer.testing import CliRunner

from headrace.__main__ import app
from tests.e2e.house import House, headrace_up
from tests.lora import merged, write_adapter
from tests.model_svc.saved_llama import save_tiny
from tests.processes import command_of
from tests.tiny_model import write_tiny_model

MODEL = "tiny"
LETTERS = list(range(97, 123))  # ids of the vocabulary's bytes
PROMPT = [104, 101, 97, 100, 114, 97, 99, 101] * 5
NAMES = ("one", MODEL, "two")


class Served:
    """The house, a client of it, and what each name should say."""

    def __init__(self, house: House, oracles: dict[str, Any], late: Path) -> None:
        self.house, self.oracles, self.late = house, oracles, late
        self.client = openai.OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0)

    def ask(self, name: str, num_tokens: int = 20, **changes: Any) -> Any:
        """Complete the prompt in letters, greedily."""
        body = {"allowed_token_ids": LETTERS, "ignore_eos": True, **changes.pop("extra", {})}
        return self.client.completions.create(
            model=name, prompt=PROMPT, max_tokens=num_tokens, temperature=0, extra_body=body, **changes
        )

    def load(self, name: str, path: str, status: int = 200, **more: Any) -> Any:
        """Load an adapter; returns the answer, or the error."""
        with self.house.client(600.0) as client:
            reply = client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path, **more})
        assert reply.status_code == status, reply.text
        return reply.text if status == 200 else reply.json()["error"]

    @torch.inference_mode()
    def truth(self, name: str, num_tokens: int = 20) -> str:
        """Return what transformers says with the adapter's part merged into the weights."""
        ids = list(PROMPT)
        for _ in range(num_tokens):
            logits = self.oracles[name](torch.tensor([ids])).logits[0, -1]
            ids.append(max(LETTERS, key=lambda n: float(logits[n])))
        return bytes(ids[len(PROMPT) :]).decode()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("adapters")
    path = write_tiny_model(folder / MODEL, pieces=(), template="{% for m in messages %}{{ m['content'] }}{% endfor %}")
    save_tiny(path, vocab_size=259, eos_token_id=258, max_position_embeddings=1024)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    oracles: dict[str, Any] = {MODEL: model}
    arguments = [f"--model={MODEL}", f"--model-dir={folder}"]
    for seed, name in enumerate(("one", "two")):
        place = write_adapter(folder / name, model, seed=seed, spread=0.4)
        oracles[name] = merged(model, place)
        arguments.append(f"--adapter={name}={place}")
    oracles["three"] = merged(model, write_adapter(folder / "late" / "three", model, seed=2, spread=0.4))
    write_adapter(folder / "late" / "four", model, seed=3, spread=0.4, rank=17)
    arguments.append(f"--adapter-dir={folder / 'late'}")
    environ = {"HEADRACE_DTYPE": "float32", "HEADRACE_SPECULATE": "off", "HEADRACE_STREAM_INTERVAL": "1"}
    with headrace_up(folder / "state", *arguments, environ=environ) as house:
        yield Served(house, oracles, folder / "late")


def test_each_name_answers_as_its_merged_model_and_hits_no_others_cache(served: Served) -> None:
    truths = {name: served.truth(name) for name in NAMES}
    assert len(set(truths.values())) == 3
    for is_cached in (False, True):
        for name in NAMES:
            answer = served.ask(name)
            assert (answer.choices[0].text, answer.model) == (truths[name], name)
            assert bool(answer.usage.prompt_tokens_details.cached_tokens) == is_cached
    chat = served.client.chat.completions.create(
        model="two", messages=[{"role": "user", "content": bytes(PROMPT).decode()}], max_tokens=20, temperature=0,
        extra_body={"allowed_token_ids": LETTERS, "ignore_eos": True},
    )  # fmt: skip
    assert (chat.choices[0].message.content, chat.model) == (truths["two"], "two")


def test_models_are_listed_with_what_they_are_adapters_of(served: Served) -> None:
    models = {model.id: model for model in served.client.models.list().data}
    assert list(models) == [MODEL, "one", "two"]
    assert [(model.root, model.parent) for model in models.values()] == [  # type: ignore[attr-defined]
        (MODEL, None), (MODEL, MODEL), (MODEL, MODEL),
    ]  # fmt: skip
    assert served.client.models.retrieve("two").parent == MODEL  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError, match="three"):
        served.ask("three")


def test_tokens_of_an_adapters_texts_are_counted_by_its_base(served: Served) -> None:
    with served.house.client() as client:
        reply = client.post("/tokenize", json={"model": "one", "prompt": "head"})
        assert reply.json()["tokens"] == [104, 101, 97, 100]


def test_a_conversation_of_an_adapter_goes_on_from_its_own_tokens(served: Served) -> None:
    asked: dict[str, Any] = {
        "model": "one", "temperature": 0, "max_output_tokens": 16, "extra_body": {"allowed_token_ids": LETTERS},
    }  # fmt: skip
    first = served.client.responses.create(input="a" * 40, **asked)
    again = served.client.responses.create(input="b" * 8, previous_response_id=first.id, **asked)
    assert (first.model, again.model) == ("one", "one")
    assert again.usage is not None and again.usage.input_tokens_details.cached_tokens >= 48
    assert served.client.responses.retrieve(again.id).model == "one"


def test_an_adapter_comes_is_replaced_and_goes_while_the_house_runs(served: Served) -> None:
    for path, said in (("../one", "must be a directory below"), ("four", "rank 17"), ("none", "is no directory")):
        error = served.load("new", path, status=400)
        assert error["param"] == "lora_path" and said in error["message"]
    assert served.load("new", "three") == "Success: LoRA adapter 'new' added successfully."
    assert served.client.models.retrieve("new").parent == MODEL  # type: ignore[attr-defined]
    assert served.ask("new").choices[0].text == served.truth("three")
    assert served.ask("new").usage.prompt_tokens_details.cached_tokens
    assert served.load("new", "three", status=400)["param"] == "lora_name"
    assert served.load("one", "three", status=400)["param"] == "lora_name"
    write_adapter(served.late / "five", served.oracles[MODEL], seed=1, spread=0.4)  # as "two" is
    served.load("new", "five", load_inplace=True)
    answer = served.ask("new")
    assert answer.choices[0].text == served.truth("two") and not answer.usage.prompt_tokens_details.cached_tokens
    with served.house.client() as client:
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "new"}).status_code == 200
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "new"}).json()["error"]["param"] == "lora_name"
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "one"}).status_code == 400
    with pytest.raises(openai.NotFoundError, match="new"):
        served.ask("new")


def test_the_command_line_loads_lists_and_unloads(served: Served) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["adapter", *words, f"--url={served.house.url}"], env={"COLUMNS": "200"})
        return result.exit_code, result.stdout, result.stderr

    assert run("add", "typed", "three") == (0, "Success: LoRA adapter 'typed' added successfully.\n", "")
    assert "typed" in run("list")[1]
    code, _, said = run("add", "typed", "three")
    assert code == 1 and "loaded already" in said
    assert run("add", "typed", "three", "--replace")[0] == run("remove", "typed")[0] == 0
    assert "typed" not in run("list")[1]


MOST = 900  # letters, as many as fit


def killed_in_mid_answer(served: Served) -> tuple[str, int]:
    """Kill the replica in an answer; returns some of it, and how much had come by then."""
    text, killed = "", MOST
    with served.ask("two", MOST, stream=True) as chunks:
        for chunk in chunks:
            text += chunk.choices[0].text if chunk.choices else ""
            for process in served.house.family() if len(text) > 20 and killed == MOST else ():
                if "--replica-name=r0" in command_of(process):
                    process.kill()
                    killed = len(text)
            if len(text) >= killed + 40:
                break
    return text, killed


def test_an_answer_of_an_adapter_survives_its_replica(served: Served) -> None:
    served.load("late", "three")
    text, killed = killed_in_mid_answer(served)
    while killed > MOST - 40:  # it was over before it was seen
        text, killed = killed_in_mid_answer(served)
    assert text == served.truth("two", len(text))
    assert served.ask("late").choices[0].text == served.truth("three")
