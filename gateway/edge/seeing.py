"""Which requests may bring pictures: what the models here see, and what the settings allow."""

from __future__ import annotations

from gateway.edge.schema.pictures import PictureLimits, Pictures
from gateway.edge.served import Served
from gateway.edge.settings import EdgeSettings
from wire.model_card import ModelCard


class Seeing:
    """What the routes ask before they read a body that can hold pictures."""

    def __init__(self, settings: EdgeSettings, served: Served) -> None:
        self._served = served
        self._limits = PictureLimits(settings.max_images, settings.max_image_bytes, settings.max_image_pixels)
        self._any_sees = any(card.pictures is not None for card in served.cards.values())
        most = settings.max_body_bytes
        self.max_body_bytes = max(most, settings.max_image_body_bytes) if self._any_sees else most

    def limits(self, card: ModelCard) -> dict[str, int] | None:
        """Return what clients may know of the limits of a model's pictures; None: it sees none."""
        if card.pictures is None:
            return None
        limits = self._limits
        return {"max_images": limits.number, "max_image_bytes": limits.num_bytes, "max_image_pixels": limits.pixels}

    def pictures(self, model: str) -> Pictures:
        """Return what takes the pictures of one request to a model. Raises ModelNotFoundError."""
        sees = self._served.card(model).pictures is not None
        return Pictures(self._limits, refusal="" if sees else f"the model {model} reads text; it sees no pictures.")

    def kept_pictures(self) -> Pictures:
        """Return what takes pictures that are kept for whichever model is asked later."""
        return Pictures(self._limits, refusal="" if self._any_sees else "no model here sees pictures.")
