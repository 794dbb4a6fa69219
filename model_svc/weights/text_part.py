"""A model of texts and images: what of it concerns texts, under the names that a model of texts alone has."""

from __future__ import annotations

from collections.abc import Iterable

from model_svc.weights.errors import CheckpointError
from model_svc.weights.source import Stored, TrackedSource

_PLACES = {"language_model.": "", "model.language_model.": "model.", "model.text_model.": "model."}


def has_text_part(names: Iterable[str]) -> bool:
    """Tell whether a checkpoint with these tensors holds more than a model of texts."""
    return any(name.startswith(tuple(_PLACES)) for name in names)


class TextPart(TrackedSource):
    """The tensors of `source`; those of what sees keep their names."""

    def __init__(self, source: TrackedSource) -> None:
        """Name the tensors. Raises CheckpointError for two of one name."""
        super().__init__()
        self.place = source.place
        self._source = source
        self._theirs: dict[str, str] = {}
        self.shapes = {}
        for name, shape in source.shapes.items():
            place = next((place for place in _PLACES if name.startswith(place)), "")
            ours = _PLACES.get(place, "") + name.removeprefix(place)
            if ours in self.shapes:
                raise CheckpointError(self.place, f"tensors {self._theirs[ours]!r} and {name!r} are both {ours!r}")
            self._theirs[ours], self.shapes[ours] = name, shape

    def read(self, name: str) -> Stored:
        """Return a tensor as it is stored."""
        return self._source.read(self._theirs[name])

    def release(self) -> None:
        """Let go of memory that only reading took."""
        self._source.release()
