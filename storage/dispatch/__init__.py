"""Who gets the next entries: one file per way of choosing, and the table that names them."""
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.dispatch.failover import Failover
from geminga.storage.dispatch.key_shared import KeyShared
from geminga.storage.dispatch.shared import Shared
from geminga.storage.topics.subscription import SubType

DISPATCHERS = {SubType.Exclusive: Exclusive, SubType.Failover: Failover, SubType.Shared: Shared, SubType.Key_Shared: KeyShared}
