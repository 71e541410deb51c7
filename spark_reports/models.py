"""Tables of the nightly reports, which the console shows, and of the runs that made them.

The columns of a report are made from its table in `jobs.tables`, which documents them. One transaction replaces the
rows of a day in all reports together: see `running.loading`.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.db import models
from django.db.models.functions import Now

from spark_reports.jobs import tables
from spark_reports.jobs.tables import Table, Type


class ReportRun(models.Model):
    """One run of export and jobs over a range of days, both ends included."""

    class State(models.TextChoices):
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"  # nothing of the run was published; `error` says why in one line

    class Step(models.TextChoices):
        EXPORT = "export"
        COMPUTE = "compute"
        PUBLISH = "publish"
        DONE = "done"

    from_day = models.DateField()
    to_day = models.DateField()
    state = models.TextField(choices=State.choices, default=State.RUNNING)
    step = models.TextField(choices=Step.choices, default=Step.EXPORT)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    # Saved at every step and at least once a minute while the process of the run lives.
    seen_at = models.DateTimeField()
    event_count = models.PositiveBigIntegerField(default=0)  # rows of the lake that were read
    result_count = models.PositiveBigIntegerField(default=0)  # rows of all reports
    finding_count = models.PositiveIntegerField(default=0)  # rows of DataQuality that are not ok
    export_seconds = models.FloatField(null=True)
    compute_seconds = models.FloatField(null=True)
    publish_seconds = models.FloatField(null=True)
    is_made_up = models.BooleanField(default=False, db_default=False)  # of a demonstration: see `PublishedDay`
    error = models.TextField(blank=True)
    log_excerpt = models.TextField(blank=True)  # the end of Spark's log

    class Meta:
        verbose_name = "report run"
        permissions: ClassVar = [("request_reportrun", "Can have reports made again")]

    def __str__(self) -> str:
        return f"Run {self.pk} for {self.from_day} to {self.to_day} ({self.state})"


class RequestedRun(models.Model):
    """A requested range of days that is not over. The log of changes has the operator and the reason."""

    from_day = models.DateField()
    to_day = models.DateField()
    replace = models.BooleanField()  # export days again that are in the lake already
    asked_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["from_day", "to_day"], name="one_request_per_range")]

    def __str__(self) -> str:
        return f"Reports of {self.from_day} to {self.to_day}"


class PublishedDay(models.Model):
    """A day whose reports are complete. A day without events has a row, too, so that it is no missing day.

    The reports of a demonstration are made up. All of them are removed when the first real day is published. So the
    days here are either all real or all made up.
    """

    day = models.DateField(primary_key=True)
    run = models.ForeignKey(ReportRun, null=True, on_delete=models.SET_NULL, db_index=False)
    event_count = models.PositiveBigIntegerField()
    published_at = models.DateTimeField()
    # The time at which the day last got other facts: that of their export, and then that of the first reports made of
    # them. Older reports that use the facts of the day are stale: see `nights`.
    renewed_at = models.DateTimeField(db_default=datetime(1970, 1, 1, tzinfo=UTC))
    # Lineage of the figures: see `lake.Day`. Empty in rows from before these columns existed.
    facts_digest = models.TextField(blank=True, default="", db_default="")
    code_version = models.TextField(blank=True, default="", db_default="")
    # Reports of another schema are not compared with. Rows from before this column have the fifth.
    schema_version = models.PositiveSmallIntegerField(db_default=5)
    is_made_up = models.BooleanField(default=False, db_default=False)
    # None while the day is to be mailed. A day that is not mailed has the time of its reports.
    mailed_at = models.DateTimeField(null=True, db_default=Now())

    def __str__(self) -> str:
        return f"Reports of {self.day}"


class PseudonymSeed(models.Model):
    """The random part of the key of a period's pseudonyms. Without the seed, that key cannot be made again."""

    period = models.TextField(primary_key=True)  # label of the period, such as 2026-11
    last_day = models.DateField()
    seed = models.BinaryField()

    def __str__(self) -> str:
        return f"Seed of {self.period}"


FIELDS: dict[Type, Callable[..., Any]] = {
    Type.DATE: models.DateField,
    Type.STRING: models.TextField,
    Type.INT: models.PositiveSmallIntegerField,
    Type.LONG: models.BigIntegerField,
    Type.DOUBLE: models.FloatField,
    Type.BOOLEAN: models.BooleanField,
}


class Report(models.Model):
    """The common part of all reports. ``table`` defines the columns of each."""

    table: ClassVar[Table]
    day = models.DateField()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} of {self.day}"


M = TypeVar("M", bound=Report)


def made_from(table: Table) -> Callable[[type[M]], type[M]]:
    """Return a decorator that gives a model the columns of a table."""

    def fill(model: type[M]) -> type[M]:
        model.table = table
        for column in table.columns:
            model.add_to_class(column.name, FIELDS[column.type](null=column.is_nullable))
        return model

    return fill


@made_from(tables.ERROR_RATES)
class ErrorRate(Report):
    class Meta:
        indexes: ClassVar = [models.Index(fields=["day", "hour"], name="error_rate_day")]


@made_from(tables.TOKEN_CHURN)
class TokenChurn(Report):
    class Meta:
        verbose_name_plural = "token churn"
        indexes: ClassVar = [models.Index(fields=["day"], name="token_churn_day")]


@made_from(tables.TOKEN_LIFETIME)
class TokenLifetime(Report):
    class Meta:
        indexes: ClassVar = [models.Index(fields=["day"], name="token_lifetime_day")]


@made_from(tables.LATENCY)
class Latency(Report):
    class Meta:
        verbose_name_plural = "latencies"
        indexes: ClassVar = [models.Index(fields=["day"], name="latency_day")]


@made_from(tables.FAILURE_SIGNATURES)
class FailureSignature(Report):
    class Meta:
        indexes: ClassVar = [models.Index(fields=["day"], name="failure_signature_day")]


@made_from(tables.LOAD_PROFILE)
class LoadProfile(Report):
    class Meta:
        indexes: ClassVar = [models.Index(fields=["day"], name="load_profile_day")]


@made_from(tables.HEAVY_ACTORS)
class HeavyActor(Report):
    class Meta:
        indexes: ClassVar = [models.Index(fields=["day"], name="heavy_actor_day")]


@made_from(tables.ANOMALIES)
class Anomaly(Report):
    class Meta:
        verbose_name_plural = "anomalies"
        indexes: ClassVar = [models.Index(fields=["day"], name="anomaly_day")]


@made_from(tables.DATA_QUALITY)
class DataQuality(Report):
    class Meta:
        verbose_name_plural = "data quality"
        indexes: ClassVar = [models.Index(fields=["day"], name="data_quality_day")]


REPORTS: dict[str, type[Report]] = {model.table.name: model for model in Report.__subclasses__()}
