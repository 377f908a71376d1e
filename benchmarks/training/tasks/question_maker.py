"""Make reading questions in the SQuAD v1.1 format: invented people, places and things, sentences from templates.

Two domains share the kind of problem (find the sentence about the right subject, copy the right span) but no name, and
few words of their templates: "lives" for pretraining, "towns" for training.  All is drawn from an own generator, so
that the same call makes the same document on every machine.
"""

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

SYLLABLES = {
    "lives": (("ba", "de", "fi", "go", "lu", "ma", "ne"), ("ra", "lo", "ti", "ven", "sko", "mi", "du"), ("n", "r", "")),
    "towns": (
        ("sha", "pre", "whi", "tho", "glu", "kra", "zy"),
        ("bel", "xo", "quin", "fa", "jor", "wy"),
        ("s", "m", "k"),
    ),
}
"""Beginnings, middles and ends of the names of each domain."""


@dataclass(frozen=True)
class Fact:
    """A sentence with slots in braces, and the questions on it: (question template, slot that answers it)."""

    sentence: str
    questions: tuple[tuple[str, str], ...]


FACTS = {
    "lives": (
        Fact(
            "{subject} was born in {place} in {year} .",
            (("Where was {subject} born ?", "place"), ("When was {subject} born ?", "year")),
        ),
        Fact(
            "{subject} works as a {job} for {other} .",
            (("What is the job of {subject} ?", "job"), ("Who employs {subject} ?", "other")),
        ),
        Fact(
            "{subject} moved to {place} with {other} .",
            (("Where did {subject} move ?", "place"), ("With whom did {subject} move ?", "other")),
        ),
        Fact("{subject} bought a {thing} for {number} coins .", (("What did {subject} buy ?", "thing"),)),
        Fact("In {year} {subject} married {other} .", (("Whom did {subject} marry ?", "other"),)),
    ),
    "towns": (
        Fact(
            "{subject} was founded by {other} in {year} .",
            (("Who founded {subject} ?", "other"), ("When was {subject} founded ?", "year")),
        ),
        Fact(
            "{other} rules {subject} since {year} .",
            (("Who is the mayor of {subject} ?", "other"), ("Since when has {subject} had its mayor ?", "year")),
        ),
        Fact(
            "Traders of {subject} sell {thing} every {job} .",
            (("What do traders sell in {subject} ?", "thing"), ("On which day is trade in {subject} ?", "job")),
        ),
        Fact(
            "In {year} floods drove {number} families from {subject} .",
            (("How many families left {subject} ?", "number"), ("When was {subject} under water ?", "year")),
        ),
        Fact("Near {place} lies {subject} .", (("Where does {subject} lie ?", "place"),)),
    ),
}

LISTS = {
    "lives": {
        "job": ["baker", "sailor", "teacher", "painter", "doctor", "farmer", "weaver", "singer", "miller", "clerk"],
        "thing": ["horse", "house", "boat", "clock", "carpet", "mirror", "violin", "garden", "lamp", "table"],
        "colour": ["red", "blue", "green", "old", "small", "large"],
    },
    "towns": {
        "job": [
            "monday",
            "tuesday",
            "wednesday",
            "thursday",
            "friday",
            "saturday",
            "sunday",
            "morning",
            "evening",
            "spring",
        ],
        "thing": ["cheese", "pottery", "timber", "honey", "bells", "wool", "bridges", "apples", "silver", "paper"],
        "colour": ["sweet", "black", "fine", "rare", "famous", "heavy"],
    },
}
YEARS = {"lives": range(1800, 1880), "towns": range(1880, 1960)}
NUMBERS = {"lives": range(10, 50), "towns": range(50, 90)}


@cache
def names(domain: str) -> tuple[str, ...]:
    """Return all invented names of the domain, capitalised, in a fixed order."""
    starts, middles, ends = SYLLABLES[domain]
    return tuple((start + middle + end).capitalize() for start in starts for middle in middles for end in ends)


def words() -> list[str]:
    """Return every word of both domains in lower case, sorted: the tokenizer's vocabulary."""
    found: set[str] = set()
    for domain, facts in FACTS.items():
        found.update(name.lower() for name in names(domain))
        for entries in LISTS[domain].values():
            found.update(entries)
        found.update(str(number) for number in (*YEARS[domain], *NUMBERS[domain]))
        templates = [text for fact in facts for text in (fact.sentence, *(question for question, _ in fact.questions))]
        found.update(word.lower() for text in templates for word in text.split() if not word.startswith("{"))
    return sorted(found)


def _slots(domain: str, subject: str, generator: random.Random) -> dict[str, str]:
    """Draw a value for every slot; names of people and things have two words, so that spans have ends to find."""
    first, last, place = generator.sample(names(domain), 3)
    lists = LISTS[domain]
    return {
        "subject": subject,
        "place": place,
        "other": f"{first} {last}",
        "job": generator.choice(lists["job"]),
        "thing": f"{generator.choice(lists['colour'])} {generator.choice(lists['thing'])}",
        "year": str(generator.choice(YEARS[domain])),
        "number": str(generator.choice(NUMBERS[domain])),
    }


def _paragraph(domain: str, identity: str, sentences: int, generator: random.Random) -> dict[str, Any]:
    """Make a context on two subjects, and one question on one of its sentences."""
    subjects = generator.sample(names(domain), 2)
    # In half of the contexts two sentences say the same kind of thing of two subjects, so that the question's verb does
    # not give the answer away; otherwise no two do, so that there is one answer.
    asked_fact = generator.choice(FACTS[domain])
    others = [fact for fact in FACTS[domain] if fact is not asked_fact]
    second = generator.choice((asked_fact, generator.choice(others)))
    facts = [asked_fact, second, *(generator.choice(others) for _ in range(sentences - 2))]
    about = [subjects[place % 2] for place in range(sentences)]
    slots = [_slots(domain, subject, generator) for subject in about]
    template, slot = generator.choice(asked_fact.questions)
    order = generator.sample(range(sentences), sentences)
    context, start = "", -1
    for place in order:
        before = facts[place].sentence.partition("{" + slot + "}")[0]
        if place == 0:
            start = len(context) + len(before.format(**slots[place]))
        context += facts[place].sentence.format(**slots[place]) + " "
    answer = {"text": slots[0][slot], "answer_start": start}
    question = template.format(**slots[0])
    return {"context": context.rstrip(), "qas": [{"id": identity, "question": question, "answers": [answer]}]}


def make_squad(domain: str, count: int, seed: int, sentences: int = 3) -> dict[str, Any]:
    """Make a SQuAD v1.1 document of `count` questions, each on a context of its own.

    Raises:
        ValueError: if the domain is unknown, or there are fewer than two sentences.
    """
    if domain not in FACTS:
        raise ValueError(f"domain is {domain!r}, allowed are {', '.join(FACTS)}")
    if sentences < 2:
        raise ValueError(f"sentences is {sentences}, allowed are 2 and more: two subjects need one each")
    generator = random.Random(f"{domain} {seed}")
    paragraphs = [_paragraph(domain, f"{domain}-{seed}-{place}", sentences, generator) for place in range(count)]
    return {"version": "1.1", "data": [{"title": domain, "paragraphs": paragraphs}]}
