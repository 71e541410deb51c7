"""Indexes of large tables, made while these are written to. For migrations of any app."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState


class AddIndexAnew(AddIndexConcurrently):
    """Can be run again. Without a transaction, a migration that failed leaves the indexes that it made before, and one
    that PostgreSQL calls invalid and never uses.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._ensure_not_in_transaction(schema_editor)
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(self.index.name)}")
        super().database_forwards(app_label, schema_editor, from_state, to_state)
