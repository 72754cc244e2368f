"""Transactions: coordinators, open transactions, and their traces in topics and subscriptions.

Paths and answers are Pulsar's.  A transaction's id is MOST/LEAST in paths, the coordinator's number first.  Every owner
is a coordinator with its own index as number.
"""
import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.admin.transactions import (
    AbortTransaction,
    CoordinatorFigures,
    GetCoordinators,
    GetInTopic,
    GetJournal,
    GetOutcome,
    GetPendingPosition,
    GetTopic,
    GetTransactions,
    InTopic,
    TransactionFigures,
)
from geminga.storage.ledgers.position import Position
from geminga.storage.runtime.routing import owner_of
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    TOPICS,
    body_of,
    catalogue_of,
    done,
    is_set,
    number_of,
    part_of,
    status,
    subscription_of,
)

routes = rights.Routes()
_BASE = "/admin/v3/transactions"
_TOPIC = "/{tenant}/{namespace}/{topic:[^/]+}"
_SUBSCRIPTION, _ID = "/{subscription:[^/]+}", "/{most}/{least}"
_OFF = "This Broker is not configured with transactionCoordinatorEnabled=true."
_SNAPSHOTS = "None"      # of a topic's transactions: its state file has them
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _route(method: str, path: str, right: rights.Demand | None = rights.SUPER) -> Callable[[_Handler], _Handler]:
    """Register a handler, which answers 503 while transactions are off."""
    def add(handler: _Handler) -> _Handler:
        @functools.wraps(handler)
        async def checked(request: web.Request) -> web.StreamResponse:
            if not request.app[TOPICS].config.transactions.enabled:
                raise status(503, _OFF)
            return await handler(request)
        routes.route(method, _BASE + path, right=right)(checked)
        return checked
    return add


def _transaction_of(request: web.Request) -> int | None:
    """Return the transaction that the path names, None if no coordinator gives out such an id.  Raises 400."""
    return names.transaction(*(number_of(request, part_of(request, name), name) for name in ("most", "least")))


def _topic_of(request: web.Request) -> TopicName:
    """Return the topic that the path names without its domain.  Raises Refusal."""
    return catalogue_of(request).topics.named("persistent://{}/{}/{}".format(*(
        part_of(request, name) for name in ("tenant", "namespace", "topic"))))


def _coordinator_of(request: web.Request) -> int | None:
    """Return the coordinator that the query names, None for all.  Raises 400, 404."""
    if "coordinatorId" not in request.query:
        return None
    return _existing(request, number_of(request, request.query["coordinatorId"], "coordinatorId"))


def _existing(request: web.Request, number: int) -> int:
    """Return `number` if a coordinator has it.  Raises 404."""
    if number >= request.app[OWNERS].count:
        raise web.HTTPNotFound(text=f"There is no transaction coordinator {number}")
    return number


def _text(position: Position) -> str:
    return "{}:{}".format(*position)


# -- coordinators

@_route("GET", "/coordinators")
async def coordinators(request: web.Request) -> web.Response:
    """Answer with the transaction coordinators."""
    where = request.app[TOPICS].addresses
    return web.json_response([{"id": number, "brokerServiceUrl": where.service or where.service_tls}
                              for number in range(request.app[OWNERS].count)])


@_route("GET", "/coordinatorStats")
async def coordinator_stats(request: web.Request) -> web.Response:
    """Answer with statistics of each transaction coordinator, or of one."""
    number, owners = _coordinator_of(request), request.app[OWNERS]
    if number is not None:
        return web.json_response(_stats(await owners.ask_owner(number, GetCoordinators())))
    figures = await owners.ask_all(GetCoordinators())
    return web.json_response({str(index): _stats(each) for index, each in enumerate(figures)})


