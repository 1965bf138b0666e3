"""How often to say what comes again and again."""

from ruststream.quiet import Quiet


def test_the_first_ones_are_said_and_then_one_a_second_with_how_many_were_not():
    now = 0.0
    quiet = Quiet(lambda: now)
    assert [quiet.allow() for _ in range(12)] == [0] * 10 + [None] * 2
    now = 0.9
    assert quiet.allow() is None
    now = 1.5
    assert [quiet.allow(), quiet.allow()] == [3, None]
    now = 2.0
    assert quiet.allow() is None
    now = 3.0
    assert [quiet.allow() for _ in range(11)] == [2, *[0] * 9, None], "it was quiet for a second: a burst begins"
