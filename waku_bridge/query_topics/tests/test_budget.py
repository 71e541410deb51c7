import pytest

from waku_bridge.query_topics.budget import CpuBudget


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_budget_begins_full_and_refills_up_to_its_maximum():
    clock = Clock()
    budget = CpuBudget(0.25, 2.0, clock)
    budget.spend(2.0)
    assert budget.left() == 0
    clock.now += 4
    assert budget.left() == 1.0
    clock.now += 400
    assert budget.left() == 2.0


def test_an_overdrawn_budget_refills_from_below_zero():
    clock = Clock()
    budget = CpuBudget(0.5, 1.0, clock)
    budget.spend(3.0)
    clock.now += 4
    assert budget.left() == 0
    clock.now += 1
    assert budget.left() == 0.5


def test_a_budget_without_a_refill_is_spent_once():
    clock = Clock()
    budget = CpuBudget(0, 1.0, clock)
    budget.spend(1.0)
    clock.now += 1000
    assert budget.left() == pytest.approx(0, abs=1e-5)
    budget.spend(1e-4)
    assert budget.left() < 0
