"""What the console remembers of its own use."""

from typing import ClassVar

from django.conf import settings
from django.db import models


class OpenedRecord(models.Model):
    """Somebody of the staff opened the page of a row. Kept as text: the row may be gone by the time it is asked for."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, db_index=False)
    username = models.TextField()
    page = models.TextField()  # the name of the table
    object_id = models.TextField()  # as in the URL: a number or the digits of a hash
    at = models.DateTimeField(db_index=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["page", "object_id"], name="opened_record_row")]

    def __str__(self) -> str:
        return f"{self.username}: {self.page} {self.object_id[:16]}"
