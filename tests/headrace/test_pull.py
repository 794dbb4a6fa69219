"""`headrace pull` from a GGUF file: a model directory that means what the file means, or one clear sentence."""

from __future__ import annotations

import errno
import io
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from headrace.pull import PullError, is_complete, pull
from headrace.pull.gguf_config import config_json
from headrace.pull.model_directory import alone, build, from_gguf
from model_svc.models.load import load_model
from model_svc.weights.errors import CheckpointError
from model_svc.weights.gguf_header import read_header
from tests.headrace.gguf_models import INNER, tiny_model_file
from tests.headrace.gguf_vocab import byte_tensors, byte_vocab, write
from tests.headrace.tiny_wheel import gguf_file, leftovers, wheels
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

__all__ = ["gguf_file", "wheels"]


def test_a_gguf_file_becomes_a_directory_that_all_desks_can_read(gguf_file: Path, tmp_path: Path) -> None:
    directory = pull(str(gguf_file), tmp_path / "models")
    assert directory == tmp_path / "models" / "tiny-model.q8"
    assert leftovers(directory.parent) == ["tiny-model.q8"]
    card = ModelCard.load(directory)
    assert (card.architecture, card.max_model_len, card.vocab_size) == ("LlamaForCausalLM", 64, 264)
    assert (card.eos_token_ids, card.bos_token_id, card.bos_token) == ((2, 0), 1, "<|im_start|>")
    assert card.chat_template == "{{ messages }}"
    vocabulary = Vocabulary.load(directory)
    assert vocabulary.size == 264
    assert vocabulary.token_bytes(262) == b"hello"
    assert 2 in vocabulary.special.values()
    assert (directory / "model.gguf").stat().st_ino == gguf_file.stat().st_ino  # a link: no second copy on the disk


def test_the_real_model_s_directory_names_what_the_file_names(smollm2_path: Path) -> None:
    card = ModelCard.load(smollm2_path)
    assert card.eos_token_ids == (2, 0)
    assert (card.max_model_len, card.vocab_size, card.bos_token_id, card.add_bos_token) == (8192, 49152, 1, False)
    assert "You are a helpful AI assistant named SmolLM" in (card.chat_template or "")
    assert card.sampling == {"temperature": 0.2, "top_p": 0.9}  # the file is silent; its makers are not
    config = json.loads((smollm2_path / "config.json").read_text())
    assert (config["rope_theta"], config["rms_norm_eps"], config["tie_word_embeddings"]) == (100000.0, 1e-5, True)


def test_a_directory_that_is_complete_is_kept_unless_asked(gguf_file: Path, tmp_path: Path) -> None:
    directory = pull(str(gguf_file), tmp_path / "models", name="mine")
    (directory / "config.json").write_text("{}")
    assert pull(str(gguf_file), tmp_path / "models", name="mine") == directory
    assert (directory / "config.json").read_text() == "{}"
    pull(str(gguf_file), tmp_path / "models", name="mine", again=True)
    assert "vocab_size" in (directory / "config.json").read_text()
    assert leftovers(directory.parent) == ["mine"]


def test_of_two_that_pull_at_once_the_second_waits_and_finds_the_model(gguf_file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "tiny-model.q8"
    with ThreadPoolExecutor(1) as second:
        with alone(directory):
            waiting = second.submit(pull, str(gguf_file), tmp_path)
            while not _open_twice(directory):
                assert not waiting.done()
            made = from_gguf(gguf_file, directory).stat().st_ino
        assert waiting.result(60) == directory
    assert directory.stat().st_ino == made
    assert not list(tmp_path.glob(".*"))


def _open_twice(directory: Path) -> bool:
    held = [file.path for file in psutil.Process().open_files()]
    return held.count(str(directory.with_name(f".{directory.name}.lock"))) == 2


def test_a_directory_that_lacks_a_file_is_made_again(gguf_file: Path, tmp_path: Path) -> None:
    directory = pull(str(gguf_file), tmp_path / "models")
    (directory / "tokenizer.json").unlink()
    assert not is_complete(directory)
    assert is_complete(pull(str(gguf_file), tmp_path / "models"))


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("absent.gguf", "absent.gguf does not exist"),
        ("/no/such/file.gguf", "does not exist"),
        ("nonsense", "is no model that can be pulled: known are smollm2-135m-instruct"),
        ("a/b/c/d", "is no model that can be pulled"),
        ("Not A Name", "no good name|no model"),
        ("..", "no good name"),
    ],
)
def test_a_target_that_is_nothing_gets_one_sentence(tmp_path: Path, target: str, fault: str) -> None:
    with pytest.raises(PullError, match=fault):
        pull(target, tmp_path)
    assert leftovers(tmp_path) == []


def test_a_directory_is_told_what_it_is_and_no_hub_is_asked(gguf_file: Path, tmp_path: Path) -> None:
    made = pull(str(gguf_file), tmp_path / "models")
    with pytest.raises(PullError, match=f"{made} is a model directory already; `headrace up --model {made}` serves it"):
        pull(str(made), tmp_path / "others")
    with pytest.raises(PullError, match=r"is a directory without config\.json; name a \.gguf file in it"):
        pull(str(made.parent), tmp_path / "others")
    assert not (tmp_path / "others").exists()


def test_a_pull_that_never_begins_shows_its_one_sentence_alone(tmp_path: Path) -> None:
    shown = io.StringIO()
    with pytest.raises(PullError):
        pull("nonsense", tmp_path, console=Console(file=shown))
    assert shown.getvalue() == ""


