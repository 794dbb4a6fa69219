"""The Jinja environment that chat templates run in: Hugging Face's conventions, inside a sandbox with a budget.

A template comes with the model, from strangers. It can read what it is given, nothing else; every loop pass and macro
call is counted against a deadline, and nothing it builds may pass the size limit. Python cannot stop a thread, so the
template's own code is made to stop: the calls are compiled into it.
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

TICK, JOIN = "_tick", "_join"  # no caller's variable can have these names: theirs may not begin with an underscore
MAX_CHARS = 16_000_000
_MAX_NUMBER = 1_000_000  # as an argument: a width, a count
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{6,}|\*)")


class Refused(jinja2.TemplateError):
    """The template called raise_exception."""


class OverBudget(jinja2.TemplateError):
    """The template passed its time or size limit."""


class Budget:
    """What one rendering may use: time of its own thread, since on a busy machine it may stand still for seconds."""

    def __init__(self, timeout_s: float, max_chars: int = MAX_CHARS) -> None:
        self._last = time.thread_time() + timeout_s
        self._look_at = time.monotonic() + timeout_s  # the thread's own clock costs ten times as much to read
        self._left = max_chars

    def tick(self) -> str:
        """Count a loop pass."""
        now = time.monotonic()
        if now > self._look_at:
            left_s = self._last - time.thread_time()
            if left_s <= 0:
                raise OverBudget("time")
            self._look_at = now + left_s
        return ""

    def spend(self, num_chars: int) -> None:
        """Count characters of output."""
        self._left -= num_chars
        if self._left < 0:
            raise OverBudget("size")


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Dict:
    """`dict(...)` for templates; the type itself would hand them its methods."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Namespace(Namespace):
    """`namespace(...)` without names that could reach Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, given = args[0], args[1:]
        values = dict(*given, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError("a template's namespace takes no name that begins with an underscore")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment of transformers' apply_chat_template, with budgets."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _tojson
        self.filters["format"] = _format
        for name in ("center", "indent", "wordwrap"):
            self.filters[name] = _without_large_numbers(self.filters[name])
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict())
        self.globals["namespace"] = _Namespace

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        found: list[nodes.For | nodes.Macro | nodes.CallBlock] = []
        for kind in (nodes.For, nodes.Macro, nodes.CallBlock):
            found.extend(template.find_all(kind))
        for node in found:
            node.body.insert(0, nodes.ExprStmt(_call(TICK, [], node.lineno), lineno=node.lineno))
        _replace_concat(template)
        template.set_environment(self)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result would pass the size limit, before it is made."""
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if hasattr(many, "__len__") and isinstance(times, int) and len(many) * times > MAX_CHARS:
                    raise OverBudget("size")
            _check_numbers(left, right, limit=1 << 64)
        elif operator == "**":
            _check_numbers(left, right, limit=64)
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            if len(left) + len(right) > MAX_CHARS:
                raise OverBudget("size")
        elif operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise OverBudget("size")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method or function of the template's; huge numbers as arguments would build huge texts."""
        if getattr(obj, "__name__", "") != "range":  # the sandbox limits range itself
            _check_numbers(*args, *kwargs.values(), limit=_MAX_NUMBER)
        return super().call(context, obj, *args, **kwargs)


def _call(name: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load", lineno=lineno), args, [], None, None, lineno=lineno)


def _replace_concat(node: nodes.Node) -> None:
    """Turn every `a ~ b` into a call that checks the length; jinja2 compiles it to a bare join."""
    for field, value in node.iter_fields():
        items = value if isinstance(value, list) else [value]
        for at, item in enumerate(items):
            if not isinstance(item, nodes.Node):
                continue
            _replace_concat(item)
            if isinstance(item, nodes.Concat):
                call = _call(JOIN, [nodes.List(item.nodes, lineno=item.lineno)], item.lineno)
                if isinstance(value, list):
                    value[at] = call
                else:
                    setattr(node, field, call)


def join(parts: list[Any]) -> str:
    """Concatenate as `~` does, within the size limit."""
    texts = [str(part) for part in parts]
    if sum(map(len, texts)) > MAX_CHARS:
        raise OverBudget("size")
    return "".join(texts)


def _check_numbers(*values: Any, limit: int) -> None:
    if any(isinstance(value, int) and abs(value) > limit for value in values):
        raise OverBudget("size")


def _without_large_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _check_numbers(*args, *kwargs.values(), limit=_MAX_NUMBER)
        return function(*args, **kwargs)

    return guarded


def _raise_exception(message: Any) -> None:
    raise Refused(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does: no HTML escapes, characters as they are."""
    _check_numbers(indent, limit=100)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    if _WIDE_FORMAT.search(value):
        raise OverBudget("size")
    return value % (kwargs or args)
