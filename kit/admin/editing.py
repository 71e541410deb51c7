"""Forms of rows that several people may edit, so that nobody overwrites what they have not seen."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

CHANGED_MEANWHILE = "Somebody changed this meanwhile, to: {now}. Nothing was saved. Load the page again."


class UnhurriedForm(forms.ModelForm):  # type: ignore[type-arg]  # only generic for the type checker
    """A form that sends along what each field showed.

    A field that the operator left as it was shown keeps its present value. To change a field whose value is no longer
    the one that was shown is an error.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            is_told = not self.is_bound or self.add_initial_prefix(name) in self.data
            field.show_hidden_initial = bool(self.instance.pk) and is_told and not field.widget.is_hidden

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