def _stats(figures: CoordinatorFigures) -> dict[str, Any]:
    newest, oldest = (names.transaction_bits(each)[1] for each in (figures.newest, figures.oldest))
    return {"state": "Ready" if figures.is_ready else "Initializing", "leastSigBits": newest,
            "lowWaterMark": max(0, oldest - 1), "ongoingTxnSize": figures.active,
            "recoverStartTime": figures.began_ms, "recoverEndTime": figures.began_ms}


@_route("POST", "/transactionCoordinator/replicas")
async def replicas(request: web.Request) -> web.Response:
    """Refuse another number of coordinators: it is the number of owners, which is configured."""
    wanted, count = await body_of(request), request.app[OWNERS].count
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted <= count:
        raise web.HTTPNotAcceptable(text=f"Number of transaction coordinators must be larger than {count}")
    raise web.HTTPConflict(text=f"Every owner is a coordinator, and there are {count}: configure more owners")


# -- transactions

# Pulsar shows the metadata of a transaction to everybody, and the Go client's own tests rely on it.
@_route("GET", "/transactionMetadata" + _ID, right=None)
async def metadata(request: web.Request) -> web.Response:
    """Answer with the state of a transaction and what it has touched."""
    transaction = await _find(request, _transaction_of(request))
    return web.json_response((await _described(request, [transaction]))[0])


async def _find(request: web.Request, transaction: int | None) -> TransactionFigures:
    """Return a transaction that has not ended.  Raises 404, Refusal."""
    if transaction is not None:
        owners = request.app[OWNERS]
        to = names.transaction_bits(transaction)[0] % owners.count
        for figures in await owners.ask_owner(to, GetTransactions(transaction=transaction)):
            return figures
    raise web.HTTPNotFound(text="The transaction is unknown or has ended")


@_route("GET", "/slowTransactions/{ms}")
async def slow(request: web.Request) -> web.Response:
    """Answer with transactions whose lifetime is longer than so many ms, however young they are."""
    question = GetTransactions(above_ms=number_of(request, part_of(request, "ms"), "the time"))
    number, owners = _coordinator_of(request), request.app[OWNERS]
    transactions = (await owners.ask_all(question) if number is None else [await owners.ask_owner(number, question)])
    rows = await _described(request, [one for each in transactions for one in each])
    return web.json_response({each["txnId"]: each for each in rows})


async def _described(request: web.Request, transactions: list[TransactionFigures]) -> list[dict[str, Any]]:
    """Return Pulsar's description of each transaction.  Raises Refusal."""
    by_topic: dict[str, list[int]] = {}
    for each in transactions:
        for topic in each.topics:
            by_topic.setdefault(topic, []).append(each.transaction)
    answers = await asyncio.gather(*(_in_topic(request, names.parse(topic), some) for topic, some in by_topic.items()))
    inside = {(transaction, topic): one for (topic, some), told in zip(by_topic.items(), answers, strict=True)
              for transaction, one in zip(some, told, strict=True)}
    return [{"txnId": names.transaction_text(each.transaction), "status": each.state.upper(),
             "openTimestamp": each.opened_ms, "timeoutAt": each.lifetime_ms,
             **({"owner": each.role} if each.role else {}),
             "producedPartitions": {each.written.get(topic, topic): _produced(inside[each.transaction, topic])
                                    for topic, subscriptions in each.topics.items() if "" in subscriptions},
             "ackedPartitions": {each.written.get(topic, topic): {
                                     name: _acked(inside[each.transaction, topic], name) for name in acked}
                                 for topic, subscriptions in each.topics.items()
                                 if (acked := [name for name in subscriptions if name])}}
            for each in transactions]


async def _in_topic(request: web.Request, topic: TopicName, transactions: list[int]) -> list[InTopic]:
    """Return what each transaction has done in a topic, nothing in one that was deleted meanwhile.  Raises Refusal."""
    try:
        return await request.app[OWNERS].ask(GetInTopic(topic, transactions=transactions))
    except Refusal as refusal:
        if refusal.code != api.TopicNotFound:
            raise
    return [InTopic(None, False, {})] * len(transactions)


