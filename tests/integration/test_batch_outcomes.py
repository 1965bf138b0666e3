"""What becomes of each element of a batch: answers, failures, delays, dead letters, settling by hand."""

import asyncio

import pytest

from integration.batches import Job, add_jobs, errors, handled
from ruststream import BatchContext, Settle, ack, dead_letter, drop, leave, retry
from ruststream.errors import AlreadySettledError


@pytest.mark.parametrize("suspends", [False, True])
async def test_one_outcome_for_all_or_one_for_each(any_server, broker, stream, suspends):
    """None and ack() ack all; an outcome is that of all; a list, or a tuple, has one for each in the list's order."""
    answers = [None, ack(), drop(), [None, ack(), drop(), retry(), leave(), None], (drop(),) * 6]

    async def handle(jobs: list[Job]):
        if suspends:
            await asyncio.sleep(0)
        return answers.pop(0)

    ids = add_jobs(stream, *range(30))
    counts = await handled(broker, 30, handle, batch=6)

    assert [counts[name] for name in ("acked", "dropped", "retried", "left")] == [15, 13, 1, 1]
    assert stream.pending_ids() == ids[21:23]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([None], ["a list of 1 outcomes for 3 elements"]),
        ([None] * 4, ["a list of 4 outcomes for 3 elements"]),
        ([], ["a list of 0 outcomes for 3 elements"]),
        ([None, "drop", None], ["'drop' among the outcomes"]),
        ([None, retry, None], ["among the outcomes"]),
        ("acked", ["'acked'"]),
        (True, ["True"]),
        ({1: drop()}, ["drop()"]),
    ],
)
async def test_what_is_no_answer_keeps_every_entry(broker, stream, caplog, value, words):
    """A list of the wrong length, or with something else in it: nobody can tell whose outcome is whose."""

    async def handle(jobs: list[Job]):
        return value

    ids = add_jobs(stream, 1, 2, 3)
    counts = await handled(broker, 3, handle)

    [text] = errors(caplog)
    assert all(word in text for word in ["batch of 3 entries", ids[0], ids[-1], "Outcome of all: leave()", *words])
    assert (counts["left"], stream.pending_ids()) == (3, ids)


async def test_an_element_that_does_not_decode_is_settled_alone(any_server, broker, stream, caplog):
    """B014: the others go on as a batch without it, and it has the outcome of on_decode_error."""
    batches = []

    async def handle(jobs: list[Job], batch: BatchContext):
        batches.append([job.number for job in jobs])
        assert len(jobs) == len(batch) == len(batch.contexts)

    first = add_jobs(stream, 1)
    bad = [stream.add("{broken"), stream.add_fields({"colour": "red"})]
    stream.add_fields({"number": 2})
    add_jobs(stream, 3)
    counts = await handled(broker, 5, handle, on_decode_error=drop())

    assert batches == [[1, 2, 3]]
    assert (counts["acked"], counts["dropped"]) == (3, 2)
    assert [entry in text for entry, text in zip(bad, errors(caplog), strict=True)] == [True, True]
    assert first[0] not in "".join(errors(caplog))


async def test_a_batch_of_which_nothing_decodes_calls_nobody(broker, stream):
    """Each stays pending by default, and what comes after them is a batch as ever."""
    batches = []

    async def handle(jobs: list[Job]):
        batches.append(jobs)

    bad = [stream.add("{broken") for _ in range(7)]
    add_jobs(stream, 1)
    counts = await handled(broker, 8, handle, batch=3)

    assert batches == [[Job(1)]]
    assert (counts["left"], stream.pending_ids()) == (7, bad)


async def test_an_element_whose_key_cannot_be_computed_fails_alone(broker, stream, caplog):
    """What by_key raises is that element's failure, by on_error; the others are a batch."""
    batches = []

    def key_of(job: Job):
        return 100 // job.number

    async def handle(jobs: list[Job]):
        batches.append([job.number for job in jobs])

    ids = add_jobs(stream, 1, 0, 1)
    counts = await handled(broker, 3, handle, by_key=key_of, on_error={ZeroDivisionError: drop()})

    assert (batches, counts["acked"], counts["dropped"]) == ([[1, 1]], 2, 1)
    [text] = errors(caplog)
    assert ids[1] in text


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LookupError(), {"dropped": 3}),
        (ValueError(), {"left": 3}),
        (ExceptionGroup("two", [LookupError(), ConnectionError()]), {"retried": 3}),
        (Settle(retry()), {"retried": 3}),
        (asyncio.CancelledError(), {"left": 3}),
    ],
)
async def test_what_it_raises_is_the_failure_of_each_element(broker, stream, caplog, error, expected, suspends):
    """B015: on_error applies to each; the log has one line, which names the batch; the lane goes on."""
    raised = []

    async def handle(jobs: list[Job]):
        if suspends:
            await asyncio.sleep(0)
        if not raised:
            raised.append(error)
            raise error

    add_jobs(stream, *range(4))
    rules = {LookupError: drop(), ConnectionError: retry()}
    counts = await handled(broker, 4, handle, batch=3, on_error=rules)

    assert {name: counts[name] for name in expected} == expected
    assert counts["acked"] == 1
    assert len(errors(caplog)) == (0 if isinstance(error, Settle) else 1)


