"""Fields of a body that its dialect does not have: harmless ones are ignored and named in a header, others refused.

Refused is what would change the answer: who sets it must not believe that it was done. Its neutral value passes.
"""

from __future__ import annotations

import codecs
import re
from typing import Any

import msgspec

from gateway.edge.schema.sampling import fail

HEADER = "X-Headrace-Warning"
_MAX_NAMED = 16
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Misleading(msgspec.Struct, frozen=True):
    """Why a field is refused, and which values mean nothing."""

    reason: str
    neutral: tuple[Any, ...] = ()


REFUSED: dict[str, Misleading] = {
    "add_generation_prompt": Misleading("an answer is always begun", (True,)),
    "add_special_tokens": Misleading("the chat template writes a conversation's control tokens", (False,)),
    "audio": Misleading("no audio is made"),
    "background": Misleading("is for /v1/responses", (False,)),
    "best_of": Misleading("is for /v1/completions", (1,)),
    "continue_final_message": Misleading("is for /v1/chat/completions", (False,)),
    "conversation": Misleading("is for /v1/responses"),
    "custom_logit_processor": Misleading("is not supported"),
    "documents": Misleading("is not supported; put them into a message", ([],)),
    "dry_multiplier": Misleading("is not supported", (0,)),
    "dynatemp_range": Misleading("is not supported", (0,)),
    "early_stopping": Misleading("there is no beam search", (False,)),
    "ebnf": Misleading("use structured_outputs.grammar"),
    "echo": Misleading("is for /v1/completions", (False,)),
    "enable_thinking": Misleading("use reasoning_effort or chat_template_kwargs"),
    "format": Misleading("use response_format"),
    "function_call": Misleading("use tool_choice", ("auto", "none")),
    "functions": Misleading("use tools", ([],)),
    "grammar": Misleading("use structured_outputs.grammar", ("",)),
    "images": Misleading("a picture is a part of a message's content", ([],)),
    "include_stop_str_in_output": Misleading("is not for /v1/messages", (False,)),
    "input_embeds": Misleading("is not supported"),
    "instructions": Misleading("write them as a system message", ("",)),
    "json_schema": Misleading("use response_format"),
    "kv_transfer_params": Misleading("is not supported"),
    "length_penalty": Misleading("there is no beam search", (1, 0)),
    "logits_processors": Misleading("is not supported", ([],)),
    "logprob_token_ids": Misleading("is not supported", ([],)),
    "lora_path": Misleading("name the adapter as the model"),
    "lora_request": Misleading("name the adapter as the model"),
    "max_length": Misleading("use max_tokens"),
    "max_new_tokens": Misleading("use max_tokens"),
    "max_output_tokens": Misleading("use max_tokens"),
    "min_new_tokens": Misleading("use min_tokens", (0,)),
    "mirostat": Misleading("is not supported", (0,)),
    "moderation": Misleading("the server's own policy applies"),
    "n_predict": Misleading("use max_tokens", (-1,)),
    "no_stop_trim": Misleading("use include_stop_str_in_output", (False,)),
    "num_predict": Misleading("use max_tokens"),
    "options": Misleading("write its fields beside the others", ({},)),
    "previous_response_id": Misleading("is for /v1/responses"),
    "prompt_embeds": Misleading("is not supported"),
    "reasoning": Misleading("use reasoning_effort and thinking_token_budget", ({},)),
    "regex": Misleading("use structured_outputs.regex"),
    "repeat_penalty": Misleading("use repetition_penalty", (1,)),
    "repetition_detection": Misleading("is not supported"),
    "return_hidden_states": Misleading("is not supported", (False,)),
    "return_token_ids": Misleading("is not supported", (False,)),
    "return_tokens_as_token_ids": Misleading("is not supported", (False,)),
    "samplers": Misleading("their order is fixed", ([],)),
    "separate_reasoning": Misleading("reasoning is always a field of its own", (True,)),
    "session_params": Misleading("is not supported"),
    "skip_special_tokens": Misleading("control tokens are never shown", (True,)),
    "stop_regex": Misleading("is not supported", ("", [])),
    "stop_sequences": Misleading("use stop", ([],)),
    "system": Misleading("write it as a system message", ("", [])),
    "tfs_z": Misleading("is not supported", (1,)),
    "think": Misleading("use reasoning_effort"),
    "thinking": Misleading("use reasoning_effort or thinking_token_budget"),
    "top_a": Misleading("is not supported", (0,)),
    "truncate_prompt_tokens": Misleading("no prompt is cut in silence; it is for embeddings and rerank", (None, -1)),
    "typical_p": Misleading("is not supported", (1,)),
    "use_beam_search": Misleading("is not supported", (False,)),
    "watermarking": Misleading("is not supported", (False,)),
    "web_search_options": Misleading("this server does not search"),
    "xtc_probability": Misleading("is not supported", (0,)),
}


def check_unknown(raw: bytes, cls: type[Any]) -> list[str]:
    """Return the names of harmless fields that are ignored. Raises InvalidRequestError for one that is refused.

    `cls` may have `moved`: fields that have another name in its dialect.
    """
    known: tuple[str, ...] = cls.__struct_encode_fields__
    fields = msgspec.json.decode(raw.removeprefix(codecs.BOM_UTF8), type=dict[str, msgspec.Raw])
    unknown = [name for name in fields if name not in known]
    if not unknown:
        return unknown
    refused = REFUSED | getattr(cls, "moved", {})
    for name in unknown:
        if name in refused and not _is_neutral(fields[name], refused[name].neutral):
            raise fail(name, f"{refused[name].reason}.")
    return unknown


def warning(ignored: list[str]) -> str:
    """Return the header's value: the names, as far as they can stand in a header."""
    named = [name if _PLAIN.fullmatch(name) else "(a name that cannot be shown)" for name in ignored[:_MAX_NAMED]]
    more = f" and {len(ignored) - _MAX_NAMED} more" if len(ignored) > _MAX_NAMED else ""
    return f"ignored fields: {', '.join(named)}{more}"


def _is_neutral(raw: msgspec.Raw, neutral: tuple[Any, ...]) -> bool:
    value = msgspec.json.decode(raw)
    if value is None:
        return True
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)
