"""Indexes of large tables that are made while rows are written to them, for migrations of any app."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState


class AddIndexAnew(AddIndexConcurrently):
    """An operation that makes an index without blocking writers, and can be run again.

    A migration without a transaction that failed leaves behind the indexes that it had made, and one that PostgreSQL
    calls invalid and never uses. So an index of that name is dropped first.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._ensure_not_in_transaction(schema_editor)
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(self.index.name)}")
        super().database_forwards(app_label, schema_editor, from_state, to_state)
