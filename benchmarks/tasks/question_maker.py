"""Make reading questions in the SQuAD v1.1 format: invented people, places and things, sentences from templates.

Two domains share the kind of problem (find the sentence about the right subject, copy the right span) but no name, and
only function words of their templates: "lives" for pretraining, "towns" for training.  All is drawn from an own generator,
so that the same call makes the same document on every machine.
"""

import random
from dataclasses import dataclass
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
            "{subject} , founded by {other} , lies on river {place} .",
            (("Which river flows through {subject} ?", "place"), ("Who was the founder of {subject} ?", "other")),
        ),
        Fact(
            "Since {year} the mayor of {subject} has been {other} .",
            (("Who governs {subject} ?", "other"), ("Since which date has {subject} had its mayor ?", "year")),
        ),
        Fact(
            "Traders sell {thing} at {subject} every {job} .",
            (("What can be bought in {subject} ?", "thing"), ("On which day is trade held in {subject} ?", "job")),
        ),
        Fact(
            "{number} families left {subject} after floods of {year} .",
            (("How many people lost {subject} ?", "number"), ("In which year was {subject} under water ?", "year")),
        ),
        Fact("Beside {place} stands {subject} , known for its {thing} .", (("What made {subject} famous ?", "thing"),)),
    ),
}

LISTS = {
    "lives": {
        "job": ["baker", "sailor", "teacher", "painter", "doctor", "farmer", "weaver", "singer", "miller", "clerk"],
        "thing": ["horse", "house", "boat", "clock", "carpet", "mirror", "violin", "garden", "lamp", "table"],
        "colour": ["red", "blue", "green", "old", "small", "large"],
    },
    "towns": {
        "job": ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "morning", "evening", "spring"],
        "thing": ["cheese", "pottery", "timber", "honey", "bells", "wool", "bridges", "apples", "silver", "paper"],
        "colour": ["sweet", "black", "fine", "rare", "famous", "heavy"],
    },
}
YEARS = {"lives": range(1800, 1880), "towns": range(1880, 1960)}
NUMBERS = {"lives": range(10, 50), "towns": range(50, 90)}


def names(domain: str) -> list[str]:
    """Return all invented names of the domain, capitalised, in a fixed order."""
    starts, middles, ends = SYLLABLES[domain]
    return [(start + middle + end).capitalize() for start in starts for middle in middles for end in ends]


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
    # The first two sentences say the same kind of thing of both subjects, so that a question's words alone do not answer it;
    # the others say something else, so that it has one answer.
    asked_fact = generator.choice(FACTS[domain])
    others = [fact for fact in FACTS[domain] if fact is not asked_fact]
    facts = [asked_fact, asked_fact, *(generator.choice(others) for _ in range(sentences - 2))]
    about = [subjects[place % 2] for place in range(sentences)]
    slots = [_slots(domain, subject, generator) for subject in about]
    asked = generator.randrange(2)
    template, slot = generator.choice(facts[asked].questions)
    order = generator.sample(range(sentences), sentences)
    context, start = "", -1
    for place in order:
        before, _, after = facts[place].sentence.partition("{" + slot + "}")
        if place == asked:
            start = len(context) + len(before.format(**slots[place]))
        context += facts[place].sentence.format(**slots[place]) + " "
    answer = {"text": slots[asked][slot], "answer_start": start}
    question = template.format(**slots[asked])
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
