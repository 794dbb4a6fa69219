"""What `up` says when it cannot start: one clear sentence and an exit code."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace import up
from headrace.__main__ import app
from headrace.settings import UpSettings
from wire import environment
from wire.settings import SettingsError


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_an_address_that_is_not_this_machine_s_is_not_taken_for_a_port_in_use(host: str) -> None:
    with pytest.raises(up.UpError, match=f"^{host} is no address .* --host"):
        up.check_port(host, 8000)


def test_a_taken_port_is_named_with_the_way_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = up.main(UpSettings(port=port, state_dir=str(tmp_path), model_dir=str(tmp_path)))
    out, err = capfd.readouterr()
    assert code == 1
    assert f"Port {port}" in out + err
    assert "--port" in out + err


def test_an_address_of_ipv6_stands_in_brackets_in_a_url() -> None:
    assert up.address(UpSettings(host="::1", port=8000)) == "http://[::1]:8000"
    assert up.address(UpSettings(host="127.0.0.1", port=8000)) == "http://127.0.0.1:8000"


def test_what_looks_like_mark_up_in_a_fault_is_said_as_it_is() -> None:
    result = CliRunner().invoke(app, ["up", "--model", "./[/]"])
    assert result.exit_code == 2
    assert "./[/] is no model directory" in result.stderr


def test_a_place_that_cannot_be_written_is_named_with_the_way_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = str(tmp_path / "file" / "state")
    code = up.main(UpSettings(port=port, models=("m",), state_dir=place, model_dir=str(tmp_path)))
    said = "".join(capfd.readouterr())
    assert code == 1
    assert place in said
    assert "--state-dir" in said


@pytest.mark.parametrize(
    ("path", "mend"),
    [
        ("/x/y.gguf", "headrace pull /x/y.gguf"),
        ("owner/name", "headrace pull owner/name"),
        ("./owner/name", "does not exist"),
        ("/etc/passwd", "config.json"),
    ],
)
def test_a_path_that_is_no_model_directory_is_told_from_one(path: str, mend: str) -> None:
    done = CliRunner().invoke(app, ["up", "--model", path])
    assert done.exit_code == 2
    assert mend in done.output


def test_an_unknown_model_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = up.main(UpSettings(port=port, models=("no-such",), state_dir=str(tmp_path), model_dir=str(tmp_path)))
    assert code == 1
    assert "no-such" in "".join(capfd.readouterr())


@pytest.mark.parametrize(("field", "value"), [("port", 0), ("port", 70000), ("replicas", 0)])
def test_settings_out_of_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(SettingsError, match=field):
        environment.load(UpSettings, {}, {field: value})


@pytest.mark.parametrize("words", [["--kv-disk-gib", "4"], ["--kv-disk-gib=4"], ["--port", "8001", "--kv-disk-gib=4"]])
def test_a_setting_that_is_no_option_of_up_is_told_with_its_variable(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["up", *words], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "No such option: --kv-disk-gib (set HEADRACE_KV_DISK_GIB in the environment)" in done.stderr


def test_stages_have_no_prefill_replicas() -> None:
    with pytest.raises(SettingsError, match="prefill_replicas and pipeline_parallel do not go together"):
        environment.load(UpSettings, {}, {"prefill_replicas": 1, "pipeline_parallel": 2})


def test_a_given_bus_url_is_not_put_on_command_lines() -> None:
    secret = "redis://:secret@bus:6379/0"
    assert "secret" not in " ".join(up.common_flags(UpSettings(redis_url=secret), secret))
    assert "--redis-url=unix:///own.sock" in up.common_flags(UpSettings(), "unix:///own.sock")


@pytest.mark.parametrize(
    ("device", "cores", "given", "wanted"),
    [("cuda:0", 16, None, 10), ("cuda", 4, None, 0), ("cpu", 64, None, 0), ("cuda", 16, 0.0, 0), ("cpu", 2, 3.0, 3)],
)
def test_processes_stay_awake_beside_a_gpu_with_cores_to_spare_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, device: str, cores: int, given: float | None, wanted: float
) -> None:
    monkeypatch.setenv("HEADRACE_DEVICE", device)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert f"--awake-ms={wanted}" in up.common_flags(UpSettings(awake_ms=given), "unix:///own.sock")


def test_a_variable_that_a_desk_would_refuse_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    up.check_desks(UpSettings(models=("a", "b"), tensor_parallel=2))
    monkeypatch.setenv("HEADRACE_MAX_INFLIGHT", "-1")
    result = CliRunner().invoke(app, ["up"])
    assert result.exit_code == 2
    assert "HEADRACE_MAX_INFLIGHT must be at least 1" in result.stderr
