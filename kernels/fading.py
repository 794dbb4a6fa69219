"""How fast states fade, token by token."""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

from torch import Tensor

from kernels.language import jit, tl

# e^-64 of what was is nothing beside float32, and a chunk's 64 logarithms add up to few enough that the differences of
# their sums stay exact to 2e-4 whatever fades at once.
LEAST = -64.0
_LEAST = tl.constexpr(LEAST)


@dataclass(frozen=True)
class Fading:
    """How fast a head's state fades, and how much a token may change it, both for float32 inside.

    `a` and `b` [T, V] come of the token, `rate` and `bias` float32 [V] are the model's; V are value heads.
    """

    a: Tensor
    b: Tensor
    rate: Tensor
    bias: Tensor


@jit
def softplus(x):
    """log(1 + exp x), which is x itself where float32 knows no better."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@jit
def log_left(a, rate, bias):
    """The logarithm of how much of a state is left behind a token."""
    return -rate * softplus(a + bias)


@jit
def at_least(logarithm):
    """The same, of which sums may be subtracted from one another."""
    return tl.maximum(logarithm, _LEAST, propagate_nan=tl.PropagateNan.ALL)
