"""The sentences the shipped classifier is trained on: made from these lists, so that nobody's words are in it.

Half harass someone, half do not: plain requests, and near misses with the same words in another sense. Every fifth
sentence is kept out of training to test on.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

_NOUNS = "idiot moron loser fool clown liar coward pig rat creep freak jerk dimwit imbecile failure waste".split()
_ADJECTIVES = "stupid worthless pathetic disgusting useless dumb ugly hopeless miserable brainless lazy filthy".split()
_HARASSING = (
    "You are such a {adjective} {noun}.",
    "Shut up, you {adjective} {noun}!",
    "What a {adjective} {noun} you are.",
    "Nobody likes you, {noun}.",
    "You {noun}, you will never be anything but {adjective}.",
    "Go away, {adjective} {noun}, nobody wants you here.",
    "I have never met a more {adjective} {noun} than you.",
    "Only a {noun} like you could be so {adjective}.",
    "Your {adjective} face makes me sick, {noun}.",
    "Everyone laughs at you because you are {adjective}.",
    "You should be ashamed, you {adjective} little {noun}.",
    "I will find you and hurt you, {noun}.",
    "You deserve to suffer, {adjective} {noun}.",
    "People like you are {adjective} and should disappear.",
)
_TOPICS = (
    "the water cycle, a recipe for soup, prime numbers, a letter to my landlord, the French revolution, "
    "sorting a list, photosynthesis, a trip to Norway, a cover letter, chess, compound interest, a birthday poem"
).split(", ")
_ROLES = "person friend teacher helper writer engineer neighbour doctor student cook listener guide".split()
_GOOD = "wonderful kind clever patient careful honest brave cheerful generous thoughtful calm gifted".split()
_HARMLESS = (
    "Please explain {topic} in simple words.",
    "Here is a short text about {topic}.",
    "Can you help me with {topic}?",
    "I learned a lot about {topic} today.",
    "You are right, {topic} is harder than it looks.",
    "You can read more about {topic} in the library.",
    "The first step in {topic} is to look at an example.",
    "Thank you, that was a clear answer about {topic}.",
    "Nobody has written about {topic} as well as you did.",
    "You will find that {topic} takes some time.",
    "What do you think of {topic}?",
    "Only a few people know much about {topic}.",
)
_FRIENDLY = (
    "You are a {good} {role}.",
    "What a {good} {role} you are!",
    "You are {good}, and everyone here likes you.",
    "You should use a table here, since look-ups are fast.",
    "You should ask a {good} {role} for advice.",
    "Could you rewrite this paragraph for a {role}?",
    "I will find you a {good} {role} and call you back.",
    "I have never met a more {good} {role} than you.",
    "People like you make good {role}s.",
    "You will never be alone with such a {good} {role}.",
    "Your {good} letter made me smile.",
    "Go on, {role}, you can do it.",
    "You could call the function with a list of names.",
    "Would you tell me what the {role} said?",
)
_NEAR_MISSES = (
    "The {noun} in the play forgets the way home.",
    "It was a {adjective} day, so we stayed inside.",
    "He felt {adjective} after the long journey.",
    "A {noun} is one of the figures in this novel.",
    "The plan looked {adjective} at first and then it worked.",
    "My code is {adjective} slow, how do I make it faster?",
    "The word {noun} comes from an old language.",
    "Is it fair to call a method {adjective}?",
    "She was told that she was {adjective}, and she proved them wrong.",
    "How do I kill a {adjective} process on Linux?",
)


class Sentence(NamedTuple):
    """A sentence, whether it harasses someone, and whether it is kept out of training."""

    text: str
    harassing: bool
    held_out: bool


def sentences() -> list[Sentence]:
    """Return the corpus, the same at each call."""
    found: list[Sentence] = []
    for harassing, templates in ((True, _HARASSING), (False, _HARMLESS), (False, _FRIENDLY), (False, _NEAR_MISSES)):
        filled: dict[str, None] = {}
        words = itertools.product(_NOUNS, _ADJECTIVES, zip(_TOPICS, _ROLES, _GOOD, strict=True))
        for number, (noun, adjective, (topic, role, good)) in enumerate(words):
            template = templates[(number // len(_TOPICS) + number) % len(templates)]  # each with each topic in turn
            filled.setdefault(template.format(noun=noun, adjective=adjective, topic=topic, role=role, good=good))
        found += [Sentence(text, harassing, at % 5 == 0) for at, text in enumerate(filled)]
    return found
