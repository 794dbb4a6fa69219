"""Pictures in a prompt: the text that stands for each is put where the template says that there is one.

A template writes one control token for a picture. Users cannot write control tokens, so what is counted here is the
template's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizer_svc.marking import Marks
from wire.errors import InternalError, InvalidRequestError, StartError
from wire.messages import ChatMessage, ImageRef, ImageSpan
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary


class PicturePlacer:
    """How one model's prompts hold pictures."""

    def __init__(self, card: ModelCard, marks: Marks, vocabulary: Vocabulary) -> None:
        """Raises StartError for a model that sees pictures and has no token for them."""
        self._form = card.pictures
        self._marks = marks
        if self._form is None:
            return
        for token in (self._form.placeholder, self._form.image_token):
            if token not in vocabulary.special:
                raise StartError(f"{card.path / 'tokenizer.json'}: has no control token {token}, which pictures need")
        self._image_token_id = vocabulary.special[self._form.image_token]

    def check(self, messages: Iterable[ChatMessage]) -> None:
        """Refuse pictures before a model that sees none. Raises InvalidRequestError."""
        if self._form is None and any(message.images for message in messages):
            reason = "the conversation holds pictures, and this model sees none; ask one that does."
            raise InvalidRequestError(reason, param="messages")

    def place(self, text: str, images: Sequence[ImageRef]) -> str:
        """Return prompt text (with stand-ins) in which pictures have the text that stands for them.

        Raises InvalidRequestError if the template does not show all of them.
        """
        if self._form is None or not images:
            return text
        pieces = text.split(self._marks.placeholders[self._form.placeholder])
        if len(pieces) != len(images) + 1:
            reason = f"the chat template shows {len(pieces) - 1} of the {len(images)} pictures in these messages"
            raise InvalidRequestError(reason, param="messages")
        placed = pieces[0]
        for image, piece in zip(images, pieces[1:], strict=True):
            placed += self._marks.place(self._form.layout(image.width, image.height).text) + piece
        return placed

    def spans(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> tuple[ImageSpan, ...]:
        """Return where the pictures of a prompt stand in its ids."""
        if self._form is None or not images:
            return ()
        places = [at for at, token_id in enumerate(token_ids) if token_id == self._image_token_id]
        spans, begin = [], 0
        for image in images:
            end = begin + self._form.layout(image.width, image.height).num_image_tokens
            if end > len(places):
                break
            first, last = places[begin], places[end - 1]
            spans.append(ImageSpan(position=first, num_tokens=last - first + 1, digest=image.digest))
            begin = end
        if len(spans) != len(images) or begin != len(places):
            raise InternalError("the prompt has another number of image tokens than its pictures")
        return tuple(spans)
