"""The table of mass expiries that wait for the permission of an operator (see `asking`)."""

from django.db import models


class MassExpiry(models.Model):
    """A run that would expire ``count`` of ``total`` rows. For a day after ``allowed_at``, runs may do so."""

    name = models.TextField(primary_key=True)  # of the rows, such as "registrations"
    count = models.BigIntegerField()
    total = models.BigIntegerField()
    found_at = models.DateTimeField()
    allowed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.count} of {self.total} {self.name}"
