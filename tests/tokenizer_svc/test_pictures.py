"""Pictures in prompts: ids as transformers has them, spans on the image tokens, names by the pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as PILImage
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

from tests.tokenizer_svc.model_directories import CHATML, builder, write_chatml, write_inst
from tokenizer_svc.prompt import PromptBuilder
from wire.block_hash import DIGEST_BYTES
from wire.errors import ContextLengthExceededError, InvalidRequestError, StartError
from wire.messages import (
    ChatMessage,
    ConversationRef,
    Image,
    ImageRef,
    Prompt,
    Recalled,
    Request,
    TokenizeCall,
    pack_ids,
    unpack_ids,
)

# Content is a list of parts and nothing else: the way of SmolVLM.
SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
# Text or parts, trimmed: the way of Gemma 3.
GEMMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for item in message['content'] %}{% if item['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% else %}{{ item['text'] | trim }}{% endif %}{% endfor %}{% endif %}{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
ROWS = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
SMOLVLM_TOKENS = ["<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>", *ROWS]
GEMMA3_TOKENS = ["<start_of_image>", "<image_soft_token>", "<end_of_image>", "<start_of_turn>", "<end_of_turn>"]
IDEFICS3 = {
    "architectures": ["SmolVLMForConditionalGeneration"],
    "vision_config": {"image_size": 32, "patch_size": 8},
    "scale_factor": 2,
}
PROCESSOR: dict[str, Any] = {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}}
SIZES = [(64, 48), (17, 90), (1, 7)]


def sees(path: Path, tokens: Sequence[str], config: dict[str, Any], processor: dict[str, Any] | None = None) -> Path:
    """Make a model directory one of a model that sees pictures."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
    tokenizer.save(str(path / "tokenizer.json"))
    text = json.loads((path / "config.json").read_text()) | {"vocab_size": tokenizer.get_vocab_size()}
    (path / "config.json").write_text(json.dumps(text | config))
    if processor is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


@pytest.fixture(scope="module")
def smolvlm_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_chatml(tmp_path_factory.mktemp("smolvlm"), template=SMOLVLM)
    return sees(path, SMOLVLM_TOKENS, IDEFICS3, PROCESSOR)


@pytest.fixture(scope="module")
def smolvlm(smolvlm_path: Path) -> PromptBuilder:
    return builder(smolvlm_path)


@pytest.fixture(scope="module")
def gemma3_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "vision_config": {"image_size": 32, "patch_size": 8},
        "mm_tokens_per_image": 5,
    }
    return sees(write_inst(tmp_path_factory.mktemp("gemma3"), template=GEMMA3), GEMMA3_TOKENS, config)


def picture(size: tuple[int, int], data: bytes = b"one") -> ImageRef:
    return ImageRef(offset=0, digest=Image.of("image/png", data).digest, width=size[0], height=size[1])


def user(*parts: str | ImageRef) -> ChatMessage:
    return ChatMessage(role="user").saying(parts)


def said(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


CONVERSATION = [
    user("what is ", picture(SIZES[0]), picture(SIZES[1]), " and what is it\n"),
    said("a dog"),
    user(picture(SIZES[2], b"other"), "  and the other one?"),
]


def built(builder: PromptBuilder, *messages: ChatMessage, recalled: Recalled | None = None, **fields: Any) -> Prompt:
    return builder.build(Request(model="m", messages=messages, **fields), recalled)


def theirs(processor: Any, messages: Sequence[ChatMessage]) -> list[int]:
    """What transformers makes of the conversation."""
    told = [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in message.parts
            ],
        }
        for message in messages
    ]
    images = [PILImage.new("RGB", (one.width, one.height)) for message in messages for one in message.images]
    text = processor.tokenizer.apply_chat_template(told, tokenize=False, add_generation_prompt=True)
    ids: list[int] = processor(text=[text], images=[images], add_special_tokens=False)["input_ids"][0]
    return ids


