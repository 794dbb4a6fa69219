"""Small model directories with trained merges and templates of the kinds that real models ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_svc.prompt import PromptBuilder
from wire.model_card import ModelCard

SECRET = b"test"

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Alternating roles, BOS written by the template, content trimmed: the way of Llama 2 and early Mistral models.
INST = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}
{%- else %}
{{ ' ' + message['content'] | trim + ' ' + eos_token }}
{%- endif %}
{% endfor %}"""

# Thinking by a switch, tags in earlier answers taken out by looking into them, tools as JSON: the way of Qwen 3.
THINKING = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set reasoning = message.reasoning_content or '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if reasoning and loop.last %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

_CORPUS = [
    "the quick brown fox jumps over the lazy dog and thinks about it for a while",
    "<|im_start|>user\nhello there, how are you today?<|im_end|>\n<|im_start|>assistant\nI am fine, thank you!",
    "def main():\n    for number in range(10):\n        print(number)\n\n\nif True: pass   # spaces   ",
    "Größe, naïve café, 你好世界, привет мир, emoji 😀😀, numbers 1234567890 and signs <|>[]{}()/\\",
    "[INST] a question [/INST] an answer </s> <think> thoughts </think> system assistant tools obey",
] * 3
CHATML_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THINKING_PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def write_chatml(path: Path, *, template: str = CHATML, max_model_len: int = 2048, vocab_size: int = 600) -> Path:
    """A byte-level BPE with ChatML's control tokens; think and tool tags are added tokens that are not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=CHATML_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in THINKING_PLAIN])
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": False}
    return write(path, tokenizer, config, bos=1, eos=2, template=template, max_model_len=max_model_len)


def write_inst(path: Path, *, template: str = INST, max_model_len: int = 2048) -> Path:
    """A SentencePiece-style BPE (`▁`, byte fallback) with BOS and EOS, whose post-processor puts BOS first."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    decoder = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(decoder)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    # The trainer needs words; the finished tokenizer, like Llama's, has no pre-tokenizer at all.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"] = None
    data["added_tokens"] = data["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return write(path, tokenizer, config, bos=1, eos=2, template=template, max_model_len=max_model_len)


def write(
    path: Path, tokenizer: Tokenizer, config: dict[str, Any], *, bos: int, eos: int, template: str, max_model_len: int
) -> Path:
    """Write the files that a desk reads."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    model = {
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": max_model_len,
        "vocab_size": tokenizer.get_vocab_size(),
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    (path / "config.json").write_text(json.dumps(model))
    return path


def builder(path: Path, **options: Any) -> PromptBuilder:
    """Return a prompt builder for a model directory."""
    return PromptBuilder(ModelCard.load(path), secret=SECRET, block_size=16, **options)
