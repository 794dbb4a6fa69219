"""What Triton's interpreter does again and again, done once: interpreted kernels run three times as fast.

It goes through the whole language at each launch and at each call of a kernel's function, to swap the language's parts
for its own; builds a table of types whenever it needs one; and sorts number by number, where numpy knows the operation.
The results are the same to the bit. Nothing is compiled in a process that interprets, so here the parts stay swapped.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


def hasten_interpreter() -> None:
    """Do this where Triton was imported, and interprets."""
    triton = sys.modules.get("triton")
    if triton is None or not triton.knobs.runtime.interpret:
        return
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope") or interpreter._patch_lang is _swapped:  # another Triton, or done
        return
    language = triton.language
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
    interpreter._patch_lang = _swapped
    interpreter._get_np_dtype = _noted(interpreter._get_np_dtype)
    one_by_one = interpreter.ReduceOps.generic_reduce
    exclusive_or = language.standard._xor_combine

    @functools.wraps(one_by_one)
    def reduce(self: Any, tensors: tuple[Any, ...]) -> Any:
        if self.combine_fn is not exclusive_or or self.axis is None:
            return one_by_one(self, tensors)
        data = np.bitwise_xor.reduce(tensors[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(data, tensors[0].dtype)

    interpreter.ReduceOps.generic_reduce = reduce


def _swapped(_: object) -> Any:
    """Return what has nothing to put back."""
    return SimpleNamespace(restore=lambda: None)


def _noted(numpy_type: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that remembers the answer for each type's name: not every type can be a key."""
    known: dict[str, Any] = {}

    def noted(kind: Any) -> Any:
        found = known.get(kind.name)
        if found is None:
            found = known[kind.name] = numpy_type(kind)
        return found

    return noted