def tokenizer_of(path: Path, **tokens: Any) -> PreTrainedTokenizerFast:
    said = json.loads((path / "tokenizer_config.json").read_text())
    kept = {name: said[name] for name in ("bos_token", "eos_token", "chat_template")}
    return PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"), **kept, **tokens)


def test_ids_are_those_of_transformers_for_smolvlm(smolvlm: PromptBuilder, smolvlm_path: Path) -> None:
    images = Idefics3ImageProcessorPil(**PROCESSOR)
    processor = Idefics3Processor(images, tokenizer_of(smolvlm_path), image_seq_len=4)
    assert unpack_ids(built(smolvlm, *CONVERSATION).token_ids) == theirs(processor, CONVERSATION)


def test_ids_are_those_of_transformers_for_gemma3(gemma3_path: Path) -> None:
    tokens = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    words = tokenizer_of(gemma3_path, extra_special_tokens=tokens)
    processor = Gemma3Processor(Gemma3ImageProcessorPil(size={"height": 32, "width": 32}), words, image_seq_length=5)
    assert unpack_ids(built(builder(gemma3_path), *CONVERSATION).token_ids) == theirs(processor, CONVERSATION)


def test_spans_go_from_the_first_to_the_last_image_token_of_each_picture(smolvlm: PromptBuilder) -> None:
    prompt = built(smolvlm, *CONVERSATION)
    ids, image = unpack_ids(prompt.token_ids), smolvlm._vocabulary.special["<image>"]
    assert [span.digest for span in prompt.images] == [one.digest for message in CONVERSATION for one in message.images]
    held = 0
    for span, size in zip(prompt.images, SIZES, strict=True):
        inside = ids[span.position : span.position + span.num_tokens]
        assert inside[0] == inside[-1] == image
        form = smolvlm.card.pictures
        assert form is not None and inside.count(image) == form.layout(*size).num_image_tokens
        held += inside.count(image)
    assert held == ids.count(image)


def test_a_picture_of_mistral_s_has_tokens_at_the_ends_of_its_rows(tmp_path: Path) -> None:
    tokens = ["[IMG]", "[IMG_BREAK]", "[IMG_END]", "<start_of_turn>", "<end_of_turn>"]
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "vision_config": {"image_size": 32, "patch_size": 4},
    }
    template = GEMMA3.replace("<start_of_image>", "[IMG]")
    mistral = builder(sees(write_inst(tmp_path, template=template), tokens, config))
    prompt = built(mistral, user("a ", picture((24, 16)), " b"))
    image, broken, end = (mistral._vocabulary.special[token] for token in tokens[:3])
    (span,) = prompt.images
    ids = unpack_ids(prompt.token_ids)[span.position :]
    assert ids[: span.num_tokens] == [image] * 3 + [broken] + [image] * 3
    assert ids[span.num_tokens] == end


def test_an_image_token_that_a_user_types_is_text(smolvlm: PromptBuilder) -> None:
    prompt = built(smolvlm, user("an <image> and <row_1_col_1> are ", picture((8, 8)), "<image>"))
    assert len(prompt.images) == 1
    assert unpack_ids(prompt.token_ids).count(smolvlm._vocabulary.special["<row_1_col_1>"]) == 1  # the picture's own


def test_blocks_are_named_by_the_pictures_in_them(smolvlm: PromptBuilder) -> None:
    one, same, other = (built(smolvlm, user(picture((64, 48), data), "hm")) for data in (b"a", b"a", b"b"))
    assert one.token_ids == other.token_ids
    assert one.block_hashes == same.block_hashes
    assert one.block_hashes[:DIGEST_BYTES] != other.block_hashes[:DIGEST_BYTES]


def test_what_pictures_take_counts_in_the_context(tmp_path: Path) -> None:
    path = write_chatml(tmp_path, template=SMOLVLM, max_model_len=100)
    small = builder(sees(path, SMOLVLM_TOKENS, IDEFICS3, PROCESSOR))
    assert built(small, user(picture((64, 48)), "hm")).max_tokens < 50
    with pytest.raises(ContextLengthExceededError):
        built(small, user(picture((64, 48)), picture((64, 48)), "hm"))


