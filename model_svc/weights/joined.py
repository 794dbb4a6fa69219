"""Two checkpoints as one: a model's texts in one file, what it sees with in another."""

from __future__ import annotations

from model_svc.weights.errors import CheckpointError
from model_svc.weights.source import Stored, TrackedSource


class JoinedSources(TrackedSource):
    """The tensors of all `sources`."""

    def __init__(self, *sources: TrackedSource) -> None:
        """Raises CheckpointError for a tensor that two of them have."""
        super().__init__()
        self.place = sources[0].place
        self._sources = sources
        self._of: dict[str, TrackedSource] = {}
        self.shapes = {}
        for source in sources:
            for name, shape in source.shapes.items():
                if name in self._of:
                    raise CheckpointError(source.place, f"tensor {name!r} is in {self._of[name].place}, too")
                self._of[name], self.shapes[name] = source, shape

    def read(self, name: str) -> Stored:
        """Return a tensor as it is stored."""
        return self._of[name].read(name)

    def release(self) -> None:
        """Let go of memory that only reading took."""
        for source in self._sources:
            source.release()
