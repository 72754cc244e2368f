"""Receipts of another cluster: how they are read, and how far a lane's entries are answered."""
import random

import numpy as np
import pytest

from geminga.proto import frames as wire
from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.replication.frames import whole_frames
from geminga.workers.replication.receipts import NeverSent, Unanswered, receipts

T = api.BaseCommand.Type
MINUS_ONE = (1 << 64) - 1


def numbers(*values):
    return np.array(values, np.uint64)


def receipt(producer, ledger, entry):
    command = api.BaseCommand(type=T.SEND_RECEIPT)
    command.send_receipt.producer_id, command.send_receipt.sequence_id = producer, ledger
    command.send_receipt.highest_sequence_id = entry
    command.send_receipt.message_id.ledgerId = command.send_receipt.message_id.entryId = MINUS_ONE
    return wire.frame(command)


@pytest.mark.parametrize("count", [1, 12, 13, 500])
def test_receipts_are_read_in_order_whatever_numbers_they_hold(count):
    dice = random.Random(count)
    told = [(dice.choice([1, 1, 2, 900]), dice.choice([0, 7, 300]), dice.choice([0, 5, 1 << 33, MINUS_ONE]))
            for _ in range(count)]
    stream = b"".join(receipt(*one) for one in told)
    data = np.frombuffer(stream + bytes(64), np.uint8)
    starts, ends, _ = whole_frames(data, 0, len(stream), 1 << 20)
    assert [(some.producer_id, ledger, entry) for some in receipts(data, starts, ends)
            for ledger, entry in zip(some.ledgers.tolist(), some.entries.tolist(), strict=True)] == told


@pytest.mark.parametrize("seed", range(20))
def test_receipts_of_one_form_are_what_each_of_them_says(seed):
    """Stretches of receipts with one layout, some of which lack a number, are read as one by one."""
    dice, told, frames = random.Random(seed), [], []
    for _ in range(dice.choice([1, 2, 6])):
        producers, ledger, first = dice.choice([[1], [1, 2], [300]]), dice.choice([7, 1 << 36]), dice.randrange(1 << 40)
        for number in range(dice.choice([1, 20, 200])):
            told.append((dice.choice(producers), ledger, first + number))
            frames.append(receipt(*told[-1]))
        if dice.random() < 0.5:
            told.append((5, 6, 0))
            send_receipt = api.CommandSendReceipt(producer_id=5, sequence_id=6)
            frames.append(wire.frame(api.BaseCommand(type=T.SEND_RECEIPT, send_receipt=send_receipt)))
    stream = b"".join(frames)
    data = np.frombuffer(stream + bytes(64), np.uint8)
    starts, ends, _ = whole_frames(data, 0, len(stream), 1 << 20)
    assert [(some.producer_id, ledger, entry) for some in receipts(data, starts, ends)
            for ledger, entry in zip(some.ledgers.tolist(), some.entries.tolist(), strict=True)] == told


def filled(*stretches):
    made = Unanswered()
    for ledger, first, mask in stretches:
        is_sent = np.array(mask, bool)
        made.add(ledger, np.arange(first, first + len(mask), dtype=np.uint64), is_sent, len(mask))
    return made


def test_the_position_reached_follows_receipts_and_entries_that_need_none():
    made = filled((1, 0, [1, 1, 0]), (1, 3, [0, 0]), (2, 0, [1]))
    assert (made.count, made.take_reached(), made.first()) == (3, None, (1, 0))
    made.answered(numbers(1), numbers(0))
    assert (made.take_reached(), made.returned) == ((1, 0), 0)
    made.answered(numbers(1), numbers(1))
    assert (made.take_reached(), made.returned, made.first()) == ((1, 4), 5, (2, 0))
    made.answered(numbers(2), numbers(0))
    assert (made.take_reached(), made.count, made.first()) == ((2, 0), 0, None)
    assert made.take_reached() is None


def test_entries_that_need_no_receipt_wait_for_those_before_them():
    made = filled((1, 0, [1]), (1, 1, [0]))
    assert made.take_reached() is None
    made.answered(numbers(1), numbers(0))
    assert made.take_reached() == (1, 1)
    assert filled((1, 0, [0, 0])).take_reached() == (1, 1)


def test_nothing_is_reached_behind_a_hole():
    made = filled((1, 0, [1] * 6))
    made.answered(numbers(1, 1, 1), numbers(2, 3, 1))
    assert (made.take_reached(), made.count) == (None, 3)
    made.answered(numbers(1), numbers(0))
    assert made.take_reached() == (1, 3)
    made.answered(numbers(1, 1), numbers(5, 4))
    assert (made.take_reached(), made.returned) == ((1, 5), 6)


@pytest.mark.parametrize("ledger, entry", [(1, 9), (3, 0), (1, 0), (1, 1), (1, MINUS_ONE)])
def test_a_receipt_for_what_was_not_sent_is_a_lie(ledger, entry):
    """Also a second receipt (1:0), and one for an entry that was left out (1:1)."""
    made = filled((1, 0, [1, 0, 1]))
    made.answered(numbers(1), numbers(0))
    with pytest.raises(NeverSent):
        made.answered(numbers(ledger), numbers(entry))


def test_receipts_of_markers_name_their_positions_too():
    made = filled((1, 0, [1, 1, 1]), (300, 5, [1]))
    marker = 1 << 63
    made.answered(numbers(1, 1 << 23 | 1, 1), numbers(0, marker, 2))
    assert made.take_reached() == (1, 2)
    made.answered(numbers(300 << 23 | 5), numbers(marker))
    assert (made.take_reached(), made.count) == ((300, 5), 0)
    with pytest.raises(NeverSent):
        made.answered(numbers(300 << 23 | 5), numbers(marker))


def test_a_second_receipt_behind_a_hole_is_a_lie():
    made = filled((1, 0, [1, 1, 1]))
    made.answered(numbers(1), numbers(2))
    with pytest.raises(NeverSent):
        made.answered(numbers(1), numbers(2))


def test_receipts_without_positions_count_in_order():
    made = filled((1, 0, [1, 0, 1]), (2, 0, [1, 1]))
    made.answered_next(1)
    assert made.take_reached() == (1, 0)
    made.answered_next(2)
    assert (made.take_reached(), made.count) == ((2, 0), 1)
    with pytest.raises(NeverSent):
        made.answered_next(2)


def test_any_order_of_receipts_reaches_the_same_as_one_by_one():
    for seed in range(30):
        dice = random.Random(seed)
        made = filled(*((ledger, 0, [dice.random() < 0.7 for _ in range(dice.randrange(1, 20))])
                        for ledger in range(1, 6)))
        sent = [(stretch.ledger_id, entry) for stretch in made._stretches for entry in stretch.entries.tolist()]
        dice.shuffle(sent)
        open_ones = set(sent)
        while sent:
            some = [sent.pop() for _ in range(min(len(sent), dice.randrange(1, 9)))]
            open_ones -= set(some)
            made.answered(numbers(*(ledger for ledger, _ in some)), numbers(*(entry for _, entry in some)))
            reached = made.take_reached()
            assert made.first() == (min(open_ones) if open_ones else None)
            assert reached is None or not open_ones or reached < min(open_ones)
        assert made.count == 0
