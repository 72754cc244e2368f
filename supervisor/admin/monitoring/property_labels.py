"""Properties of topics as labels of their series in /metrics, where the configuration and a policy ask for them."""
from geminga.proto import names
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policy_checks import LABELLED, is_label
from geminga.supervisor.admin.monitoring.stats import namespace_of
from geminga.supervisor.configuration.config import MetricsOptions


def property_labels(catalogue: Catalogue, options: MetricsOptions, topic: str) -> dict[str, str]:
    """Return {label: value} for a topic, sorted; a partition or segment has the properties of its topic.

    Raises StorageFull.
    """
    if not options.property_labels:
        return {}
    allowed = catalogue.policies.of(namespace_of(topic)).get(LABELLED, options.topic_properties)
    if not allowed:
        return {}
    properties = catalogue.properties.of(str(catalogue.topics.whole(names.parse(topic))))
    return {name: properties[name] for name in sorted(set(allowed)) if name in properties and is_label(name)}
