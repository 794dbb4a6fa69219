"""The styles of tool calls by name; `wire.tool_style` tells which one a model's template asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.postprocess.tools.deepseek import DeepSeekParser
from gateway.postprocess.tools.glm45 import Glm45Parser
from gateway.postprocess.tools.harmony import HarmonyParser
from gateway.postprocess.tools.hermes import HermesParser
from gateway.postprocess.tools.kimi_k2 import KimiK2Parser
from gateway.postprocess.tools.llama3 import Llama3Parser
from gateway.postprocess.tools.minimax_m2 import MiniMaxM2Parser
from gateway.postprocess.tools.mistral import MistralParser
from gateway.postprocess.tools.olmo3 import Olmo3Parser
from gateway.postprocess.tools.parser import ToolParser
from gateway.postprocess.tools.plain_json import PlainJsonParser
from gateway.postprocess.tools.qwen3_coder import Qwen3CoderParser
from gateway.postprocess.tools.seed_oss import SeedOssParser

# A parser is made of the functions' schemas of arguments, by name.
STYLES: dict[str, Callable[[Mapping[str, Any]], ToolParser]] = {
    "hermes": HermesParser,
    "llama3": Llama3Parser,
    "mistral": MistralParser,
    "json": PlainJsonParser,
    "qwen3_coder": Qwen3CoderParser,
    "seed_oss": SeedOssParser,
    "minimax_m2": MiniMaxM2Parser,
    "glm45": Glm45Parser,
    "deepseek_v3": DeepSeekParser,
    "deepseek_v31": DeepSeekParser,
    "kimi_k2": KimiK2Parser,
    "olmo3": Olmo3Parser,
    "harmony": HarmonyParser,
}
