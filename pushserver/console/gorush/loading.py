"""Loading of the error rules that come with the server into their table: after each migration, or by command."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction

from notifications.gateways.gorush.errors import SeedRule, seed_rules
from notifications.gateways.gorush.models import GatewayErrorRule


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of loading the file: the numbers of rules added, refreshed, removed, and kept as they were."""

    added: int
    refreshed: int
    removed: int
    kept: int  # because operators changed them


def load_seed(model: Any = GatewayErrorRule, seeds: Sequence[SeedRule] | None = None) -> Loaded:
    """Update the rows that follow the file. Rows of operators, and their changes, stay.

    ``model`` may also be the one of a migration, which may lack later columns. It is safe to run twice.
    """
    seeds = seed_rules() if seeds is None else seeds
    columns = {field.name for field in model._meta.get_fields()}  # noqa: SLF001 - the documented way
    wanted = {seed.key: {k: v for k, v in asdict(seed).items() if k in columns} for seed in seeds}
    with transaction.atomic():
        following = model.objects.filter(origin=GatewayErrorRule.Origin.SEED)
        removed, _ = following.exclude(seed_key__in=wanted).delete()
        rows = {row.seed_key: row for row in model.objects.select_for_update().exclude(seed_key=None)}
        return _write(model, wanted, rows, removed)


def _write(model: Any, wanted: dict[str, dict[str, Any]], rows: dict[str, Any], removed: int) -> Loaded:
    added = refreshed = 0
    for key, values in wanted.items():
        row = rows.get(key)
        if row is None:
            added += _add(model, key, values)
        elif row.origin == GatewayErrorRule.Origin.SEED and any(getattr(row, k) != v for k, v in values.items()):
            refreshed += model.objects.filter(pk=row.pk).update(**values)
    return Loaded(added, refreshed, removed, sum(row.origin != GatewayErrorRule.Origin.SEED for row in rows.values()))


def _add(model: Any, key: str, values: dict[str, Any]) -> int:
    """Add a rule of the file and return 1, or return 0 when an operator has a rule about the same error."""
    same = {name: values[name] for name in ("platform", "match", "text")}
    if model.objects.filter(**same).exists():
        return 0
    model.objects.create(seed_key=key, origin=GatewayErrorRule.Origin.SEED, **values)
    return 1
