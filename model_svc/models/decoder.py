"""What all decoders share: embed, run the layers, norm, head. A model file says only how one layer is built."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from model_svc.layers.attention import Attention, AttentionConfig
from model_svc.layers.blocks import Layer, Mlp, PreNorm, add_norm
from model_svc.layers.embedding import load_tables
from model_svc.layers.experts import Experts, ExpertsConfig
from model_svc.layers.loader import Loader
from model_svc.layers.mlp import GatedMlp, activation_named
from model_svc.layers.norm import Norm, RmsNorm
from model_svc.layers.rope import RopeConfig, RopeTables, rope_tables, tables_of
from model_svc.layers.step import LayerKv, StepBatch
from model_svc.models.config import ModelConfig
from model_svc.vision.vision import Vision


@dataclass(frozen=True)
class KvShape:
    """What one layer keeps of a token: `tensors` of `num_kv_heads` heads of `head_dim` numbers.

    Two are keys and values, one is of latents, which stand for both.
    """

    num_kv_heads: int
    head_dim: int
    tensors: int = 2


@dataclass(frozen=True)
class StateShape:
    """The size of what one layer keeps of a sequence however long it is, in float32: a window, and mostly a state."""

    window: tuple[int, int]
    state: tuple[int, int, int] = (0, 0, 0)


class Decoder:
    """A decoder-only transformer. Subclasses override `layer` and the hooks below it.

    `last_norm`: what the last norm is called.

    Two defaults for configs that do not say: whether the head is tied, and that each `window_pattern`-th layer is full
    and the others are windowed (0: all are full).
    """

    tied_default: ClassVar[bool] = False
    window_pattern: ClassVar[int] = 0
    norm_offset: ClassVar[float] = 0.0
    last_norm: ClassVar[str] = "norm"

    def __init__(self, config: ModelConfig, loader: Loader, max_len: int, device: torch.device) -> None:
        """Fetch all weights. `max_len` is the longest sequence that will be served."""
        self.config = config
        self.group = loader.group
        self.adapters = loader.adapters
        self.device = device
        self.max_len = max_len
        self.weight_bytes = 0  # set when all are loaded, like the next two
        self.vision: Vision | None = None
        self.sees_both_ways = False  # tokens of one picture see one another, those behind them, too
        self.pair_axes: Tensor | None = None  # of pictures in two dimensions: the axis of each rotated pair
        self._ropes: dict[str | None, RopeTables] = {}
        tied = config.tied if "tie_word_embeddings" in config.raw else self.tied_default
        if "text_config" in config.raw:  # both parts of such a config may say, each something else
            tied = not loader.has("lm_head.weight")
        self._embed, self._head = load_tables(
            loader, config.vocab_size, config.hidden_size, tied=tied, scale=self.embedding_scale()
        )
        self._num_kv_heads = config.num_kv_heads // loader.shard(config.num_kv_heads).size
        self.dtype = loader.method.dtype  # of hidden states
        body = loader.at("model")
        own = self.group.layers(config.num_layers)
        self._states = [self.state_shape(n) for n in own]
        self._layers: list[Layer] = [self.layer(body.at("layers").at(n), n) for n in own]
        for n in set(range(config.num_layers + self.drafting_layers())).difference(own):
            body.at("layers").at(n).leave()
        loader.at("mtp").leave()  # Qwen's layers that guess ahead
        for layer, following in pairwise(self._layers):
            if isinstance(layer, PreNorm):
                layer.precede(following)
        self._norm = self.norm(body, self.last_norm)

    @classmethod
    def keeps_state(cls, config: ModelConfig) -> bool:  # noqa: ARG003 - of most models all layers attend
        """Tell whether some layers of a model have a state instead of attention (`state_shape`)."""
        return False

    @classmethod
    def state_parts(cls, config: ModelConfig) -> int:  # noqa: ARG003 - of most models there are none
        """Return how many parts of states there are for ranks to share, 0 for a model without states."""
        return 0

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        raise NotImplementedError

    def kv_shapes(self) -> list[KvShape]:
        """Return what each layer of this rank with attention keeps per token."""
        return [KvShape(self._num_kv_heads, self.config.head_dim)] * self._states.count(None)

    def state_shapes(self) -> list[StateShape | None]:
        """Return what each layer of this rank keeps per sequence; None for those with attention."""
        return self._states

    def inputs(self, ids: Tensor) -> Tensor:
        """Return what `forward` begins with: `ids` [T], or [T, E] that the stage before this one passes on."""
        if self.group.is_first:
            return ids
        taken = torch.empty(len(ids), self.config.hidden_size, dtype=self.dtype, device=self.device)
        self.group.take(taken)
        return taken

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings [T, E] of `ids` [T]."""
        assert self._embed is not None, "the first stage has the table"
        return self._embed(ids)

    def forward(self, inputs: Tensor, step: StepBatch, caches: list[LayerKv]) -> Tensor:
        """Compute the normed hidden states [T, E] of `inputs`, ids [T] int32; the caches are written.

        A step with pictures begins with embeddings [T, E], some of which are features; a stage behind another one with
        hidden states [T, E]. Both may be written over. One before another returns what is to be passed on: the sum,
        not yet normed.
        """
        x, residual = inputs if inputs.dim() == 2 else self.embed(inputs), None
        with self.adapters.serving(step.adapters) if self.adapters is not None else nullcontext():
            for n, (layer, kv) in enumerate(zip(self._layers, caches, strict=True)):
                x, residual = layer(x, residual, step, kv)
                if step.deep is not None and n < len(step.deep.features):
                    x.index_add_(0, step.deep.rows, step.deep.features[n])
        if self.group.is_last:
            return add_norm(self._norm, x, residual)[0]
        return x if residual is None else residual.add_(x)

    def turned(self, axes: Tensor) -> RopeTables:
        """Return the rotary tables [T, R/2] of tokens whose positions are `axes` [3, T]."""
        assert self.pair_axes is not None, "pictures have no dimensions for this model"
        return tables_of(self.rope(), axes, self.pair_axes)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [S, V] of the rows that sample, `hidden` [S, E]."""
        assert self._head is not None, "the last stage has the head"
        return self.scale_logits(self._head(hidden).float())

    def logits_into(self, hidden: Tensor, out: Tensor) -> None:
        """Write the logits of `hidden` [S, E] to float32 `out` [S, V]."""
        assert self._head is not None, "the last stage has the head"
        self._head.into(hidden, out)
        scaled = self.scale_logits(out)
        if scaled is not out:
            out.copy_(scaled)

    # --- hooks ---

    def embedding_scale(self) -> float | None:
        """Return what embeddings are multiplied with."""
        return None

    def scale_logits(self, logits: Tensor) -> Tensor:
        """Return the final logits (scaled or soft-capped)."""
        return logits

    def rotated(self) -> float:
        """Return what share of a head is rotated where the config does not say."""
        return 1.0

    def state_shape(self, index: int) -> StateShape | None:  # noqa: ARG002 - of most models all layers attend
        """Return what a layer keeps of a sequence if it has a state instead of attention."""
        return None

    def drafting_layers(self) -> int:
        """Return how many layers stand behind the model's own in the checkpoint, to guess ahead; they are left out."""
        return 0

    def norm(self, loader: Loader, name: str) -> Norm:
        """Build a norm over the hidden size."""
        return RmsNorm(loader, name, self.config.hidden_size, self.config.norm_eps, offset=self.norm_offset)

    def feed_forward(self, loader: Loader, index: int) -> Mlp:  # noqa: ARG002 - of most models all layers are alike
        """Build a layer's block between its attention and the next layer."""
        return self.mlp(loader)

    # --- parts that layers are built from ---

    def attention(self, loader: Loader, rope: RopeTables | None, **changes: object) -> Attention:
        """Build `self_attn` with the config's sizes; `changes` are fields of AttentionConfig."""
        config = self.config
        fields: dict[str, object] = {
            "hidden": config.hidden_size,
            "num_heads": config.num_heads,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "norm_eps": config.norm_eps,
            "norm_offset": self.norm_offset,
        }
        return Attention(loader.at("self_attn"), AttentionConfig(**(fields | changes)), rope)  # type: ignore[arg-type]

    def mlp(self, loader: Loader, *, bias: bool = False, fused: str | None = None) -> GatedMlp:
        """Build `mlp` with the config's sizes."""
        config = self.config
        return GatedMlp(
            loader.at("mlp"), config.hidden_size, config.intermediate_size, config.act, bias=bias, fused=fused
        )

    def experts(self, loader: Loader, inner: int, **changes: object) -> Experts:
        """Build a mixture of experts of this inner size at `loader`'s place, of as many as the config says.

        `changes` are fields of ExpertsConfig.
        """
        config = self.config
        fields: dict[str, object] = {
            "hidden": config.hidden_size,
            "inner": inner,
            "num_experts": config.whole("num_experts") or config.whole("num_local_experts"),
            "num_chosen": config.whole("num_experts_per_tok"),
            "act": activation_named(config.act),
        }
        return Experts(loader, ExpertsConfig(**(fields | changes)))  # type: ignore[arg-type]

    def has_experts(self, index: int) -> bool:
        """Tell whether a layer is a mixture of experts, where only some are (Qwen)."""
        dense = self.config.get("mlp_only_layers", [])
        step = self.config.whole("decoder_sparse_step", 1) or 1
        return not (isinstance(dense, list) and index in dense) and (index + 1) % step == 0

    def layer_type(self, index: int) -> str:
        """Return `full_attention` or `sliding_attention`."""
        return self.config.layer_type(index, self.window_pattern)

    def window(self, index: int) -> int | None:
        """Return how many last keys a layer sees; None: all."""
        if self.layer_type(index) != "sliding_attention" or self.config.get("use_sliding_window") is False:
            return None
        return self.config.sliding_window

    def rope(self, layer_type: str | None = None) -> RopeTables:
        """Return the rotary tables, computed once for each kind of layers."""
        if layer_type not in self._ropes:
            self._ropes[layer_type] = rope_tables(self.rope_config(layer_type), self.max_len, self.device)
        return self._ropes[layer_type]

    def rope_config(self, layer_type: str | None = None) -> RopeConfig:
        """Return what the rotary tables are made of."""
        return self.config.rope(layer_type, self.rotated())
