"""Tests of the axis of a chart: grid lines have equal distances, round values, and different texts."""

import re

import pytest

from kit.admin.charts import Series, line_chart, ticks_up_to


def whole(value: float) -> str:
    return f"{value:,.0f}"


def percent(value: float) -> str:
    return f"{value * 100:.1f} %"


@pytest.mark.parametrize(
    ("highest", "show", "steps", "texts"),
    [
        (0, whole, 2, ["0", "1"]),
        (1, whole, 2, ["0", "1"]),
        (1, whole, 4, ["0", "1"]),
        (3, whole, 2, ["0", "2", "4"]),
        (5, whole, 4, ["0", "2", "4", "6"]),
        (10, whole, 4, ["0", "4", "8", "12"]),
        (640, whole, 2, ["0", "400", "800"]),
        (1000, whole, 4, ["0", "250", "500", "750", "1,000"]),
        (1, percent, 4, ["0.0 %", "25.0 %", "50.0 %", "75.0 %", "100.0 %"]),
        (0.003, percent, 4, ["0.0 %", "0.1 %", "0.2 %", "0.3 %"]),
    ],
)
def test_the_lines_of_an_axis_are_round(highest: float, show, steps: int, texts: list[str]) -> None:
    assert [show(tick) for tick in ticks_up_to(highest, show, steps)] == texts


def test_no_two_lines_of_an_axis_have_the_same_text() -> None:
    for tenths in range(2000):
        for steps in (2, 4):
            texts = [whole(tick) for tick in ticks_up_to(tenths / 10, whole, steps)]
            assert len(texts) == len(set(texts)) <= steps + 1
    chart = line_chart("Times", ["a", "b"], [Series("median", [0, 1])], lambda value: f"{value:.0f} ms")
    assert chart
    assert re.findall(r'class="tick"[^>]*>([^<]*)<', chart.svg) == ["0 ms", "1 ms"]
