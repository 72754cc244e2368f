"""SCALABLE_TOPIC_SUBSCRIBE and SCALABLE_TOPIC_UNSUBSCRIBE: stream consumers come and go."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.storage.commands.requests import carries_out
from geminga.storage.commands.subscriptions import check_name
from geminga.storage.open_topics.answers import succeed
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.session import Session
from geminga.storage.scalable.stream_consumers import StreamConsumers


@carries_out(T.SCALABLE_TOPIC_SUBSCRIBE)
def register(consumers: StreamConsumers, session: Session, request: api.CommandScalableTopicSubscribe) -> None:
    """Register a stream consumer, and answer with its segments.  Raises Refusal, StorageFull."""
    check_name(request.subscription)      # as SUBSCRIBE on its segments does
    consumers.register(session.key, request)


@carries_out(T.SCALABLE_TOPIC_UNSUBSCRIBE)
def unregister(decisions: Decisions, consumers: StreamConsumers, session: Session,
               request: api.CommandScalableTopicUnsubscribe) -> None:
    """Forget a stream consumer; an unknown one succeeds."""
    consumers.unregister(session.key, request.consumer_id)
    succeed(decisions, session, request.request_id)
