"""Migration operation that creates an index of a large table while other sessions write to it."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState


class AddIndexAnew(AddIndexConcurrently):
    """An operation that creates an index without blocking writers, and can be repeated after a failure.

    A failed migration without a transaction leaves the indexes that it has created. One of them may be marked as
    invalid, and PostgreSQL never uses it. So this operation first drops an index of that name.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._ensure_not_in_transaction(schema_editor)
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(self.index.name)}")
        super().database_forwards(app_label, schema_editor, from_state, to_state)
