"""Tests of an app as it ships: its brokers on servers within the process, by a clock that stands still."""

from ruststream.errors import NotQuiescentError
from ruststream.testing.record import Call, SubscriberRecord
from ruststream.testing.testapp import TestApp
from ruststream.testing.view import Entry, PendingEntry, StreamView

__all__ = ["Call", "Entry", "NotQuiescentError", "PendingEntry", "StreamView", "SubscriberRecord", "TestApp"]
