"""The table of what would end at once, and waits until somebody says that it is right: see `asking`."""

from django.db import models


class MassExpiry(models.Model):
    """So many rows of ``total`` would end. They do for a day after somebody allowed it."""

    name = models.TextField(primary_key=True)  # of what ends, such as "registrations"
    count = models.BigIntegerField()
    total = models.BigIntegerField()
    found_at = models.DateTimeField()
    allowed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.count} of {self.total} {self.name}"
