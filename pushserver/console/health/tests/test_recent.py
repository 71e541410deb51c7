"""Tests of a value that is kept for some seconds: it is computed once for all threads."""

from threading import Event, Thread

import pytest

from pushserver.console.health.recent import Recent


def test_a_value_is_computed_again_when_it_is_old_or_forgotten() -> None:
    seconds = [60.0]
    values = iter("abc")
    recent = Recent(lambda: next(values), lambda: seconds[0])
    assert [recent.get(), recent.get()] == ["a", "a"]
    seconds[0] = 0
    assert recent.get() == "b"
    seconds[0] = 60
    recent.forget()
    assert [recent.get(), recent.get()] == ["c", "c"]


def test_the_last_value_is_returned_while_another_thread_computes_a_new_one() -> None:
    asked, may_answer = Event(), Event()

    def find() -> int:
        if found:
            asked.set()
            assert may_answer.wait(10)
        found.append(None)
        return len(found)

    found: list[None] = []
    recent = Recent(find, lambda: 0)
    assert recent.get() == 1
    thread = Thread(target=recent.get)
    thread.start()
    assert asked.wait(10)
    assert recent.get() == 1
    may_answer.set()
    thread.join(10)
    assert len(found) == 2


def test_a_computation_that_failed_is_repeated() -> None:
    answers = [ValueError(), 7]

    def find() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    recent = Recent(find, lambda: 60)
    with pytest.raises(ValueError):  # noqa: PT011 - the only one there is
        recent.get()
    assert recent.get() == 7
