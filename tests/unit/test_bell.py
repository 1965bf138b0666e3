"""The bell: what is drained at one ring reaches every listener, whatever one of them raises."""

import pytest

from ruststream._core import DONE, READY
from ruststream.loop import Bell


class Rings:
    """An engine that has these events for one ring."""

    def __init__(self, events):
        self.events = events

    def fileno(self):
        return 0

    def drain(self):
        return self.events


class Listening:
    def __init__(self, error=None):
        self.error, self.woken = error, 0

    def wake(self):
        self.woken += 1
        if self.error is not None:
            raise self.error


class Odd(BaseException):
    """Not an `Exception`."""


def ring(error):
    """Ring once for three listeners, the first of which raises, and an answer."""

    class Loop:
        def add_reader(self, *_):
            """Nothing is watched."""

    bell = Bell.__new__(Bell)
    bell.loop, bell._listeners, bell._answers = Loop(), {}, {}
    listeners = [Listening(error), Listening(), Listening()]
    bell.engine = Rings([(READY, number) for number in range(3)] + [(DONE, 1, None)])
    for number, listener in enumerate(listeners):
        bell.listen(number, listener)
    try:
        bell._rung()
    finally:
        assert [listener.woken for listener in listeners] == [1, 1, 1]


@pytest.mark.parametrize("error", [ValueError("no"), Odd("no")])
def test_an_error_of_one_listener_is_logged_and_the_others_are_told(error, caplog):
    ring(error)
    assert "was not dealt with" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_the_process_does_so_once_the_others_were_told(error):
    with pytest.raises(type(error)):
        ring(error)
