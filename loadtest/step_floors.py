"""The least that a step of a model can take on a card: the larger of bytes over bandwidth and operations over rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepFloors:
    """The floors of a model of some `shape` (a config.json), in ms.

    `weight_bytes` of all its weights, `expert_weight_bytes` of one weight of an expert, `kv_bytes_per_token`; the card
    copies `copy_rate` bytes and multiplies at `product_rate` operations a second.
    """

    shape: dict[str, Any]
    weight_bytes: int
    kv_bytes_per_token: int
    copy_rate: float
    product_rate: float
    expert_weight_bytes: float = 2.0

    def decode_ms(self, batch: int, context: float) -> float:
        """Return the floor of one step of `batch` sequences that draw a token each."""
        seen = [min(context, window or context) for window in self._windows()]
        kv = self.kv_bytes_per_token * batch * sum(seen) / len(seen)
        flops = 2 * self._met_weights() * batch + 4 * self._width() * batch * sum(seen)
        return float(1e3 * max((self._read_bytes(batch) + kv) / self.copy_rate, flops / self.product_rate))

    def prefill_ms(self, tokens: int, prompts: int = 1) -> float:
        """Return the floor of whole prompts; the head is computed once for each."""
        head = 2 * self.shape["vocab_size"] * self.shape["hidden_size"]
        narrow = [min(tokens, window or tokens) for window in self._windows()]
        pairs = sum(tokens * keys - keys**2 / 2 for keys in narrow)
        layers = 2 * self._met_weights() - head
        flops = prompts * (layers * tokens + head + 4 * self._width() * pairs)
        return float(1e3 * max(self._read_bytes(prompts * tokens) / self.copy_rate, flops / self.product_rate))

    def _read_bytes(self, tokens: int) -> float:
        """Bytes of weights that a step needs: of experts those that somebody chooses, if all are as likely."""
        shape = self.shape
        table = 2 * shape["vocab_size"] * shape["hidden_size"]
        read = self.weight_bytes - (0 if shape["tie_word_embeddings"] else table)
        if experts := self._experts():
            left_out = (1 - shape["num_experts_per_tok"] / experts) ** tokens
            read -= left_out * shape["num_hidden_layers"] * experts * self._block_weights() * self.expert_weight_bytes
        return float(read)

    def _met_weights(self) -> int:
        """How many weights a token meets in matrices."""
        shape, E = self.shape, self.shape["hidden_size"]
        met = shape["num_experts_per_tok"] + shape.get("n_shared_experts", 0) if self._experts() else 1
        layer = self._attention_weights() + self._block_weights() * met + E * self._experts()
        return int(shape["num_hidden_layers"] * layer + shape["vocab_size"] * E)

    def _attention_weights(self) -> int:
        """Weights of a layer's attention; over latents, those that a query meets in the absorbed form."""
        shape = self.shape
        E, heads, kv_heads = (shape[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
        if rank := self._latent():
            nope, rope, value = (shape[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
            return int(E * (heads * (nope + rope + value) + rank + rope) + heads * rank * (nope + value))
        return int(2 * E * self._head_dim() * (heads + kv_heads))

    def _block_weights(self) -> int:
        """Weights of a gated feed-forward block, an expert's if there are experts."""
        inner = self.shape.get("moe_intermediate_size") or self.shape["intermediate_size"]
        return 3 * int(self.shape["hidden_size"] * inner)

    def _experts(self) -> int:
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        return int(next((self.shape[name] for name in names if self.shape.get(name)), 0))

    def _latent(self) -> int:
        return int(self.shape.get("kv_lora_rank") or 0)

    def _head_dim(self) -> int:
        return int(self.shape.get("head_dim") or self.shape["hidden_size"] // self.shape["num_attention_heads"])

    def _width(self) -> int:
        """Numbers of all heads' keys, and of as many values: half of both."""
        if rank := self._latent():
            return int(self.shape["num_attention_heads"] * (2 * rank + self.shape["qk_rope_head_dim"]) // 2)
        return int(self.shape["num_attention_heads"] * self._head_dim())

    def _windows(self) -> list[int]:
        """How many keys each layer sees at most; 0: all. A window is that of every other layer (gpt-oss)."""
        window, layers = int(self.shape.get("sliding_window") or 0), int(self.shape["num_hidden_layers"])
        return [0 if n % 2 else window for n in range(layers)]
