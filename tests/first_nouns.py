"""First nouns of docstrings: what a module, a class or a function says that it is, or works on.

Names, terms of docs/glossary.md, and the ordinary words of tests/words.toml may be first nouns. All
others are private coinages, riddles, or second names for a thing that has one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent

OPENING: Final = re.compile(r'(?:\A|:(?:  #.*)?\n) *r?"""(.+(?:\n *\S.*)?)')
"""The first two lines of the docstring of a file, class or function: behind a colon, or first."""

SMALL_WORDS: Final = frozenset(
    """
    a about above across after again against all alone along already also always among an and
    anew another apart are around as aside at away back be been before behind below beneath
    beside besides between beyond both but by can cannot do does down during each eight either
    else enough even every exactly except false few first five for four from further had half
    has have here if in indeed inside instead into is just last later least less like likewise
    many may maybe merely more most much must need neither never next no none nor not now of off
    often on once one only onto or other others otherwise out outside over own per perhaps
    rather right seldom seven several shall should since six so some soon still such ten than
    that the their then therefore these this those three through throughout till to together too
    toward true twice two under unless until up upon very was well were when where whether which
    while whole whom whose why will with within without would yet zero
    """.split()
)
"""Determiners, adverbs, prepositions, conjunctions and auxiliary verbs, at which a phrase ends."""
ADJECTIVES: Final = frozenset(
    """
    best cached greatest high inner innermost largest longest low lower new outer outermost same
    second shortest smallest upper
    """.split()
)
"""Adjectives that may stand in place of a noun: what they are about is what counts."""
PRONOUNS: Final = frozenset(
    """
    anybody anyone anything everybody everyone everything everywhere how it its itself nobody
    nothing something somebody them themselves there they
    us we what whatever whichever who whoever you your
    """.split()
)
"""Words that stand for a noun, or begin a clause."""
RELATIVE: Final = frozenset("and as by for in of on that to which who whose with".split())
"""Words that follow a noun, and seldom the verb of a docstring."""
IRREGULAR: Final = frozenset(
    """
    ahead alike alive became began begun bitten bound broken brought built came chosen cut did
    done drawn due equal fed free full given gone held hidden kept known laid large left lent
    long lost made meant met open possible put read ready run said seen sent set shown small
    spent split spread taken thrown told went wide written wrote
    """.split()
)
"""Participles and adjectives without one of the endings -ed, -ing and -able."""
NAME: Final = re.compile(r"`|[!~]|.*[\d_/=+*<>\[\]{}|@^]|.*\w[A-Z]|[A-Z]$|[a-z]\w?$|-")
"""A name or a formula: in backticks, with capitals, digits or signs inside, or of a letter."""
PLURALS: Final = dict(
    word.split(":")
    for word in """
    axes:axis biases:bias buses:bus caches:cache children:child halves:half indices:index
    leaves:leaf lives:life matrices:matrix maxima:maximum minima:minimum processes:process
    statuses:status vertices:vertex
    """.split()
)
"""Plurals that no rule makes."""


class Docstring(NamedTuple):
    """The beginning of a docstring, and where it is."""

    path: str
    text: str
    is_function: bool


def docstrings(folder: str) -> Iterator[Docstring]:
    """Docstrings of all files below a folder, without parsing: seconds would go by."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        source = path.read_text("utf-8")
        for found in OPENING.finditer(source):
            head = source[: found.start()].rpartition("\n")[2].lstrip()
            text = " ".join(found[1].partition('"""')[0].split())
            shown = path.relative_to(ROOT).as_posix()
            yield Docstring(shown, text, head.startswith(("def ", "async def ", ")")))


@cache
def word_lists() -> dict[str, frozenset[str]]:
    """Ordinary nouns, and verbs that docstrings of functions begin with."""
    lists = tomllib.loads((ROOT / "tests/words.toml").read_text("utf-8"))
    return {name: frozenset(text.split()) for name, text in lists.items()}


@cache
def glossary_terms() -> frozenset[str]:
    """The terms of the glossary in the singular: what is in bold there."""
    text = (ROOT / "docs/glossary.md").read_text("utf-8")
    bold = [term for one in re.findall(r"\*\*(.+?)\.?\*\*", text) for term in one.split(", ")]
    return frozenset(" ".join(in_singular(term.lower().split())) for term in bold)


def singular(noun: str) -> str:
    """A noun without the ending of the plural."""
    for ending, other in (
        ("ies", "y"),
        ("sses", "ss"),
        ("ches", "ch"),
        ("xes", "x"),
        ("shes", "sh"),
    ):
        if noun not in PLURALS and noun.endswith(ending) and len(noun) > 4:
            return noun.removesuffix(ending) + other
    return PLURALS.get(noun) or re.sub(r"(?<![siu])(?<!ia)s$", "", noun)


def in_singular(phrase: list[str]) -> list[str]:
    """A noun phrase whose head, the last word, is in the singular."""
    return [*phrase[:-1], singular(phrase[-1])] if phrase else []


def is_verb(word: str) -> bool:
    """True for a verb in its plain form, or as said of one."""
    forms = (word, word.removesuffix("s"), word.removesuffix("es"), singular(word))
    return not word_lists()["verbs"].isdisjoint(forms)


def is_behind_nouns(word: str) -> bool:
    """True for verbs, and for participles and adjectives that may follow their noun."""
    return word in IRREGULAR or is_verb(word) or bool(re.search(r"(?:ed|ing|able)$", word))


def is_known(phrase: list[str]) -> bool:
    """True if the end of a noun phrase is a term or an ordinary word."""
    words = in_singular(phrase)
    tails = {" ".join(words[start:]) for start in range(len(words))}
    return not (tails.isdisjoint(glossary_terms()) and tails.isdisjoint(word_lists()["nouns"]))


def first_noun_phrase(text: str, is_function: bool = False) -> list[str]:
    """The words up to the head of the first noun phrase; none where a name or a pronoun stands.

    The verb of a function's docstring is passed over: of "Return the largest stride" it is the
    stride.
    """
    words = re.findall(r"`[^`]*`\S*|\S+", re.sub(r" ?\([^()]*\)", "", text))
    if not words or text[0] in "(!" or words[0][0].islower():
        return []
    if len(words[0]) > 1 and NAME.match(words[0].rstrip(",.:;")):
        return []
    first = words[0].rstrip(",.:;").lower()
    second = words[1].lower() if len(words) > 1 else "it"
    says = is_function and first in word_lists()["verbs"]
    if first in {"raise", "raises", "raised"}:
        return []
    says = says or (is_verb(first) and second in SMALL_WORDS | PRONOUNS)
    if says and not (second in RELATIVE and is_known([first])):
        words = words[1:]
    phrase: list[str] = []
    for number, word in enumerate(words):
        bare = word.rstrip(",.:;?!")
        lower = bare.lower().removesuffix("'s").rstrip("'")
        if lower in PRONOUNS:
            break
        if lower in ADJECTIVES:
            continue
        if lower in SMALL_WORDS or lower.endswith("ly"):
            if phrase:
                break
        elif NAME.match(bare) or (number and bare[:1].isupper()):
            return []
        else:
            phrase.append(lower)
        if bare != word and (phrase or word[-1] != ","):
            break
    while len(phrase) > 1 and not is_known(phrase) and is_behind_nouns(phrase[-1]):
        phrase.pop()
    return in_singular(phrase)
