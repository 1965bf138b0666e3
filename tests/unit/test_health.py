"""Health."""

import pytest

from ruststream.health import Health, SubscriptionHealth


def subscription(state):
    return SubscriptionHealth(name="n", stream="s", group="g", consumer="c", state=state)


@pytest.mark.parametrize(
    ("app", "states", "healthy"),
    [
        ("running", ["reading", "reading"], True),
        ("running", [], True),
        ("running", ["reading", "retrying"], False),
        ("running", ["failed"], False),
        ("stopping", ["reading"], False),
        ("stopped", [], False),
    ],
)
def test_healthy_is_making_progress(app, states, healthy):
    assert Health(app, [subscription(state) for state in states]).healthy is healthy
