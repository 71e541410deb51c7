"""Low-water marks of the steps, for statements that count what waits: see `marks`."""

from django.db import models


class StepMark(models.Model):
    """No row that waits for a step is older than its mark, as the leader last found it, some minutes ago at most."""

    step = models.TextField(primary_key=True)  # the name of its class
    nothing_before = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.step} {self.nothing_before:%Y-%m-%d %H:%M:%S}"
