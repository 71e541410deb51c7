"""Reference pages are made from the code: a page that says something else is out of date."""

from collections.abc import Callable
from pathlib import Path

import pytest

from notifications.gateways.gorush.rules import page as error_rules
from pushserver.config import page as settings
from pushserver.metrics import catalogue as metrics
from spark_reports.jobs.tables import EVENT_TABLES, REPORT_TABLES, Table
from spark_reports.tests.test_export import assert_documented

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"error-rules.md": error_rules.page, "metrics.md": metrics.page, "settings.md": settings.page}


@pytest.mark.parametrize(("name", "page"), PAGES.items(), ids=PAGES)
def test_a_reference_page_is_that_of_the_code(name: str, page: Callable[[], str]) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == page(), "`make reference` writes it again"


@pytest.mark.parametrize("table", [*EVENT_TABLES, *REPORT_TABLES], ids=lambda table: table.name)
def test_the_page_about_figures_has_each_column_of_a_table(table: Table) -> None:
    """Its formulas are those of recompute.sql, whose figures `spark_reports` compares with the reports."""
    assert_documented(table)
