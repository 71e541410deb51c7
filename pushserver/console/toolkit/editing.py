"""Forms of rows that several people may edit at once.

Rule: nobody overwrites a value that they have not seen, and the log of changes keeps every previous value.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib.admin.models import DELETION, LogEntry
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest

CHANGED_MEANWHILE = "Somebody else has changed this value to: {now}. Nothing was saved. Load the page again."


class OptimisticForm(forms.ModelForm):  # type: ignore[type-arg]  # only generic for the type checker
    """A form with optimistic locking: it also submits the value that each field showed when the page was loaded.

    A field that the operator did not edit keeps its present value. Editing a field whose value has changed since the
    page was loaded is an error.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            is_submitted = not self.is_bound or self.add_initial_prefix(name) in self.data
            field.show_hidden_initial = bool(self.instance.pk) and is_submitted and not field.widget.is_hidden

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        shown = [name for name, field in self.fields.items() if field.show_hidden_initial]
        for name in [name for name in shown if self._is_outdated(name)]:
            if self.has_changed():
                self.add_error(name, CHANGED_MEANWHILE.format(now=self[name].initial))
            else:
                cleaned[name] = self[name].initial
        return cleaned

    def _is_outdated(self, name: str) -> bool:
        field = self.fields[name]
        shown = field.hidden_widget().value_from_datadict(self.data, self.files, self.add_initial_prefix(name))
        try:
            return field.has_changed(field.to_python(shown), self[name].initial)
        except ValidationError:
            return True


class LoggedEdits:
    """Pages whose log entries contain the values of a row before it was changed or deleted."""

    # Names of the fields that people edit.
    edited: ClassVar[Sequence[str]] = ()

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:  # noqa: ARG002
        if add:
            return self.described(form.instance)
        changed = [f"{name}: {form.initial.get(name)!r} → {form.cleaned_data[name]!r}" for name in form.changed_data]
        return ", ".join(changed) or "nothing changed"

    def log_deletions(self, request: HttpRequest, queryset: Iterable[Model]) -> Any:
        """Write one log entry per row, with the values of the row."""
        return [
            LogEntry.objects.log_actions(request.user.pk or 0, [row], DELETION, self.described(row)) for row in queryset
        ]

    def described(self, row: Model) -> str:
        """Return the edited fields of a row with their values, as text."""
        return ", ".join(f"{name}: {getattr(row, name)!r}" for name in self.edited)