async def test_an_element_comes_back_after_the_delay_it_was_given(any_server, broker, stream):
    """Each element has a delay of its own, shorter than min_idle; the others do not wait for it."""
    seen = []

    async def handle(jobs: list[Job], batch: BatchContext):
        first = [ctx.delivery_count == 1 for ctx in batch.contexts]
        seen.extend((job.number, ctx.delivery_count) for job, ctx in zip(jobs, batch.contexts, strict=True))
        return [retry(after=job.number / 5) if job.number and new else None
                for job, new in zip(jobs, first, strict=True)]  # fmt: skip

    add_jobs(stream, 0, 1, 2)
    counts = await handled(broker, 5, handle, batch=3)

    assert seen == [(0, 1), (1, 1), (2, 1), (1, 2), (2, 2)]
    assert (counts["acked"], stream.pending_ids()) == (3, [])


async def test_elements_go_to_the_dead_letters_one_by_one(any_server, broker, stream):
    """One that does not decode, one that the handler gives up, and one by hand: each with its own reason."""

    async def handle(jobs: list[Job], batch: BatchContext):
        batch.settle(2, dead_letter("by hand"))
        return [None, dead_letter("refused"), None]

    add_jobs(stream, 1, 2)
    bad = stream.add("{broken")
    add_jobs(stream, 3)
    counts = await handled(broker, 4, handle, batch=4, dead_letter="s.dlq")

    letters = {fields[b"h:x-dead-letter-reason"]: fields for _, fields in stream.client.xrange("s.dlq")}
    assert (counts["acked"], stream.pending_ids(), len(letters)) == (1, [], 2)
    assert letters[b"decode-error"][b"h:x-dead-letter-entry-id"] == bad.encode()
    assert sorted(fields[b"_payload"] for _, fields in stream.client.xrange("s.dlq")) == [
        b'{"number":2}',
        b'{"number":3}',
        b"{broken",
    ]


async def test_a_failed_batch_goes_to_the_dead_letters_whole(broker, stream):
    """on_error: each element is a letter of its own, with the error of the call."""

    async def handle(jobs: list[Job]):
        raise LookupError("no such account")

    add_jobs(stream, 1, 2, 3)
    await handled(broker, 3, handle, batch=3, dead_letter="s.dlq", on_error=dead_letter("lookup"))

    letters = [fields for _, fields in stream.client.xrange("s.dlq")]
    assert [fields[b"_payload"] for fields in letters] == [b'{"number":1}', b'{"number":2}', b'{"number":3}']
    assert all(b"no such account" in fields[b"h:x-dead-letter-error"] for fields in letters)


async def test_elements_settled_by_hand_keep_their_outcome(broker, stream):
    """By index, also from the end, or by context; what the handler then says is for the others."""

    async def handle(jobs: list[Job], batch: BatchContext):
        batch.settle(0, drop())
        batch.settle(-1, retry())
        batch.settle(batch.contexts[1], drop())
        batch.contexts[2].settle(leave())
        with pytest.raises(AlreadySettledError):
            batch.settle(1, drop())
        await asyncio.sleep(0)
        assert not batch.settled

    ids = add_jobs(stream, *range(6))
    counts = await handled(broker, 6, handle, batch=6)

    assert [counts[name] for name in ("acked", "dropped", "retried", "left")] == [2, 2, 1, 1]
    assert stream.pending_ids() == [ids[2], ids[5]]


async def test_a_list_says_nothing_new_of_what_was_settled_by_hand(broker, stream, caplog):
    """None for it is fine; an outcome for it comes too late, and is said to."""

    async def handle(jobs: list[Job], batch: BatchContext):
        batch.settle(0, drop())
        batch.settle(1, drop())
        return [None, retry(), retry()]

    ids = add_jobs(stream, *range(3))
    counts = await handled(broker, 3, handle, batch=3)

    assert (counts["dropped"], counts["retried"]) == (2, 1)
    [text] = errors(caplog)
    assert "too late" in text
    assert ids[1] in text


async def test_an_outcome_of_another_entry_is_refused(broker, stream, caplog):
    """A context of an earlier batch, an index that there is not, something else: an error, and nothing is settled."""
    earlier = []

    async def handle(jobs: list[Job], batch: BatchContext):
        if not earlier:
            earlier.extend(batch.contexts)
            return leave()
        for which, error in [(earlier[0], ValueError), (3, IndexError), (-4, IndexError), (True, TypeError)]:
            with pytest.raises(error):
                batch.settle(which, drop())
        with pytest.raises(TypeError):
            batch.settle("0", drop())
        with pytest.raises(TypeError):
            batch.settle(0, "drop")
        with pytest.raises(AlreadySettledError):
            earlier[0].settle(drop())
        return None

    ids = add_jobs(stream, *range(6))
    counts = await handled(broker, 6, handle, batch=3)

    assert (counts["left"], counts["acked"], errors(caplog)) == (3, 3, [])
    assert stream.pending_ids() == ids[:3]
