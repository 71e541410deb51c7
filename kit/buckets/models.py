"""The table of the token buckets that all processes share (see `shared`)."""

from django.db import models

from kit.db.fields import BytesField


class SharedBucket(models.Model):
    """A bucket. Its times are seconds since 1970. A row whose times are past is a full bucket, and may be deleted.

    The table is not logged: after a crash of PostgreSQL all buckets are full, and a charge waits for no disk.
    """

    key = BytesField(primary_key=True)
    burst_full_at = models.FloatField()
    long_full_at = models.FloatField()

    def __str__(self) -> str:
        return f"Bucket {bytes(self.key).hex()[:16]}"
