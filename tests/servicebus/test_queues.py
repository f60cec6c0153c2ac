"""The stand-in's queues behave as Service Bus documents: locks, delivery counts, dead letters, time to live."""

from random import Random

import pytest
from proton import Message

from tests.servicebus.queues import BrokerQueue, Faults

pytestmark = pytest.mark.requirement("Q3")


def a_queue(**faults: float) -> BrokerQueue:
    return BrokerQueue("q", lock_seconds=10, max_delivery_count=3, faults=Faults(**faults), random=Random(1))


def a_message(text: str = "x", ttl: float = 0) -> Message:
    return Message(body=text, ttl=ttl)


def test_a_locked_message_is_not_delivered_again_until_its_lock_expires():
    queue = a_queue()
    queue.put(a_message(), 0)

    first = queue.take(0)
    empty = queue.take(9)
    queue.expire_locks(10)
    second = queue.take(10)

    assert first is not None
    assert empty is None
    assert second is not None
    assert second[1].delivery_count == 1
    assert not queue.complete(first[0], 10), "the first lock is lost"
    assert queue.complete(second[0], 19)


def test_a_message_becomes_a_dead_letter_after_its_last_delivery():
    queue = a_queue()
    queue.put(a_message(), 0)

    for moment in range(3):
        taken = queue.take(moment)
        assert taken is not None
        queue.abandon(taken[0], moment)

    assert queue.take(5) is None
    assert queue.dead_letters is not None
    (letter,) = queue.dead_letters.waiting.values()
    assert letter.message.properties == {"DeadLetterReason": "MaxDeliveryCountExceeded"}


def test_an_expired_message_is_not_delivered():
    queue = a_queue()
    queue.put(a_message(ttl=5), 0)

    assert queue.take(6) is None
    assert queue.counters.expired == 1


def test_faults_drop_duplicate_delay_and_reorder_messages():
    queue = a_queue(drop=0.2, duplicate=0.2, delay=0.2, reorder=0.2)
    for number in range(500):
        queue.put(a_message(str(number)), 0)

    order = []
    while (taken := queue.take(0)) is not None:
        order.append(int(taken[1].message.body))
    late = len(queue.waiting)

    counters = queue.counters
    assert min(counters.dropped, counters.duplicated, counters.delayed, counters.reordered) > 50
    assert len(order) + late == 500 - counters.dropped + counters.duplicated
    assert order != sorted(order)
