"""What the config of a GGUF file's model says where an mmproj file beside it holds what the model sees with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.pull.errors import PullError
from model_svc.weights.gguf_header import GgufHeader
from model_svc.weights.gguf_sight import CLIP, KINDS, kind_of

_C = "clip.vision."


class Family(NamedTuple):
    """A kind of projector: architectures of its models' texts, control tokens of pictures, what configs say.

    `fill` takes the header of the mmproj file and the config of texts, and returns what the whole config has besides,
    and what there is to say of the image processor. The first token is the one in whose places features go.
    """

    texts: frozenset[str]
    tokens: tuple[str, ...]
    fill: Callable[[GgufHeader, dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]


def known_kind(mmproj: GgufHeader) -> str:
    """Return the kind of an mmproj file's projector. Raises PullError for what is none, CheckpointError for a bad one.

    One that is not served is returned as well.
    """
    if mmproj.value("general.architecture", str) != CLIP:
        raise PullError(f"{mmproj.path} is no mmproj file: it holds a model of its own.")
    return kind_of(mmproj)


def misfit(mmproj: GgufHeader, texts: GgufHeader) -> str:
    """Return why a file of a known kind cannot be of the same model as `texts`; "" if it can."""
    family = _FAMILIES[kind_of(mmproj)]
    arch = texts.value("general.architecture", str)
    if arch not in family.texts:
        return f"it sees for models of architecture {' or '.join(sorted(family.texts))}, not {arch}"
    width, wanted = (int(header.value(key, int)) for header, key in (
        (mmproj, f"{_C}projection_dim"), (texts, f"{arch}.embedding_length"),
    ))  # fmt: skip
    if width != wanted:
        return f"it makes features of width {width}, the model's is {wanted}"
    missing = sorted(set(family.tokens) - set(texts.value("tokenizer.ggml.tokens", list)))
    return f"the model's vocabulary has no {missing[0]}" if missing else ""


def with_sight(config: dict[str, Any], mmproj: GgufHeader, texts: GgufHeader) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return config.json of the whole model, of whose texts `config` tells, and preprocessor_config.json."""
    family = _FAMILIES[kind_of(mmproj)]
    of_texts = {name: value for name, value in config.items() if name != "architectures"}
    whole, processor = family.fill(mmproj, of_texts)
    colours = {name: mmproj.value(f"{_C}{name}", list) for name in ("image_mean", "image_std")}
    image_token = texts.value("tokenizer.ggml.tokens", list).index(family.tokens[0])
    return whole | {"text_config": of_texts, "image_token_id": image_token}, processor | colours


def mark_controls(tokenizer: dict[str, Any], mmproj: GgufHeader, texts: GgufHeader) -> None:
    """See that users cannot write the tokens of pictures, whatever type a file gives them."""
    tokens, added = texts.value("tokenizer.ggml.tokens", list), tokenizer["added_tokens"]
    known = {item["content"]: item for item in added}
    for token in _FAMILIES[kind_of(mmproj)].tokens:
        if token not in known:
            known[token] = {"id": tokens.index(token), "content": token, "single_word": False, "lstrip": False,
                            "rstrip": False, "normalized": False}  # fmt: skip
            added.append(known[token])
        known[token]["special"] = True


def _count(mmproj: GgufHeader, key: str, usual: int | None = None) -> int:
    found = int(mmproj.value(f"{_C}{key}", int, usual))
    if found < 1:
        raise PullError(f"{mmproj.path} cannot be used: metadata key '{_C}{key}' is {found}; it must be at least 1")
    return found


def _tower(mmproj: GgufHeader, **more: Any) -> dict[str, Any]:
    def count(key: str) -> int:
        return _count(mmproj, key)

    eps = mmproj.value(f"{_C}attention.layer_norm_epsilon", float, 1e-6)
    return {
        "hidden_size": count("embedding_length"),
        "intermediate_size": count("feed_forward_length"),
        "num_hidden_layers": count("block_count"),
        "num_attention_heads": count("attention.head_count"),
        "image_size": count("image_size"),
        "patch_size": count("patch_size"),
        "layer_norm_eps": float(f"{eps:.7g}"),
        **more,
    }


def _gemma3(mmproj: GgufHeader, _texts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    tower = _tower(mmproj, model_type="siglip_vision_model", hidden_act="gelu_pytorch_tanh", vision_use_head=False)
    side = tower["image_size"] // tower["patch_size"] // _count(mmproj, "projector.scale_factor", 4)
    whole = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "vision_config": tower,
        "mm_tokens_per_image": side**2,
    }
    size = {"height": tower["image_size"], "width": tower["image_size"]}
    return whole, {"image_processor_type": "Gemma3ImageProcessor", "size": size}


def _idefics3(mmproj: GgufHeader, _texts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Files of early 2025 do not say to which length pictures are brought; of all released models it is four tiles."""
    tower = _tower(mmproj, model_type="idefics3_vision", hidden_act="gelu_pytorch_tanh")
    whole = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "vision_config": tower,
        "scale_factor": _count(mmproj, "projector.scale_factor"),
    }
    longest = _count(mmproj, "preproc_image_size", 4 * tower["image_size"])
    return whole, {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": longest},
        "max_image_size": {"longest_edge": tower["image_size"]},
    }


def _pixtral(mmproj: GgufHeader, texts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    act = "silu" if mmproj.value("clip.use_silu", bool, False) else "gelu"
    tower = _tower(mmproj, model_type="pixtral", hidden_act=act)
    merge = _count(mmproj, "spatial_merge_size", 1)
    merges = "mm.patch_merger.weight" in mmproj.tensors
    whole = {
        "architectures": ["Mistral3ForConditionalGeneration" if merges else "LlavaForConditionalGeneration"],
        "model_type": "mistral3" if merges else "llava",
        "vision_config": tower,
        "vision_feature_layer": -1,
        "spatial_merge_size": merge,
    }
    if texts["model_type"] == "llama":  # by which name Mistral's files go, too
        texts.update(model_type="mistral", sliding_window=None)
    return whole, {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": tower["image_size"]}}


_FAMILIES = {
    "gemma3": Family(
        frozenset({"gemma3"}), ("<image_soft_token>", "<start_of_image>", "<end_of_image>"), _gemma3
    ),
    "idefics3": Family(
        frozenset({"llama"}), ("<image>", "<fake_token_around_image>", "<global-img>"), _idefics3
    ),
    "pixtral": Family(frozenset({"llama", "mistral3"}), ("[IMG]", "[IMG_BREAK]", "[IMG_END]"), _pixtral),
}  # fmt: skip
assert frozenset(_FAMILIES) == KINDS
