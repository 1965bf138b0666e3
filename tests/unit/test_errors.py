"""The exception tree."""

import pickle

import pytest

from ruststream import errors

NAMES = {
    "AlreadySettledError", "ConfigError", "ConnectError", "DecodeError", "ForkError", "HandlerTimeoutError",
    "LeaseLostError", "NotQuiescentError", "PublishError",
    "PublishUncertainError", "RustStreamError", "ServerTooOldError", "ShutDownError", "SubscribeError",
    "TransactionError",
}  # fmt: skip


def classes():
    return {name: value for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}


def test_the_tree_has_these_classes_and_no_others():
    assert set(classes()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_is_made_of_a_message_alone_and_is_ours(name):
    error = classes()[name]("what to change")
    assert str(error) == "what to change"
    assert isinstance(error, errors.RustStreamError)


def test_builtins_that_fit_are_bases():
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.ConnectError, ConnectionError)


def test_an_uncertain_publish_is_not_taken_for_a_refused_one():
    assert not issubclass(errors.PublishUncertainError, errors.PublishError)


def test_a_server_that_is_too_old_is_named_with_both_versions():
    error = errors.ServerTooOldError("text", subscription="post_payment", required="8.4.0", actual="7.0.15")
    assert (error.subscription, error.required, error.actual) == ("post_payment", "8.4.0", "7.0.15")
    assert errors.ServerTooOldError("text").actual is None


def test_a_decode_error_carries_where_the_entry_is():
    error = errors.DecodeError("text", stream="s", group="g", entry_id="1-0", handler="h")
    assert (error.stream, error.group, error.entry_id, error.handler) == ("s", "g", "1-0", "h")


def test_errors_survive_pickling():
    error = pickle.loads(pickle.dumps(errors.ServerTooOldError("text", required="8.4.0")))
    assert (str(error), error.required) == ("text", "8.4.0")
