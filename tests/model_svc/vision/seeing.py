"""A tiny random model that sees on disk, its oracle, pictures of odd sizes, and prompts that show them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image as Pil
from torch import Tensor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from model_svc.engine.plan import Picture
from model_svc.engine.request import EngineRequest
from model_svc.pictures.decode import decode
from model_svc.pictures.tiles import tiles_of
from wire import block_hash
from wire.messages import Image, ImageSpan, Prompt, SamplingParams, pack_ids
from wire.pictures import PictureForm, read_form
from wire.pictures.idefics3 import Idefics3Form
from wire.pictures.pixtral import PixtralForm

VOCAB, IMAGE_TOKEN, MARK = 97, 96, 90
BLOCK = 4
ROOT = block_hash.root(b"secret", model="tiny", block_size=BLOCK)
TEXT: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 512,
}
SEES: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 12,
    "patch_size": 2,
    "initializer_range": 0.3,
}
CUT = {"size": {"longest_edge": 24}, "max_image_size": {"longest_edge": 12}, "return_row_col_info": True}
PROCESSORS: dict[str, Any] = {
    "Gemma3": Gemma3ImageProcessorPil,
    "Idefics3": Idefics3ImageProcessorPil,
    "Llava": PixtralImageProcessorPil,
    "Mistral3": PixtralImageProcessorPil,
    "Qwen2_5_VL": Qwen2VLImageProcessorPil,
    "Qwen3VL": Qwen2VLImageProcessorPil,
    "SmolVLM": SmolVLMImageProcessorPil,
}
GEMMA3_TEXT: dict[str, Any] = {
    "model_type": "gemma3_text",
    "head_dim": 16,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 20,
}
PIXTRAL: dict[str, Any] = {  # of which rope halves heads twice
    "model_type": "pixtral",
    "num_attention_heads": 3,
    "hidden_size": 24,
    "hidden_act": "silu",
    "image_size": 14,
}
QWEN_CUT = {"size": {"shortest_edge": 150, "longest_edge": 500}, "patch_size": 2, "merge_size": 2}
QWEN_TEXT: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "bos_token_id": None} | {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 3, 3]}
}
QWEN_TEXTS: dict[str, Any] = {
    "Qwen2_5_VL": QWEN_TEXT | {"model_type": "qwen2_5_vl_text", "eos_token_id": None},
    "Qwen3VL": QWEN_TEXT | {"model_type": "qwen3_vl_text", "head_dim": 16, "num_hidden_layers": 3},
}
QWEN_SEES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "depth": 3,
    "num_heads": 2,
    "patch_size": 2,
    "out_hidden_size": 32,
    "initializer_range": 0.3,
}
QWENS_SEE: dict[str, Any] = {
    "Qwen2_5_VL": QWEN_SEES | {"window_size": 12, "fullatt_block_indexes": [1]},
    "Qwen3VL": QWEN_SEES | {"num_position_embeddings": 25, "deepstack_visual_indexes": [0, 1]},
}
SIZES = [(23, 37), (11, 9), (40, 5)]


def picture_of(number: int) -> Image:
    """Return the picture of this number, of noise, as PNG."""
    width, height = SIZES[number]
    colours = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return png(Pil.fromarray(colours))


def png(picture: Pil.Image, **options: Any) -> Image:
    """Return a picture as its client sends it."""
    out = io.BytesIO()
    picture.save(out, "PNG", **options)
    return Image.of("image/png", out.getvalue())


@dataclass(frozen=True)
class Seeing:
    """A checkpoint in `directory` and the same model in transformers."""

    directory: Path
    oracle: Any
    processor: Any

    @cached_property
    def form(self) -> PictureForm:
        """How pictures are cut."""
        form = read_form(self.directory, self.oracle.config.architectures[0])
        assert form is not None
        return form

    @property
    def keeps_form(self) -> bool:
        """Whether pictures are of all sizes and stand in two dimensions."""
        return isinstance(self.processor, Qwen2VLImageProcessorPil)

    def numbers(self, image: Image) -> Tensor:
        """Return what the oracle's processor makes of a picture, [n, 3, side, side]."""
        found: Tensor = self._processed([image])["pixel_values"]
        return found if found.dim() == 4 else found[0]

    def shown(self, images: Sequence[Image]) -> dict[str, Tensor]:
        """Return several pictures as the oracle takes them; of Pixtral's processor they are filled up to one size."""
        if self.keeps_form or isinstance(self.processor, PixtralImageProcessorPil):
            return dict(self._processed(images))
        numbers = torch.cat([self.numbers(image) for image in images])
        return {"pixel_values": numbers[None] if isinstance(self.form, Idefics3Form) else numbers}

    def _processed(self, images: Sequence[Image]) -> Any:
        pictures = [Pil.open(io.BytesIO(image.data)) for image in images]
        more = {"patch_size": self.form.patch} if isinstance(self.form, PixtralForm) else {}
        return self.processor(pictures, return_tensors="pt", **more)

    def picture(self, image: Image) -> Picture:
        """Return a picture as the engine takes it."""
        pixels = decode(image, 1)
        layout = self.form.layout(*pixels.size)
        tiles = tiles_of(pixels, layout, Pil.Resampling(self.processor.resample))
        return Picture(
            name=image.digest, tiles=tiles.tobytes(), num_tiles=len(tiles), height=tiles.shape[1],
            width=tiles.shape[2], num_features=layout.num_image_tokens,
        )  # fmt: skip

    def request(self, name: str, *parts: list[int] | int, **sampling: Any) -> Asked:
        """Return a greedy request whose prompt consists of texts (ids) and pictures (their numbers)."""
        ids: list[int] = []
        spans: list[ImageSpan] = []
        images = []
        for part in parts:
            if isinstance(part, list):
                ids += part
                continue
            image = picture_of(part)
            tokens = _tokens(self.picture(image), self.form)
            spans.append(ImageSpan(position=len(ids), num_tokens=len(tokens), digest=image.digest))
            images.append(image)
            ids += tokens
        prompt = Prompt(
            token_ids=pack_ids(ids),
            num_tokens=len(ids),
            block_root=ROOT,
            block_hashes=b"".join(block_hash.chain(ROOT, ids, BLOCK, spans)),
            block_size=BLOCK,
            max_tokens=5,
            images=tuple(spans),
        )
        asked = SamplingParams(**{"temperature": 0.0, "logprobs": VOCAB, "ignore_eos": True} | sampling)
        pictures = {image.digest: self.picture(image) for image in images}
        request = EngineRequest(request_id=name, prompt=prompt, sampling=asked, pictures=tuple(pictures.values()))
        return Asked(request, ids, images)

    def logprobs(self, asked: Asked, answer: Sequence[int]) -> Tensor:
        """Return what the oracle holds likely at each token of an answer, [n, V]."""
        ids = torch.tensor([[*asked.ids, *answer[:-1]]])
        shown = self.shown(asked.images) if asked.images else {}
        if isinstance(self.processor, Gemma3ImageProcessorPil):
            shown["token_type_ids"] = (ids == IMAGE_TOKEN).long()
        elif self.keeps_form:
            shown["mm_token_type_ids"] = (ids == IMAGE_TOKEN).int()
        with torch.inference_mode():
            logits = self.oracle(ids, **shown).logits[0]
        found: Tensor = logits[len(asked.ids) - 1 :].log_softmax(-1)
        return found


