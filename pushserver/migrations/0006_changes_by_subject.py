from typing import Any, ClassVar

from django.db import migrations

# The log of changes belongs to Django, whose index over it is by account and by kind of row only.
BY_SUBJECT = "(content_type_id, object_id, id)"
BY_WORD = "USING gin (to_tsvector('simple'::regconfig, coalesce(change_message, '')))"


def _index(name: str, what: str) -> migrations.RunSQL:
    drop = f"DROP INDEX CONCURRENTLY IF EXISTS {name}"
    return migrations.RunSQL([drop, f"CREATE INDEX CONCURRENTLY {name} ON django_admin_log {what}"], drop)


class Migration(migrations.Migration):
    """Indexes of the log of changes: what was done to one row, and in which reasons a word stands."""

    atomic = False  # made while the log is written to

    dependencies: ClassVar[Any] = [
        ("pushserver", "0005_xmpp_traffic"),
        ("admin", "0003_logentry_add_action_flag_choices"),
    ]

    operations: ClassVar[Any] = [_index("log_entry_subject", BY_SUBJECT), _index("log_entry_word", BY_WORD)]
