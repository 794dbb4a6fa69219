"""What goes wrong in a thread holds nothing longer than somebody looks at it."""

from __future__ import annotations

import gc
import threading
import weakref

import anyio
import pytest

from wire.threads import in_thread

pytestmark = pytest.mark.anyio


async def test_work_is_done_in_another_thread_within_a_limit() -> None:
    limiter = anyio.CapacityLimiter(1)

    def work(first: int, second: int) -> tuple[int, int, bool]:
        return first + second, limiter.borrowed_tokens, threading.current_thread() is threading.main_thread()

    assert await in_thread(work, 1, 2, limiter=limiter) == (3, 1, False)


async def test_what_the_work_knew_leaves_with_its_error() -> None:
    texts: list[weakref.ref[set[str]]] = []

    def fail() -> None:
        text = {"long"}
        texts.append(weakref.ref(text))
        raise ValueError("bad")

    gc.disable()
    try:
        for _ in range(2):
            try:
                await in_thread(fail)
            except ValueError as error:
                assert str(error) == "bad"
                traceback = error.__traceback__
                names = []
                while traceback is not None:
                    names.append(traceback.tb_frame.f_code.co_name)
                    traceback = traceback.tb_next
                assert names[-1] == "fail"  # a log says where it happened
        assert [text() for text in texts] == [None, None]
    finally:
        gc.enable()
