"""A stream consumer that a client has registered, as its worker knows it."""
from collections.abc import Callable
from dataclasses import dataclass

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.workers.identity.authorization import Right
from geminga.workers.owners.links import OwnerLink


@dataclass(eq=False, slots=True)
class StreamConsumer:
    """A stream consumer that a client has registered, or asks an owner to register.

        link None, is_made False     the command waits in this worker for the owner's process
        link, is_made False          the owner was asked and has not answered
        link, is_made True           the owner has registered it
        link None, is_made True      the owner's process has ended; the next one will be told
    """

    topic: TopicName                             # as topic://..., whether it is scalable
    command: api.BaseCommand                     # SCALABLE_TOPIC_SUBSCRIBE
    right: Right                                 # that its client must have
    link: OwnerLink | None = None
    is_made: bool = False
    withdraw: Callable[[], None] | None = None   # takes back a command that waits in this worker
    unwritten: bytes = b""                       # frame with its newest assignment, while the client does not read

    def __repr__(self) -> str:
        its = self.command.scalableTopicSubscribe
        return f"<StreamConsumer {its.consumer_id} {its.consumer_name!r} of {self.topic} at {self.link or 'no owner'}>"

    def is_same(self, request: api.CommandScalableTopicSubscribe) -> bool:
        """Whether a request, whose topic exists, is for this very consumer."""
        its = self.command.scalableTopicSubscribe
        return names.parse(request.topic).scalable == self.topic and all(
            getattr(its, name) == getattr(request, name) for name in ("subscription", "consumer_name", "consumer_type"))
