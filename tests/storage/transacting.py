"""Acknowledgements in transactions, without a coordinator: a test adds subscriptions, and ends transactions, itself.

    open_for(rig, FIRST)                        as ADD_SUBSCRIPTION_TO_TXN does
    answer(rig, consumer, FIRST, position)      an ACK in the transaction: its error, or None
    end(rig, FIRST, commits=True)               as COMMIT does; returns the deliveries that follow
"""
from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.ledgers import journal_ops
from geminga.storage.transactions import pending

from .transactional import TransactionalRig

T = api.BaseCommand.Type
FIRST, SECOND = names.transaction(0, 7), names.transaction(1, 8)
TOPIC = "t"


def subscription_of(rig, name="sub", durable=True):
    return rig.partition(TOPIC).subscriptions[name, durable]


def open_for(rig, *transactions, subscription="sub"):
    """Add a subscription to transactions."""
    partition = rig.partition(TOPIC)
    for transaction in transactions:
        partition.with_transactions().added.setdefault(transaction, set()).add(
            subscription_of(rig, subscription).cursor.subscription_id)


def ack(rig, consumer, transaction, *positions, cumulative=False, request_id=1, **fields):
    """Return a section of an ACK in a transaction.  positions: (ledger, entry), or (ledger, entry, words)."""
    most, least = names.transaction_bits(transaction)
    ids = [api.MessageIdData(ledgerId=ledger_id, entryId=entry_id, ack_set=words[0] if words else [])
           for ledger_id, entry_id, *words in positions]
    if request_id is not None:
        fields["request_id"] = request_id
    kind = api.CommandAck.Cumulative if cumulative else api.CommandAck.Individual
    return rig.command("ack", connection=consumer.connection, consumer_id=consumer.object_id, ack_type=kind,
                       message_id=ids, txnid_most_bits=most, txnid_least_bits=least, **fields)


def answer(rig, consumer, transaction, *positions, **fields):
    """Acknowledge in a transaction; return the answer's error, None for a success.

    Where no coordinator is played, one that is asked knows no such transaction.
    """
    answers = rig.run(ack(rig, consumer, transaction, *positions, **fields))
    if isinstance(rig, TransactionalRig) and not answers.commands(T.ACK_RESPONSE):
        subscription = rig.owner.clients.consumers.by_handle[consumer.number].subscription
        answers, _ = rig.pass_of(rig.owner.held_acks.answered, transaction, rig.partition(TOPIC).partition_id,
                                 subscription.cursor.subscription_id)
    [command] = answers.commands(T.ACK_RESPONSE)
    rig.partition(TOPIC).check()
    response = command.ackResponse
    assert (response.consumer_id, response.request_id) == (consumer.object_id, 1)
    return response.error if response.HasField("error") else None


def end(rig, *transactions, commits):
    """Commit or abort transactions as a coordinator has it done; return the answers of the pass."""
    partition = rig.partition(TOPIC)
    pending.end(rig.owner.decisions, partition, list(transactions), commits=commits)
    for transaction in transactions:
        partition.transactions.end(transaction, commits=commits)
        rig.owner.decisions.note(partition, journal_ops.transaction_ended(transaction, partition.partition_id))
    rig.owner.decisions.answer_needs_sync()
    answers = rig.run()
    partition.check()
    return answers


def given(rig, answers, consumer):
    """Return [(position, redeliveries, bits of its messages or 0)] that a consumer got."""
    return [(position, redeliveries, sum(word << 64 * at for at, word in enumerate(words)))
            for position, redeliveries, words in rig.given(answers, consumer)]


def got(rig, consumer, permits=1_000):
    """Grant permits; return the positions that the consumer gets."""
    answers = rig.run(rig.flow(consumer, permits))
    rig.partition(TOPIC).check()
    return [position for position, *_ in given(rig, answers, consumer)]
