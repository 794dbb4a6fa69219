"""The gated delta rule over many tokens of one sequence in torch: a chunk of tokens at a time, by matrix products.

Within a chunk every change of the state hangs on those before it, linearly; so all of them are the solution of one
triangular system (the WY form; arXiv 2412.06464, section 3.3), and only chunks follow one another.
"""

import torch
from torch import Tensor

from kernels.fading import LEAST

_CHUNK = 64


def through_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is read [n, V, Dv] and the state behind n tokens, for the `state` [V, Dk, Dv] before them.

    `q`, `k` [n, V, Dk] and `v` [n, V, Dv] are float32, of unit length and scaled as they come; `g` [n, V] is the
    logarithm of how much of a state is left behind each token, `beta` [n, V] how much of a correction is made.
    """
    made = torch.empty_like(v)
    q, k, v, g, beta = (x.transpose(0, 1) for x in (q, k, v, g, beta))
    for begin in range(0, made.shape[0], _CHUNK):
        part = slice(begin, begin + _CHUNK)
        read, state = _through_one(q[:, part], k[:, part], v[:, part], g[:, part], beta[:, part], state)
        made[part] = read.transpose(0, 1)
    return made, state


def _through_one(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same for one chunk, heads first."""
    faded = g.clamp(min=LEAST).cumsum(1)  # the logarithm of what is left of `state` behind each token
    left = faded.exp()[..., None]
    # What is left at token i of the change made at token j <= i.
    between = (faded[..., :, None] - faded[..., None, :]).tril().exp().tril()
    keys = k.transpose(1, 2)
    system = (k @ keys) * between * beta[..., None]
    wanted = (v - (k @ state) * left) * beta[..., None]
    changes = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    read = (q @ state) * left + ((q @ keys) * between) @ changes
    last = (faded[:, -1:] - faded).exp()[..., None]
    return read, state * left[:, -1:] + (k * last).transpose(1, 2) @ changes
