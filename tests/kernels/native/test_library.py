"""Which native build is taken, what is said when none can be made, and that every build is clean under sanitizers."""

import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from kernels.native import build, library, record

_TESTS = Path(__file__).parents[2]
_KERNELS = Path(__file__).with_name("fuzz.py")
_MODELS = _TESTS / "model_svc" / "weights" / "fuzz_models.py"


def test_records_have_the_size_that_c_sees(isa: str) -> None:
    assert library.library().op_bytes() == record.LAYOUT.size
    assert library.library().isa == isa


def test_the_best_build_is_taken() -> None:
    names = library.available()
    if not names:
        pytest.skip("nothing is built")
    assert library.library().isa == names[0]
    assert set(names) <= set(build.variants("x86_64")) | set(build.variants("aarch64"))
    bits = library.library().machine
    assert names[0] == "amx" or not bits & 8


def test_an_empty_folder_offers_nothing(tmp_path: Path) -> None:
    assert library.available(tmp_path) == ()


def test_a_library_of_other_sources_is_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = library.available()
    if not names:
        pytest.skip("nothing is built")
    for name in ("same", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{names[-1]}.so").write_bytes((build.OUTPUT / f"{names[-1]}.so").read_bytes())
    assert library.available(tmp_path / "same") == names[-1:]
    monkeypatch.setattr(library, "sources_id", lambda: "those of tomorrow")
    assert library.available(tmp_path / "other") == ()


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(build.BuildError, match="ziglang"):
        build.build(tmp_path)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{sys.executable} -c exit('no_such_header')")
    with pytest.raises(build.BuildError, match="no_such_header"):
        build.build(tmp_path, only=("generic",))
    assert not list(tmp_path.iterdir())


def test_zig_is_asked_for_arms_dot_product_in_its_own_words() -> None:
    flags = build.variants("aarch64")["neon"]
    assert build.spelled(["cc", *flags]) == ["cc", "-march=armv8.2-a+dotprod"]
    assert build.spelled(["python", "-m", "ziglang", "cc", *flags])[-1] == "-mcpu=baseline+dotprod"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_forks_in_the_middle_of_a_run_leaves_a_child_that_can_run(isa: str) -> None:
    x, weight, first, out = torch.ones(64, 1024), torch.ones(1024), torch.zeros(1, 1024), torch.empty(64, 1024)
    norm = record.Record(record.RMS_NORM, (64, 1024, 1, 1024, 0), tuple(map(record.pointer, (x, None, weight, out))))
    begun = norm._replace(numbers=(1, 1024, 1, 1024, 0), pointers=(*norm.pointers[:3], first.data_ptr()))
    run, packed = library.library().run, begun.packed() + 1500 * norm.packed()
    thread = threading.Thread(target=run, args=(packed, 1501, 2))
    thread.start()
    seen = first.numpy()
    while not seen[0, 0]:
        pass
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a handler in Python would wait for the call to return
        signal.alarm(20)
        run(packed, 2, 2)
        os._exit(0)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_every_build_but_the_plain_one_asks_for_something_that_the_machine_must_have() -> None:
    assert [name for name, bits in library._NEEDS.items() if not bits] == ["generic"]


@pytest.mark.slow
def test_no_kernel_touches_foreign_memory(tmp_path: Path) -> None:
    """Every kernel over fuzzed shapes in builds with sanitizers.

    HEADRACE_SANITIZE names the builds to try or says `all`, with more rounds and models whose files were tampered with;
    the default is the best build that this machine runs.
    """
    runtime = _runtime("asan")
    runnable = library.available() or ("generic",)
    asked = os.environ.get("HEADRACE_SANITIZE", "").split()
    wanted = runnable if asked == ["all"] else tuple(asked) or runnable[:1]
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    assert set(build.build(tmp_path, only=wanted, flags=flags)) == set(wanted)
    for name in wanted:
        _fuzz(_KERNELS, tmp_path, name, "40" if asked else "12", runtime=runtime)
        if asked:
            _fuzz(_MODELS, tmp_path, name, runtime=runtime)


@pytest.mark.slow
@pytest.mark.skipif("HEADRACE_SANITIZE" not in os.environ, reason="`make sanitize` does this")
def test_no_thread_touches_foreign_work(tmp_path: Path) -> None:
    """The pool, which is the same in all builds, under the thread sanitizer."""
    runtime = _runtime("tsan")
    name = (*library.available(), "generic")[0]
    build.build(tmp_path, only=(name,), flags=("-O1", "-g", "-fsanitize=thread"))
    _fuzz(_KERNELS, tmp_path, name, runtime=runtime)


def test_a_model_that_was_tampered_with_is_refused_or_runs(folder: Path) -> None:
    """Some rounds of what `make sanitize` does under sanitizers."""
    _fuzz(_MODELS, folder, library.available(folder)[0], "10")


def _runtime(sanitizer: str) -> Path:
    command = build.compiler()
    if command is None:
        pytest.skip("no C compiler")
    asking = [*command, f"-print-file-name=lib{sanitizer}.so"]
    found = Path(subprocess.run(asking, capture_output=True, text=True, check=False).stdout.strip())
    if not found.is_absolute():
        pytest.skip(f"this compiler has no {sanitizer}")
    return found


def _fuzz(script: Path, folder: Path, *arguments: str, runtime: Path | None = None) -> None:
    environment = {"PYTHONPATH": str(_TESTS.parent), "PATH": ""}
    if runtime is not None:
        environment |= {"LD_PRELOAD": str(runtime), "ASAN_OPTIONS": "detect_leaks=0"}
    run = subprocess.run(
        [sys.executable, str(script), str(folder), *arguments],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    seed = run.stderr.partition("\n")[0]  # with which the script does the same again
    assert run.returncode == 0, f"{seed}, exit status {run.returncode}\n{run.stderr[-3000:]}"
    assert "all well" in run.stdout, f"{seed}\n{run.stdout[-3000:]}"


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="reads Linux's list of x86 flags")
def test_the_machine_is_known_as_the_system_knows_it(folder: Path) -> None:
    line = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    flags = set(line.split(":")[1].split())
    needs = {
        1: {"avx2", "fma", "f16c"},
        2: {"avx2", "fma", "f16c", "avx_vnni"},
        4: {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
    }
    expected = sum(bit for bit, names in needs.items() if names <= flags)
    tiles = {"amx_tile", "amx_int8"} <= flags and expected & 4  # and the system may keep their registers to itself
    assert library.Library(folder / "generic.so").machine in ({expected, expected | 8} if tiles else {expected})
