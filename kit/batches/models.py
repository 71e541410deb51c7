"""The table of the low-water marks of steps (see `looking.since`), for statements that count waiting rows."""

from django.db import models


class StepMark(models.Model):
    """The mark of one step, as the leader last found it."""

    step = models.TextField(primary_key=True)  # name of the step's class
    nothing_before = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.step} {self.nothing_before:%Y-%m-%d %H:%M:%S}"