def _produced(inside: InTopic, *, is_aborted: bool = False) -> dict[str, Any]:
    first = {} if inside.first is None else {"startPosition": _text(inside.first)}
    return {**first, "aborted": is_aborted}


def _acked(inside: InTopic, subscription: str) -> dict[str, Any]:
    up_to = inside.up_to.get(subscription)
    return {} if up_to is None else {"cumulativeAckPosition": _text(up_to)}


@_route("POST", "/abortTransaction" + _ID)
async def abort(request: web.Request) -> web.Response:
    """Abort a transaction."""
    transaction, owners = _transaction_of(request), request.app[OWNERS]
    if transaction is None or not await owners.ask_owner(
            names.transaction_bits(transaction)[0] % owners.count, AbortTransaction(transaction=transaction)):
        raise status(404, "The transaction is unknown, or its end is decided already")
    return done()


# -- topics

async def _inside(request: web.Request, transaction: int | None) -> InTopic:
    """Return what a transaction has done in the request's topic.  Raises Refusal."""
    wanted = [] if transaction is None else [transaction]
    answer = await request.app[OWNERS].ask(GetInTopic(_topic_of(request), transactions=wanted))
    return answer[0] if answer else InTopic(None, False, {})


@_route("GET", "/transactionInBufferStats" + _TOPIC + _ID)
async def in_buffer(request: web.Request) -> web.Response:
    """Answer with what a transaction has published to a topic."""
    transaction, owners = _transaction_of(request), request.app[OWNERS]
    inside, is_aborted = await _inside(request, transaction), False
    if transaction is not None and inside.has_ended:
        to = names.transaction_bits(transaction)[0] % owners.count
        is_aborted = await owners.ask_owner(to, GetOutcome(transaction=transaction)) == "aborted"
    return web.json_response(_produced(inside, is_aborted=is_aborted))


@_route("GET", "/transactionInPendingAckStats" + _TOPIC + _SUBSCRIPTION + _ID)
async def in_pending(request: web.Request) -> web.Response:
    """Answer with what a transaction has acknowledged in a subscription."""
    await _pending_of(request)
    return web.json_response(_acked(await _inside(request, _transaction_of(request)), subscription_of(request)))


@_route("GET", "/transactionBufferStats" + _TOPIC)
async def buffer(request: web.Request) -> web.Response:
    """Answer with statistics of the transactions of a topic."""
    answer = await request.app[OWNERS].ask(GetTopic(_topic_of(request)))
    return web.json_response(
        {"state": "Ready" if answer.had_any else "NoSnapshot", "maxReadPosition": _text(answer.read_limit),
         "lastSnapshotTimestamps": 0, **await _low_water_marks(request), "ongoingTxnSize": answer.publishing,
         "recoverStartTime": answer.began_ms, "recoverEndTime": answer.began_ms,
         "totalAbortedTransactions": answer.aborted, "snapshotType": _SNAPSHOTS})


@_route("GET", "/pendingAckStats" + _TOPIC + _SUBSCRIPTION)
async def pending(request: web.Request) -> web.Response:
    """Answer with statistics of the transactions of a subscription."""
    count, began_ms = await _pending_of(request)
    return web.json_response(
        {"state": "Ready" if count else "None", **await _low_water_marks(request), "ongoingTxnSize": count,
         "recoverStartTime": began_ms, "recoverEndTime": began_ms})


async def _pending_of(request: web.Request) -> tuple[int, int]:
    """Return how many open transactions acknowledge on the request's subscription, and the start of its owner in ms.

    Raises 404, Refusal.
    """
    told, name = await request.app[OWNERS].ask(GetTopic(_topic_of(request))), subscription_of(request)
    if name not in told.acknowledging:
        raise web.HTTPNotFound(text=f"Subscription {name} not found")
    return told.acknowledging[name], told.began_ms


