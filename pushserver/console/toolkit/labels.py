"""Words as HTML: labels of states, and commands in sentences.

A label is the word of the state, as in code and tables, on the colour of its family. The word has the whole meaning,
and the colour only helps to find it. One table serves all apps, so that a word has the same colour on every page.
"""

from enum import StrEnum
from functools import lru_cache

from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe


class Family(StrEnum):
    """Groups of states with one colour. The values are class names of the style sheet `kit/console.css`."""

    GOOD = "good"  # as intended
    WAITING = "waiting"  # in progress: ends by itself, usually soon
    CAUTION = "doubt"  # bad or unknown, and nothing is lost
    BAD = "bad"  # something is lost, or somebody has to act
    QUIET = "quiet"  # over or out of use, without a fault


_WORDS = {
    Family.GOOD: """active answered confirmed delivered fine passed present processed registered revived running
        succeeded success""",
    Family.WAITING: "in_flight pending postponed published received pending_key waiting",
    Family.CAUTION: """ambiguous dead dead_token deviates disabled drained interrupted paused retrying token_died
        transient unconfirmed""",
    Family.BAD: """abandoned broken config expired failed internal_error missing payload tripped undeliverable
        unreachable wrong_token""",
    Family.QUIET: """coalesced dropped duplicate merged not_registered off refreshed refused settings_changed shortened
        suppressed token_changed unknown unregistered withdrawn""",
}
FAMILIES = {word: family for family, words in _WORDS.items() for word in words.split()}


@lru_cache(maxsize=256)
def label(word: str) -> SafeString:
    """Return a word on the colour of its family. A word that is not in the table has the family QUIET."""
    return format_html('<span class="state-word {}">{}</span>', FAMILIES.get(word, Family.QUIET), word)


def with_code(sentence: str) -> SafeString:
    """Return a sentence as HTML, with its commands and names of queues as code."""
    parts = enumerate(conditional_escape(sentence).split("`"))
    return mark_safe("".join(f"<code>{part}</code>" if number % 2 else part for number, part in parts))  # noqa: S308 - escaped
