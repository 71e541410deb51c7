"""Tables of the nightly reports, which the console shows, and of the runs that made them.

Every report table has the columns of its table in `jobs.tables`, which documents them. A test compares the two. One
transaction replaces the rows of a day in all reports together: see `running.loading`.
"""

from datetime import UTC, datetime
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now


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
    # Lineage of the figures: see `lake.Manifest`. Empty in rows from before these columns existed.
    facts_digest = models.TextField(blank=True, default="", db_default="")
    code_version = models.TextField(blank=True, default="", db_default="")
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


class Report(models.Model):
    """The common part of all report tables. Their columns are those in `jobs/tables.py`."""

    day = models.DateField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} of {self.day}"


class ErrorRate(Report):
    hour = models.PositiveSmallIntegerField(null=True)
    stage = models.TextField()
    platform = models.TextField()
    app_topic = models.TextField(blank=True)
    bridge = models.TextField()
    outcome = models.TextField()
    code = models.TextField(blank=True)
    is_failure = models.BooleanField()
    events = models.BigIntegerField()
    total = models.BigIntegerField()
    rate = models.FloatField()
    rate_low = models.FloatField()
    rate_high = models.FloatField()
    usual_rate = models.FloatField(null=True)
    change = models.FloatField(null=True)
    z_score = models.FloatField(null=True)
    usual_days = models.PositiveSmallIntegerField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["day", "hour"], name="error_rate_day")]


class TokenChurn(Report):
    platform = models.TextField()
    app_topic = models.TextField(blank=True)
    bridge = models.TextField()
    active_at_start = models.BigIntegerField()
    new = models.BigIntegerField()
    returned = models.BigIntegerField()
    moved_in = models.BigIntegerField()
    refreshed = models.BigIntegerField()
    token_changed = models.BigIntegerField()
    unregistered = models.BigIntegerField()
    died = models.BigIntegerField()
    expired = models.BigIntegerField()
    moved_out = models.BigIntegerField()
    active_at_end = models.BigIntegerField()
    unexplained = models.BigIntegerField()
    churn_rate = models.FloatField(null=True)
    net_growth = models.BigIntegerField()

    class Meta:
        verbose_name_plural = "token churn"
        indexes: ClassVar = [models.Index(fields=["day"], name="token_churn_day")]


class TokenLifetime(Report):
    platform = models.TextField()
    app_topic = models.TextField(blank=True)
    bridge = models.TextField()
    cohort = models.DateField()
    age_weeks = models.PositiveSmallIntegerField()
    tokens = models.BigIntegerField()
    at_risk = models.BigIntegerField()
    ended = models.BigIntegerField()
    survival = models.FloatField()
    survival_low = models.FloatField()
    survival_high = models.FloatField()
    is_complete = models.BooleanField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["day"], name="token_lifetime_day")]


class Latency(Report):
    stage = models.TextField()
    platform = models.TextField()
    bridge = models.TextField()
    events = models.BigIntegerField()
    p50_ms = models.FloatField()
    p90_ms = models.FloatField()
    p95_ms = models.FloatField()
    p99_ms = models.FloatField()
    max_us = models.BigIntegerField()
    within_deadline = models.FloatField(null=True)

    class Meta:
        verbose_name_plural = "latencies"
        indexes: ClassVar = [models.Index(fields=["day"], name="latency_day")]


class FailureSignature(Report):
    source = models.TextField()
    platform = models.TextField()
    signature = models.TextField(blank=True)
    events = models.BigIntegerField()
    usual_events = models.FloatField(null=True)
    is_new = models.BooleanField()
    is_rising = models.BooleanField()
    first_seen_on = models.DateField()
    last_seen_on = models.DateField()
    usual_days = models.PositiveSmallIntegerField()
    known_days = models.PositiveSmallIntegerField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["day"], name="failure_signature_day")]


class LoadProfile(Report):
    role = models.TextField()
    actors = models.BigIntegerField()
    notifications = models.BigIntegerField()
    top_actors = models.BigIntegerField()
    top_share = models.FloatField()
    tried = models.BigIntegerField()
    attempts = models.BigIntegerField()
    retry_amplification = models.FloatField(null=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["day"], name="load_profile_day")]


class HeavyActor(Report):
    role = models.TextField()
    rank = models.PositiveSmallIntegerField()
    actor = models.TextField()
    notifications = models.BigIntegerField()
    attempts = models.BigIntegerField()
    refused = models.BigIntegerField()
    share = models.FloatField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["day"], name="heavy_actor_day")]


class Anomaly(Report):
    figure = models.TextField()
    stage = models.TextField()
    platform = models.TextField()
    app_topic = models.TextField(blank=True)
    bridge = models.TextField()
    events = models.BigIntegerField()
    total = models.BigIntegerField()
    value = models.FloatField()
    usual = models.FloatField()
    band_low = models.FloatField()
    band_high = models.FloatField()
    z_score = models.FloatField()
    usual_days = models.PositiveSmallIntegerField()

    class Meta:
        verbose_name_plural = "anomalies"
        indexes: ClassVar = [models.Index(fields=["day"], name="anomaly_day")]


class DataQuality(Report):
    check_name = models.TextField()
    subject = models.TextField()
    is_ok = models.BooleanField()
    expected = models.BigIntegerField()
    found = models.BigIntegerField()

    class Meta:
        verbose_name_plural = "data quality"
        indexes: ClassVar = [models.Index(fields=["day"], name="data_quality_day")]
