"""The timeout of handlers, with a clock that the test moves."""

import logging

import pytest

from ruststream.errors import HandlerTimeoutError, RustStreamError
from ruststream.timeouts import Timeout


class Clock:
    """The core, as a timeout sees it."""

    def __init__(self):
        self.time = 100.0
        self.alarms = []

    def now(self):
        return self.time

    def alarm(self, after):
        self.alarms.append(self.time + after)

    def ring(self, timeout, runs):
        """Go to the next alarm."""
        self.time = self.alarms.pop(0)
        timeout.rung(runs)


class Run:
    def __init__(self, name):
        self.name = name
        self.waits = False
        self.due, self.overran, self.expired = 0.0, 0, []

    def where(self):
        return self.name

    def expire(self):
        self.expired.append(self.name)

    def begin(self, timeout):
        self.waits = True
        timeout.begin(self)


@pytest.fixture
def clock():
    return Clock()


def test_one_alarm_serves_all_and_none_is_left_when_nothing_runs(clock):
    timeout = Timeout(clock, 10, cancels=True)
    runs = [Run("a"), Run("b"), Run("c")]
    for run in runs:
        run.begin(timeout)
        clock.time += 1
    assert clock.alarms == [110]
    runs[0].waits = False
    clock.ring(timeout, runs)
    assert clock.alarms == [111]
    runs[1].waits = runs[2].waits = False
    clock.ring(timeout, runs)
    assert clock.alarms == []
    assert [run.expired for run in runs] == [[], [], []]


def test_what_is_due_is_cancelled_once_and_named_if_it_goes_on(clock, caplog):
    timeout = Timeout(clock, 10, cancels=True)
    slow, quick = Run("slow"), Run("quick")
    slow.begin(timeout)
    clock.time += 4
    quick.begin(timeout)
    clock.ring(timeout, [slow, quick])
    assert (slow.expired, quick.expired, clock.alarms) == (["slow"], [], [114])
    assert timeout.ended(slow)
    assert not timeout.ended(quick)
    quick.waits = False
    clock.ring(timeout, [slow, quick])
    assert (clock.alarms, caplog.records) == ([120], [])
    clock.ring(timeout, [slow, quick])
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "slow" in record.getMessage()
    assert (slow.expired, clock.alarms) == (["slow"], []), "said once, and not waited for any more"


def test_what_starts_after_an_expiry_does_not_wait_for_its_patience(clock):
    """The alarm that watches whether a cancelled handler ends rings later than the next handler is due."""
    timeout = Timeout(clock, 0.1, cancels=True)
    run = Run("run")
    run.begin(timeout)
    for number in range(1, 4):
        clock.alarms.sort()
        clock.ring(timeout, [run])
        assert len(run.expired) == number
        run.begin(timeout)
    assert min(clock.alarms) == pytest.approx(100.4)
    run.waits = False
    while clock.alarms:
        clock.alarms.sort()
        clock.ring(timeout, [run])
    assert len(run.expired) == 3


def test_an_alarm_that_rings_a_little_early_is_no_reason_to_wait_for_ever(clock):
    timeout = Timeout(clock, 10, cancels=True)
    run = Run("run")
    run.begin(timeout)
    clock.alarms = [109.9999]
    clock.ring(timeout, [run])
    assert run.expired == ["run"]
    run.waits = False
    other = Run("other")
    other.begin(timeout)
    clock.alarms = [115.0]
    clock.ring(timeout, [run, other])
    assert (other.expired, clock.alarms) == ([], []), "the one that was asked for is still to come"


def test_a_handler_in_a_thread_is_named_once_and_never_cancelled(clock, caplog):
    timeout = Timeout(clock, 10, cancels=False)
    run = Run("threaded")
    run.begin(timeout)
    clock.ring(timeout, [run])
    assert (run.expired, clock.alarms, timeout.ended(run)) == ([], [], False)
    [record] = caplog.records
    assert (record.levelno, "can't be cancelled" in record.getMessage()) == (logging.WARNING, True)
    run.begin(timeout)
    assert clock.alarms == [120]


def test_alarms_keep_their_distance(clock):
    timeout = Timeout(clock, 10, cancels=True)
    runs = [Run(str(number)) for number in range(100)]
    for run in runs:
        run.begin(timeout)
        clock.time += 0.0001
    clock.ring(timeout, runs)
    assert clock.alarms == [pytest.approx(110.1)]
    clock.ring(timeout, runs)
    assert all(run.expired for run in runs)


def test_the_error_is_a_timeout_error_of_the_package():
    cause = ValueError()
    error = Timeout(Clock(), 1.5, cancels=True).error(cause)
    assert isinstance(error, HandlerTimeoutError)
    assert isinstance(error, TimeoutError)
    assert isinstance(error, RustStreamError)
    assert (error.timeout, error.__cause__, "1.5 s" in str(error)) == (1.5, cause, True)