@dataclass(frozen=True)
class Asked:
    """A request, the ids of its prompt, and the pictures in it."""

    request: EngineRequest
    ids: list[int]
    images: list[Image]


def _tokens(picture: Picture, form: PictureForm) -> list[int]:
    """Return the tokens of a picture, from the first image token to the last one: marks between tiles, or rows."""
    if isinstance(form, PixtralForm):
        row = [MARK, *[IMAGE_TOKEN] * (picture.width // form.patch)]
        return (row * (picture.height // form.patch))[1:]
    each = picture.num_features // picture.num_tiles
    tiles = [[MARK, MARK + 1 + n % 5, *[IMAGE_TOKEN] * each] for n in range(picture.num_tiles)]
    return [token for tile in tiles for token in tile][2:]


def save(directory: Path, family: str = "Idefics3", **text: Any) -> Seeing:
    """Write a checkpoint of a family; `text` changes its part of texts."""
    fields: dict[str, Any] = {"scale_factor": 2, "image_token_id": IMAGE_TOKEN, "tie_word_embeddings": False}
    sees, cut = SEES, CUT
    if family == "Gemma3":
        fields = {"mm_tokens_per_image": 9, "image_token_index": IMAGE_TOKEN}
        sees, cut, text = SEES | {"vision_use_head": False}, {"size": {"height": 12, "width": 12}}, GEMMA3_TEXT | text
    if family in ("Llava", "Mistral3"):
        fields = {"image_token_index": IMAGE_TOKEN, "tie_word_embeddings": False}
        sees, cut = SEES | PIXTRAL, {"size": {"longest_edge": 14}, "patch_size": 2}
        text = {"model_type": "mistral", "sliding_window": None, "rms_norm_eps": 1e-5} | text
        fields |= {"vision_feature_layer": -1}
        fields |= {"vision_feature_select_strategy": "full"} if family == "Llava" else {"spatial_merge_size": 2}
    if family in QWENS_SEE:
        fields = {"image_token_id": IMAGE_TOKEN, "video_token_id": IMAGE_TOKEN - 1, "tie_word_embeddings": False}
        sees, cut, text = QWENS_SEE[family], QWEN_CUT, QWEN_TEXTS[family] | text
    config = getattr(transformers, f"{family}Config")(text_config=TEXT | text, vision_config=sees, **fields)
    torch.manual_seed(3)
    oracle = (
        getattr(transformers, f"{family}ForConditionalGeneration")
        ._from_config(config, attn_implementation="eager")
        .eval()
    )
    if family == "Gemma3":  # whose projection begins with zeros
        torch.nn.init.normal_(oracle.model.multi_modal_projector.mm_input_projection_weight)
    oracle.save_pretrained(directory)
    processor = PROCESSORS[family](**cut)
    processor.save_pretrained(directory)
    return Seeing(directory, oracle, processor)