def test_a_broken_gguf_file_leaves_nothing_behind_and_an_old_directory_as_it_was(
    gguf_file: Path, tmp_path: Path
) -> None:
    directory = pull(str(gguf_file), tmp_path / "models", name="mine")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_file.read_bytes()[:-1])
    with pytest.raises(PullError, match=r"broken\.gguf cannot be used: .*cut off"):
        pull(str(broken), tmp_path / "models", name="mine", again=True)
    assert leftovers(tmp_path / "models") == ["mine"]
    assert is_complete(directory)


@pytest.mark.parametrize(
    ("number", "fault"),
    [(errno.ENOSPC, "No space is left"), (errno.EACCES, "cannot be written"), (errno.EIO, "could not")],
)
def test_a_disk_that_refuses_gets_one_sentence_and_keeps_nothing(tmp_path: Path, number: int, fault: str) -> None:
    def fill(target: Path) -> None:
        (target / "half").write_text("made")
        raise OSError(number, os.strerror(number), str(target / "model.gguf"))

    with pytest.raises(PullError, match=fault):
        build(tmp_path / "model", fill)
    assert leftovers(tmp_path) == []


def test_a_directory_that_nobody_may_make_gets_one_sentence(gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PullError, match="could not be made"):
        from_gguf(gguf_file, tmp_path / "file" / "model")


def test_what_the_file_advises_on_sampling_holds_for_requests_that_say_nothing(tmp_path: Path) -> None:
    advice = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "penalty_repeat": 1.05, "mirostat": 2}
    metadata = byte_vocab() | {f"general.sampling.{key}": value for key, value in advice.items()}
    card = ModelCard.load(from_gguf(write(tmp_path / "a.gguf", metadata, byte_tensors(metadata)), tmp_path / "a"))
    assert card.sampling == {
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.05,
    }  # fmt: skip


def test_advice_that_makes_no_sense_is_left_out_and_the_model_serves(tmp_path: Path) -> None:
    odd = {"temp": math.nan, "top_p": math.inf, "top_k": "many", "min_p": True, "penalty_repeat": 99.0}
    metadata = byte_vocab() | {f"general.sampling.{key}": value for key, value in odd.items()}
    directory = from_gguf(write(tmp_path / "a.gguf", metadata, byte_tensors(metadata)), tmp_path / "a")
    assert ModelCard.load(directory).sampling == {}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"general.architecture": "mamba"}, "'mamba' are not supported"),
        ({"llama.attention.value_length": 8}, "different length"),
        ({"llama.rope.scaling.type": "spiral", "llama.rope.scaling.factor": 4.0}, "'spiral' is not supported"),
        ({"llama.embedding_length": "wide"}, "is not a int"),
    ],
    ids=str,
)
def test_a_model_that_we_cannot_serve_is_refused(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    metadata = byte_vocab()
    path = write(tmp_path / "odd.gguf", metadata | changes, byte_tensors(metadata))
    with pytest.raises(PullError, match=fault):
        pull(str(path), tmp_path / "models")


@pytest.mark.parametrize("absent", ["expert_count", "expert_used_count"])
def test_a_model_of_experts_that_does_not_count_them_is_refused_by_name(tmp_path: Path, absent: str) -> None:
    header = read_header(tiny_model_file(tmp_path / "m.gguf", "qwen3moe"))
    del header.metadata[f"qwen3moe.{absent}"]
    with pytest.raises(CheckpointError, match=f"'qwen3moe.{absent}' is missing"):
        config_json(header)


def test_a_file_without_an_embedding_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "less.gguf", byte_vocab())
    with pytest.raises(PullError, match=r"holds no token_embd\.weight"):
        pull(str(path), tmp_path / "models")


def test_the_table_of_llama_3_frequencies_becomes_its_parameters_again(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=2, head_dim=64, rope_parameters={**scaling, "rope_theta": 500000.0}
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / 500000.0 ** (torch.arange(0, 64, 2).float() / 64)
    metadata = byte_vocab() | {"llama.rope.freq_base": 500000.0}
    tensors = byte_tensors(metadata) | {"rope_freqs.weight": (plain / scaled).numpy()}
    path = write(tmp_path / "llama3.gguf", metadata, tensors)
    assert config_json(read_header(path))["rope_scaling"] == scaling
    tensors["rope_freqs.weight"][3] *= 2
    with pytest.raises(PullError, match="not the table of Llama 3"):
        config_json(read_header(write(tmp_path / "other.gguf", metadata, tensors)))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3"])
def test_a_pulled_gguf_file_computes_what_transformers_computes_from_it(tmp_path: Path, family: str) -> None:
    """transformers reads the same file by its own reader, names and un-permutation."""
    import torch

    from tests.gguf_oracle import gguf_oracle
    from tests.model_svc.paged import ModelDriver, Tracked

    directory = pull(str(tiny_model_file(tmp_path / "tiny.gguf", family)), tmp_path / "models")
    # What its reader does not read, or the file does not say.
    told = {"moe_intermediate_size": INNER, "norm_topk_prob": True} if family == "qwen3moe" else {}
    oracle = gguf_oracle(directory, attn_implementation="eager", **told)
    model = load_model(directory, dtype=torch.float32, device=torch.device("cpu"))
    ids = [5, 80, 199, 3, 41, 260, 7, 7, 120, 66, 31, 12, 250, 90]
    with torch.inference_mode():
        expected = oracle(torch.tensor([ids])).logits[0]
    ours = ModelDriver(model).logits((Tracked(0, ids), len(ids)))[0]
    assert expected.std() > 0.05
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