async def _low_water_marks(request: web.Request) -> dict[str, dict[str, int]]:
    """Return {"lowWaterMarks": {coordinator: transactions up to there have ended}}, {} unless the query asks for it.

    Coordinators without active transactions are left out.  Raises Refusal.
    """
    if not is_set(request, "lowWaterMarks"):
        return {}
    figures = await request.app[OWNERS].ask_all(GetCoordinators())
    return {"lowWaterMarks": {str(number): names.transaction_bits(each.oldest)[1] - 1
                              for number, each in enumerate(figures) if each.oldest}}


@_route("GET", "/positionStatsInPendingAck" + _TOPIC + _SUBSCRIPTION + "/{ledger}/{entry}")
async def position_in_pending(request: web.Request) -> web.Response:
    """Answer whether a transaction has acknowledged an entry."""
    ledger, entry = (number_of(request, part_of(request, name), name) for name in ("ledger", "entry"))
    index = number_of(request, request.query["batchIndex"], "batchIndex", 1 << 20) if (
        "batchIndex" in request.query) else -1
    state = await request.app[OWNERS].ask(GetPendingPosition(
        _topic_of(request), subscription=subscription_of(request), position=(ledger, entry), batch_index=index))
    return web.json_response({"state": state})


# -- where transactions are stored: in the journals of owners

@_route("GET", "/coordinatorInternalStats/{coordinator}")
async def coordinator_log(request: web.Request) -> web.Response:
    """Answer with the journal of a transaction coordinator, told as ledgers."""
    number = number_of(request, part_of(request, "coordinator"), "coordinator")
    return web.json_response({"transactionLogStats": await _log(request, _existing(request, number))})


@_route("GET", "/transactionBufferInternalStats" + _TOPIC)
async def buffer_log(request: web.Request) -> web.Response:
    """Say that an existing topic has no snapshots, so that there are no ledgers of them to describe."""
    await request.app[OWNERS].ask(GetTopic(_topic_of(request)))
    return web.json_response({"snapshotType": _SNAPSHOTS})


@_route("GET", "/pendingAckInternalStats" + _TOPIC + _SUBSCRIPTION)
async def pending_log(request: web.Request) -> web.Response:
    """Answer with the journal of a subscription's transactions, told as ledgers."""
    await _pending_of(request)
    owner = owner_of(str(_topic_of(request)), request.app[OWNERS].count)
    return web.json_response({"pendingAckLogStats": await _log(request, owner)})


async def _log(request: web.Request, owner: int) -> dict[str, Any]:
    """Return the journal of an owner in the words for a managed ledger: segments are ledgers, records are entries.

    Raises Refusal.
    """
    answer = await request.app[OWNERS].ask_owner(owner, GetJournal())
    ledgers = [{"ledgerId": sequence, "entries": records, "size": size, "offloaded": False, "underReplicated": False}
               for sequence, records, size in answer.segments]
    sequence, records, size = answer.segments[-1] if answer.segments else (-1, 0, 0)
    return {"managedLedgerName": f"journal/{owner}", "managedLedgerInternalStats": {
        "entriesAddedCounter": answer.records, "numberOfEntries": sum(records for _, records, _ in answer.segments),
        "totalSize": sum(size for _, _, size in answer.segments), "currentLedgerEntries": records,
        "currentLedgerSize": size, "lastConfirmedEntry": f"{sequence}:{records - 1}", "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0, "state": "LedgerOpened", "ledgers": ledgers, "cursors": {}}}


@routes.route("*", _BASE + "{rest:.*}", right=None)      # the last of these routes: the others come first
async def nothing(request: web.Request) -> web.Response:
    """Answer 404: this path has nothing about transactions."""
    on = request.app[TOPICS].config.transactions.enabled
    raise web.HTTPNotFound(text="There is nothing under this path") if on else status(503, _OFF)
