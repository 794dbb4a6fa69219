"""The models that this edge offers, by what they make: text, embeddings, or scores."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.edge.settings import EdgeSettings
from gateway.postprocess.safety.policy import SafetyPolicy
from gateway.postprocess.tools.splitter import CallSplitter
from gateway.postprocess.tools.styles import STYLES
from wire.adapter_record import WantedAdapter
from wire.errors import InvalidRequestError, ModelNotFoundError
from wire.messages import Request
from wire.model_card import ModelCard
from wire.settings import SettingsError
from wire.tool_style import HARMONY
from wire.vocabulary import Vocabulary, VocabularyError


class ServedModel(msgspec.Struct, frozen=True):
    """What the edge knows of a model that generates."""

    card: ModelCard
    vocabulary: Vocabulary

    def calls(self, request: Request, safety: SafetyPolicy | None, name: str) -> CallSplitter | None:
        """Return what finds the tool calls in an answer, if the request has tools; `name` is the answer's own.

        Of a model that speaks harmony also what parts its messages from their frame, whether there are tools or not.
        """
        framed = self.card.tool_style == HARMONY and request.kind == "chat"
        if not request.tools and not framed:
            return None
        functions = [tool["function"] for tool in request.tools]
        known = {function["name"]: function.get("parameters") for function in functions}
        parser = STYLES[self.card.tool_style](known)
        if request.continues:
            parser.go_on()
        one_call, forms = not request.parallel_tool_calls, request.tool_forms
        return CallSplitter(parser, safety, name=name, one_call=one_call, forms=forms)


_OTHERS = {"embedding": "makes embeddings; ask /v1/embeddings", "rerank": "ranks documents; ask /v1/rerank"}


class Served:
    """All models by name."""

    def __init__(self, settings: EdgeSettings) -> None:
        """Read the cards of the models that the settings name. Raises StartError."""
        self.cards = {name: ModelCard.load(settings.model_path(name), name) for name in settings.models}
        self.bases = tuple(self.cards)
        self._models = {name: _load(settings, card) for name, card in self.cards.items() if card.kind == "chat"}
        self.generating = tuple(self._models)
        self._ids: dict[str, str] = {}  # of adapters that came at run time
        for name in self.bases:
            self._add_adapters(settings, name)
        self._encoders = {name: _vocabulary(card) for name, card in self.cards.items() if card.kind != "chat"}

    def _add_adapters(self, settings: EdgeSettings, base: str) -> None:
        """Offer a model's adapters. Raises StartError where it cannot have any."""
        for place in settings.adapters_of(base):
            if base not in self._models:
                raise SettingsError(f"adapters: {place.name} is of {base}, which generates nothing")
            self._add(place.name, base)

    def _add(self, name: str, base: str) -> None:
        model = self._models[base]
        card = msgspec.structs.replace(model.card, name=name, adapter_of=base)
        self._models[name], self.cards[name] = ServedModel(card, model.vocabulary), card

    def offer(self, base: str, wanted: Mapping[str, WantedAdapter]) -> None:
        """Offer these adapters of a model that came at run time, and no others; a name that is taken stays as it is."""
        for name in [name for name in self._ids if self.cards[name].adapter_of == base and name not in wanted]:
            del self._ids[name], self._models[name], self.cards[name]
        for name, one in wanted.items():
            if name not in self.cards:
                self._add(name, base)
            elif name not in self._ids or self.cards[name].adapter_of != base:
                continue
            self._ids[name] = one.id

    def check_new_name(self, name: str, *, of: str, replace: bool) -> None:
        """Raise InvalidRequestError if no adapter of a model may come by this name."""
        if name not in self.cards:
            return
        if name not in self._ids:
            what = "an adapter that the settings name" if self.cards[name].adapter_of else "a model"
            raise InvalidRequestError(f"lora_name: {name!r} is {what}", param="lora_name")
        base = self.cards[name].adapter_of
        if base != of:
            raise InvalidRequestError(f"lora_name: {name!r} is an adapter of {base}", param="lora_name")
        if not replace:
            message = f"lora_name: {name!r} is loaded already; send load_inplace true to replace it"
            raise InvalidRequestError(message, param="lora_name")

    def adapter_id(self, name: str) -> str:
        """Return what an adapter that came at run time is to desks, "" for what is none."""
        return self._ids.get(name, "")

    def adapter_base(self, name: str) -> str:
        """Return whose adapter that came at run time this is, "" for none. Raises InvalidRequestError for one set."""
        if name in self._ids:
            return self.cards[name].adapter_of
        if name in self.cards and self.cards[name].adapter_of:
            message = f"lora_name: {name!r} is named by the setting adapters; take it out there"
            raise InvalidRequestError(message, param="lora_name")
        return ""

    def routed(self, request: Request) -> Request:
        """Return a request that says whose desks and replicas see to it, if its model is an adapter."""
        base = self.cards[request.model].adapter_of if request.model in self.cards else ""
        if not base:
            return request
        return msgspec.structs.replace(request, adapter_of=base, adapter_id=self.adapter_id(request.model))

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names, those of adapters among them."""
        return tuple(self.cards)

    def card(self, name: str) -> ModelCard:
        """Return a model's card. Raises ModelNotFoundError."""
        if name not in self.cards:
            raise ModelNotFoundError(f"The model {name[:80]!r} is not served here.", param="model")
        return self.cards[name]

    def model(self, name: str) -> ServedModel:
        """Return a model that generates. Raises ModelNotFoundError."""
        if name not in self._models:
            raise ModelNotFoundError(f"The model {name} {_OTHERS[self.card(name).kind]}.", param="model")
        return self._models[name]

    def vocabulary(self, name: str) -> Vocabulary | None:
        """Return the vocabulary of a model; None for an encoder whose tokens are of an unknown kind."""
        return self._encoders[name] if name in self._encoders else self.model(name).vocabulary

    def embedder(self, name: str) -> ModelCard:
        """Return a model that makes embeddings. Raises ModelNotFoundError."""
        card = self.card(name)
        if card.kind == "chat":
            raise ModelNotFoundError(f"The model {name} generates text; it makes no embeddings.", param="model")
        if card.kind == "rerank":
            raise ModelNotFoundError(f"The model {name} {_OTHERS[card.kind]}.", param="model")
        return card

    def scorer(self, name: str) -> ModelCard:
        """Return a model that can tell how well texts go together. Raises ModelNotFoundError."""
        card = self.card(name)
        if card.kind == "chat":
            raise ModelNotFoundError(
                f"The model {name} generates text; documents are ranked by a reranker or an embedding model.",
                param="model",
            )
        return card


def _vocabulary(card: ModelCard) -> Vocabulary | None:
    try:
        return Vocabulary.load(card.path)
    except VocabularyError:
        return None


def _load(settings: EdgeSettings, card: ModelCard) -> ServedModel:
    vocabulary = Vocabulary.load(card.path)
    told = None if card.tool_style == HARMONY else settings.tool_style(card.name)
    style = told or card.tool_style
    tags = {tag: vocabulary.special[tag] for tag in STYLES[style]({}).tags if tag in vocabulary.special}
    return ServedModel(msgspec.structs.replace(card, tool_style=style, tool_tags=tags), vocabulary)
