"""`headrace pull owner/name`: the hub's own client talks to a small server that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from headrace.pull import is_complete
from tests.headrace.gguf_seeing import metadata_of
from tests.headrace.gguf_vocab import byte_tensors, byte_vocab, write
from tests.model_svc.weights.gguf_split import split

COMMIT = "a" * 40
Files = dict[str, bytes]


class Hub(http.server.ThreadingHTTPServer):
    """Serves `repositories`; asks for a login where the name says `gated`."""

    def __init__(self, repositories: dict[str, Files]) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.repositories = repositories
        self.fetched: list[str] = []
        self.commits: list[str] = []


class HubHandler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        repo = "/".join(parts[2:4] if api else parts[:2])
        files = self.server.repositories.get(repo)
        if "gated" in repo:
            return self.send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if files is None:
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if api and "tree" in parts:
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in files.items()
            ]
            return self.send(200, json.dumps(entries).encode(), {})
        if api:
            siblings = [{"rfilename": name} for name in files]
            return self.send(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode(), {})
        name = "/".join(parts[4:])
        if name not in files:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        if with_body:
            self.server.fetched.append(name)
            self.server.commits.append(parts[3])
        etag = hashlib.sha256(files[name]).hexdigest()
        return self.send(200, files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, with_body=with_body)

    def send(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body and self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    whole: Files = {
        "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
        "tokenizer.json": b"{}",
        "preprocessor_config.json": b'{"resample": 1}',
        "model.safetensors": save({"a": torch.ones(2)}),
        "README.md": b"not wanted",
        "consolidated.safetensors": b"not wanted",
        "original/params.json": b"not wanted",
        "pytorch_model.bin": b"not wanted",
    }
    metadata = byte_vocab()
    gguf = write(tmp_path / "tiny.gguf", metadata, byte_tensors(metadata)).read_bytes()
    tensors = byte_tensors(metadata) | {f"blk.{n}.attn_norm.weight": np.ones(32, dtype=np.float32) for n in range(2)}
    tokens = [*metadata["tokenizer.ggml.tokens"], "<image>", "<fake_token_around_image>", "<global-img>"]
    seeing = metadata | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens)}
    parts = split(write(tmp_path / "Big.gguf", seeing, tensors | byte_tensors(seeing)), 3)
    mmproj = write(
        tmp_path / "mmproj.gguf", metadata_of("idefics3"), {"v.post_ln.bias": tensors["blk.0.attn_norm.weight"]}
    )
    sights = {f"{name}.gguf": mmproj.read_bytes() for name in ("mmproj-BF16", "mmproj-F16", "Q4/mmproj-F16")}
    folder: Files = sights | {f"Q8/{part.name}": part.read_bytes() for part in parts}
    lacking = {name: content for name, content in folder.items() if "00003" not in name.partition("-of-")[0]}
    without = {name: content for name, content in whole.items() if not name.endswith(".safetensors")}
    server = Hub(
        {
            "some/whole": whole,
            "some/quants": {"Tiny.Q8.gguf": gguf, "README.md": b""},
            "some/split": folder | {"Q8/Other.gguf": gguf},
            "some/lacking": lacking,
            "some/weightless": without,
        }
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def pull(target: str, endpoint: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Type the command."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HEADRACE_"))},
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_COLOR": "1",
        "COLUMNS": "400",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-m", "headrace", "pull", target, "--model-dir", str(tmp_path / "models")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_a_repository_becomes_a_model_directory_of_the_files_a_replica_needs(hub: Hub, tmp_path: Path) -> None:
    done = pull("some/whole", f"http://127.0.0.1:{hub.server_port}", tmp_path)
    assert done.returncode == 0, done.stderr
    directory = Path(done.stdout.strip())
    assert directory == tmp_path / "models" / "whole"
    assert is_complete(directory)
    wanted = ["config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"]
    assert sorted(file.name for file in directory.iterdir()) == wanted
    assert sorted(hub.fetched) == wanted


def test_one_gguf_file_of_a_repository_becomes_a_model_directory(hub: Hub, tmp_path: Path) -> None:
    done = pull("some/quants/Tiny.Q8.gguf", f"http://127.0.0.1:{hub.server_port}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert is_complete(tmp_path / "models" / "tiny.q8")
    assert hub.fetched == ["Tiny.Q8.gguf"]


def test_all_parts_of_a_split_model_are_fetched_whichever_is_named_and_what_it_sees_with(
    hub: Hub, tmp_path: Path
) -> None:
    names = [f"Big-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
    done = pull(f"some/split/Q8/{names[1]}", f"http://127.0.0.1:{hub.server_port}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert is_complete(tmp_path / "models" / "big")
    assert sorted(hub.fetched) == [*(f"Q8/{name}" for name in names), "mmproj-F16.gguf"]
    assert (tmp_path / "models" / "big" / "mmproj.gguf").exists()
    assert set(hub.commits) == {"main", COMMIT}
    assert hub.commits.count("main") == 1  # the others are of the commit that the first was of


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("some/absent", "The hub has no model some/absent"),
        ("some/quants/Other.gguf", "The hub has no model some/quants/Other.gguf"),
        ("some/gated", "some/gated is gated: accept its terms"),
        ("some/quants", "some/quants has no config.json"),
        ("some/lacking/Q8/Big-00001-of-00003.gguf", "no model some/lacking/Q8/Big-00003-of-00003.gguf"),
        ("some/weightless", "has no safetensors weights; name one of its GGUF files"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_and_an_exit_code(
    hub: Hub, tmp_path: Path, target: str, sentence: str
) -> None:
    done = pull(target, f"http://127.0.0.1:{hub.server_port}", tmp_path)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "models").exists() or not list((tmp_path / "models").iterdir())


def test_a_hub_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = pull("some/whole", "http://127.0.0.1:9", tmp_path)
    assert done.returncode == 1
    assert "The hub cannot be reached to download some/whole" in done.stderr
    assert "Traceback" not in done.stderr
