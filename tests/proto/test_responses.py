"""Answers that clients test for the presence of their fields."""
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses
from geminga.proto.commands import TABLE
from geminga.proto.frames import frame

T = api.BaseCommand.Type


def said(frame: bytes) -> api.BaseCommand:
    return api.BaseCommand.FromString(frame[8:])


@pytest.mark.parametrize("version, expected", [(0, 0), (6, 6), (20, 20), (21, 21), (22, 21), (2**31 - 1, 21)])
def test_a_client_is_told_the_older_of_two_versions(version, expected):
    assert said(responses.connected(version, 5)).connected.protocol_version == expected
    assert said(responses.auth_challenge("token", version)).authChallenge.protocol_version == expected


def test_a_client_is_told_what_this_broker_can():
    flags = said(responses.connected(21, 5)).connected.feature_flags
    assert {field.name for field, value in flags.ListFields() if value} == {
        "supports_topic_watchers", "supports_get_partitioned_metadata_without_auto_creation",
        "supports_repl_dedup_by_lid_and_eid", "supports_scalable_topics", "supports_tc_metadata_discovery"}


@pytest.mark.parametrize("partition", [-1, 0, 7])
@pytest.mark.parametrize("batch_index", [-1, 0, 7])
def test_an_id_names_partition_and_batch_index_where_there_are_any(partition, batch_index):
    found = responses.message_id(1, -1, partition, batch_index)
    assert (found.ledgerId, found.entryId) == (1, 2**64 - 1)
    assert found.HasField("batch_index") == (batch_index >= 0) and found.batch_index == batch_index
    assert found.HasField("partition") == (partition >= 0) and found.partition == partition


def test_a_list_that_is_as_the_client_knows_it_is_not_sent_again():
    for has_changed in (True, False):
        found = said(
            responses.topics_of_namespace(1, ["a"], "hash", is_filtered=True, has_changed=has_changed)
        ).getTopicsOfNamespaceResponse
        assert (list(found.topics), found.changed) == (["a"] * has_changed, has_changed)


TRANSACTION_COMMANDS = {T.NEW_TXN: ("newTxnResponse", responses.new_transaction),
                        T.ADD_PARTITION_TO_TXN: ("addPartitionToTxnResponse", responses.added_partition),
                        T.ADD_SUBSCRIPTION_TO_TXN: ("addSubscriptionToTxnResponse", responses.added_subscription),
                        T.END_TXN: ("endTxnResponse", responses.ended_transaction)}


@pytest.mark.parametrize("numbers", [(7, 3, 9), (0, 0, 0), (300, 255, 1 << 40), ((1 << 64) - 1,) * 3], ids=str)
@pytest.mark.parametrize("kind", TRANSACTION_COMMANDS)
def test_an_answer_about_a_transaction_has_the_bytes_that_the_library_writes(kind, numbers):
    field, answer = TRANSACTION_COMMANDS[kind]
    command = api.BaseCommand(type=kind + 1)
    found = getattr(command, field)
    found.request_id, found.txnid_most_bits, found.txnid_least_bits = numbers
    assert answer(*numbers) == frame(command)


@pytest.mark.parametrize("numbers", [(7, 3), (0, 0), (300, 1 << 40), ((1 << 64) - 1,) * 2], ids=str)
def test_the_answer_to_an_acknowledgement_has_the_bytes_that_the_library_writes(numbers):
    answer = api.CommandAckResponse(consumer_id=numbers[0], request_id=numbers[1])
    assert responses.ack_response(*numbers) == responses.frame_of(answer)


@pytest.mark.parametrize("kind", TRANSACTION_COMMANDS)
def test_an_answer_about_a_transaction_names_its_id(kind):
    field, answer = TRANSACTION_COMMANDS[kind]
    command = said(answer(7, 3, 9))
    found = getattr(command, field)
    assert command.type == kind + 1 and not (found.HasField("error") or found.HasField("message"))
    assert (found.request_id, found.txnid_most_bits, found.txnid_least_bits) == (7, 3, 9)


@pytest.mark.parametrize("kind", [*TRANSACTION_COMMANDS, T.END_TXN_ON_PARTITION, T.END_TXN_ON_SUBSCRIPTION])
def test_a_refused_command_about_a_transaction_gets_its_own_response_with_the_coordinator(kind):
    """Java clients find the waiting request by the coordinator, and close the connection if they do not."""
    command = said(responses.refusal_by_ids(kind, 7, (3, 9)[:len(TABLE[kind].ids)], api.TransactionNotFound, "gone"))
    (_, _), (_, found) = command.ListFields()
    assert command.type == kind + 1
    assert (found.request_id, found.txnid_most_bits) == (7, 3)
    assert found.txnid_least_bits == (0 if kind == T.NEW_TXN else 9)      # no transaction has begun
    assert (found.error, found.message) == (api.TransactionNotFound, "gone")


def test_a_coordinator_is_connected_or_not():
    found = said(responses.transaction_coordinator_connected(7)).tcClientConnectResponse
    assert found.request_id == 7 and not found.HasField("error")
    asked = api.CommandTcClientConnectRequest(request_id=7, tc_id=9)
    command = api.BaseCommand(type=T.TC_CLIENT_CONNECT_REQUEST, tcClientConnectRequest=asked)
    refused = responses.refusal(command, api.TransactionCoordinatorNotFound, "none")
    found = said(refused).tcClientConnectResponse
    assert (found.request_id, found.error) == (7, api.TransactionCoordinatorNotFound)
