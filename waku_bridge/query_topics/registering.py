"""Changes to the query topics: those of newly registered key hashes are added, and those of erased users removed.

Both are stored and announced in the caller's transaction.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from django.db import transaction

from kit.db.statements import write
from registrations import lookup
from registrations.models import TopicKey
from waku_bridge.codec import topics

CHANNEL = "query_topics"
GONE_CHANNEL = "query_topics_gone"
# PostgreSQL takes less than 8 000 bytes per notification, and a topic takes up to ten digits and a comma.
TOPICS_PER_NOTICE = 700


def listen_to(public_key_hashes: Iterable[bytes], *, now: datetime) -> None:
    """Add the query topics of these key hashes (64 bytes each). The commit announces new ones to the bridges.

    Most registrations are refreshes: their topics are in the table, and are not announced again.
    """
    names = {topics.query_name(public_key_hash) for public_key_hash in public_key_hashes}
    if names and (new := lookup.add_topics({name: _number(name) for name in names}, now=now)):
        _announce(CHANNEL, list(_notices([str(topic) for topic in new])))


def _number(name: str) -> int:
    return int.from_bytes(topics.topic(name))


def _announce(channel: str, notices: Sequence[str]) -> None:
    write("SELECT pg_notify(%s, notice) FROM unnest(%s::text[]) AS notice", [channel, list(notices)])


def _notices(new: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(new), TOPICS_PER_NOTICE):
        yield ",".join(new[start : start + TOPICS_PER_NOTICE])


def stop_listening_to(name: str) -> None:
    """Remove a name. The commit announces the removal to the bridges.

    Its topic may belong to another user, too, so a bridge checks the table before it drops the topic.
    """
    TopicKey.objects.filter(name=name).delete()
    _announce(GONE_CHANNEL, [str(_number(name))])


def stop_listening_to_nobody() -> Iterator[int]:
    """Remove the names of keys without any registration. Yield how many each step removed."""
    for names in lookup.names_without_registration():
        yield _remove(names) if names else 0


@transaction.atomic
def _remove(names: Sequence[str]) -> int:
    removed = lookup.remove_topics(names)
    _announce(GONE_CHANNEL, [str(topic) for topic in removed])
    return len(removed)


def read_notice(notice: str) -> list[int]:
    """Return the topics in a notice."""
    return [int(topic) for topic in notice.split(",")]
