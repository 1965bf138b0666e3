"""Where the return values of a subscription's handler go, and what they are on the wire."""

from __future__ import annotations

from dataclasses import dataclass

from ruststream.codec import Codec, type_name
from ruststream.errors import ConfigError
from ruststream.message import Reply, returned_classes, stream_of
from ruststream.option import name_text, yes_or_no
from ruststream.outcome import Outcome
from ruststream.signature import Signature
from ruststream.wire import Outgoing, outgoing_message


@dataclass(frozen=True, slots=True)
class Replies:
    """What becomes of the values that one subscription's handler returns."""

    codec: Codec
    """Encodes them."""
    stream: str | None
    """Where they go, unless a `Reply` says otherwise. None: where their class says."""
    wanted: bool
    """Whether a plain value is a reply. A `Reply` always is one."""
    known: frozenset[str]
    """The streams that are known to take replies before there are any."""

    def takes(self, value: object) -> bool:
        """Whether this is to be published: it is neither None nor an outcome."""
        return self.wanted or isinstance(value, Reply)

    def message(self, value: object) -> Outgoing:
        """Return the reply as it is sent.

        Raises:
            ConfigError: it has no stream, or an argument of the `Reply` is wrong.
            PublishError: it can't be encoded.
        """
        if not isinstance(value, Reply):
            return outgoing_message(value, self.stream, self.codec)
        return outgoing_message(
            value.value,
            self.stream if value.to is None else value.to,
            self.codec,
            key=value.key,
            headers=value.headers,
            content_type=value.content_type,
            maxlen=value.maxlen,
            minid=value.minid,
            approximate=value.approximate,
        )


class ReplyRule:
    """The options `reply_to` and `reply` of a subscriber, checked."""

    def __init__(self, reply_to: object, reply: object, signature: Signature) -> None:
        """Check the options against what the handler is annotated to return.

        Raises:
            ConfigError: not a stream's name, not True or False, or `reply=True` for a class that names no stream.
        """
        self._stream = None if reply_to is None else name_text(reply_to, "reply_to")
        self._wanted = self._stream is not None if reply is None else yes_or_no(reply, "reply")
        if self._stream is not None and not self._wanted:
            raise ConfigError("reply=False and reply_to= contradict each other: give one of them")
        classes = [cls for cls in returned_classes(signature.returns) if isinstance(cls, type) and _is_message(cls)]
        if self._wanted and self._stream is None:
            for cls in classes:
                if stream_of(cls) is None:
                    raise ConfigError(
                        f"handler {signature.name} is to reply with {type_name(cls)}, which names no stream: put "
                        f"@outgoing(stream) on the class, or give reply_to=stream"
                    )
        named = {stream for cls in classes if (stream := stream_of(cls)) is not None}
        self._of_classes = frozenset(named if self._wanted else ())

    def of(self, codec: Codec, prefix: str) -> Replies:
        """Return what becomes of return values on a broker.

        Args:
            codec: of the subscription.
            prefix: of its router.
        """
        if self._stream is None:
            return Replies(codec, None, self._wanted, self._of_classes)
        return Replies(codec, prefix + self._stream, self._wanted, frozenset({prefix + self._stream}))


def _is_message(cls: type) -> bool:
    """Whether values of the class are replies, and not outcomes, `Reply` or of a class that nobody told."""
    return not issubclass(cls, (Outcome, Reply, type(None))) and cls is not object
