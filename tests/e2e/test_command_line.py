"""The command line against a real house: chat in the terminal, and the doctor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.house import House
from tests.ports import free_port


def headrace(
    *arguments: str, stdin: str = "", environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(
        command,
        input=stdin,
        env={**os.environ, "COLUMNS": "160", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_chat_streams_an_answer_with_its_bill_and_remembers(house: House) -> None:
    done = headrace("chat", "--url", house.url, "--temperature", "0", stdin="Say hello.\nAnd again.\n")
    assert done.returncode == 0, done.stderr
    bills = [line for line in done.stdout.splitlines() if "tok/s" in line]
    assert len(bills) == 2, done.stdout
    assert " 0 of " not in bills[1], "the second turn found nothing cached"


def test_chat_says_when_no_server_answers() -> None:
    done = headrace("chat", "--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "headrace up" in done.stdout


def test_the_doctor_finds_nothing_fatal_and_names_what_is_missing(tmp_path: Path) -> None:
    environ = {
        "HEADRACE_MODEL_DIR": str(tmp_path),
        "HEADRACE_STATE_DIR": str(tmp_path),
        "HEADRACE_PORT": str(free_port()),
    }
    done = headrace("doctor", environ=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    for what in ("python", "device", "kernels", "bus", "model", "port"):
        assert what in done.stdout
    assert "headrace pull" in done.stdout


def test_the_doctor_names_a_misspelt_setting() -> None:
    done = headrace("doctor", environ={"HEADRACE_PROT": "8000"})
    assert done.returncode == 1
    assert "HEADRACE_PROT" in done.stdout