def test_turns_that_are_cut_take_their_pictures_along(tmp_path: Path) -> None:
    path = write_chatml(tmp_path, template=SMOLVLM, max_model_len=150)
    small = builder(sees(path, SMOLVLM_TOKENS, IDEFICS3, PROCESSOR))
    recalled = Recalled(messages=(user(picture((64, 48)), "a"), said("b")), conversation_id="conv_1")
    last = user(picture((64, 48), b"last"), "c")
    prompt = built(small, last, recalled=recalled, conversation=ConversationRef(conversation_id="conv_1"))
    assert prompt.messages_dropped == 2
    assert [span.digest for span in prompt.images] == [last.images[0].digest]


def test_the_next_prompt_goes_on_with_the_stored_ids_of_a_conversation_with_pictures(smolvlm: PromptBuilder) -> None:
    first, more = user("what is ", picture(SIZES[0]), "?"), user("and ", picture(SIZES[2], b"other"))
    head = unpack_ids(built(smolvlm, first).token_ids)
    vocabulary = smolvlm._vocabulary
    single = {vocabulary.token_bytes(n): n for n in range(vocabulary.size) if len(vocabulary.token_bytes(n)) == 1}
    spoken = [single[bytes([byte])] for byte in b" a dog"]  # as the encoder would not
    stored = [*head, *spoken, vocabulary.special["<end_of_utterance>"]]
    recalled = Recalled(messages=(first, said("a dog")), prompt_ids=pack_ids(stored), covers=2)
    prompt = built(smolvlm, more, recalled=recalled)
    assert unpack_ids(prompt.token_ids)[: len(stored)] == stored
    assert len(prompt.images) == 2
    assert prompt.images[0] == built(smolvlm, first).images[0]


def test_a_model_that_sees_none_refuses_them(chatml: PromptBuilder) -> None:
    with pytest.raises(InvalidRequestError, match="this model sees none") as refused:
        built(chatml, user(picture((8, 8)), "hm"))
    assert refused.value.param == "messages"


def test_a_template_that_does_not_show_them_is_named(tmp_path: Path) -> None:
    blind = CHATML.replace("message['content']", "(message['content'] | string)")
    path = sees(write_chatml(tmp_path, template=blind), SMOLVLM_TOKENS, IDEFICS3, PROCESSOR)
    with pytest.raises(InvalidRequestError, match="shows 0 of the 1 pictures"):
        built(builder(path), user(picture((8, 8)), "hm"))


def test_a_model_without_a_token_for_pictures_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"tokenizer\.json: has no control token <image>"):
        builder(sees(write_chatml(tmp_path), [], IDEFICS3))


def test_what_is_put_before_a_message_moves_its_pictures(gemma3_path: Path) -> None:
    refuses = GEMMA3.replace(
        "{{ '<start_of_turn>'",
        "{% if message['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}{{ '<start_of_turn>'",
    )
    (gemma3_path / "chat_template.jinja").write_text(refuses)
    told = [user("a"), said("b"), ChatMessage(role="system", content="be kind"), user("see ", picture((8, 8)), "?")]
    folded = [user("a"), said("b"), user("be kind\n\nsee ", picture((8, 8)), "?")]
    desk = builder(gemma3_path)
    assert built(desk, *told) == built(desk, *folded)


def test_a_result_with_a_picture_is_told_to_a_model_that_knows_no_tools(smolvlm: PromptBuilder) -> None:
    result = ChatMessage(role="tool", tool_call_id="c").saying(["here: ", picture((8, 8))])
    spelled = user("<tool_response>\nhere: ", picture((8, 8)), "\n</tool_response>")
    assert built(smolvlm, user("a"), said("b"), result) == built(smolvlm, user("a"), said("b"), spelled)


def test_tokenizing_counts_them(smolvlm: PromptBuilder) -> None:
    request = Request(model="m", messages=tuple(CONVERSATION))
    ids = smolvlm.tokenize(TokenizeCall(call_id="c", edge="e", request=request))
    assert ids == unpack_ids(built(smolvlm, *CONVERSATION).token_ids)
