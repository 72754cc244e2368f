"""The verbs, but those of policies (policies.py): what each asks of the broker.

A row is a `Verb`.  Its path is below /admin/v2/ unless it starts with a slash; names in braces are its arguments, in their order, and
options that go there.  An `Option` says where its value goes: "?name" a parameter of the query, ".name" a field of the JSON that is
sent, "=" all of that JSON, "" a place in the path or what `run` or `body` make of it.  Values are known under the option's long
name: {"subscription": "billing", ...}.  What is more than one question is a function, `run`.

`example` is what follows the arguments in the example that --help shows; the tests try them all.
"""
from geminga.supervisor.cli.admin import runs
from geminga.supervisor.cli.admin.verb import (
          FILE,
          FLAG,
          INT,
          LIST,
          MAP,
          MILLIS,
          SECONDS,
          Option,
          Verb,
          flag,
          need,
)

_SUBSCRIPTION = need("--subscription -s", help="the subscription's name")
_FORCE = flag("--force -f", "?force", "also where it is in use")
_SYSTEM = flag("--include-system-topic -ist", "?includeSystemTopic", "those of the broker's own too")
_PROPERTIES = Option("--property -p", "", "key=value; can be given again", MAP)
_STATS = (flag("--get-precise-backlog -gpb", "?getPreciseBacklog", "counts are exact here with or without it"),
          Option("--get-subscription-backlog-size -sbs", "?subscriptionBacklogSize", "bytes of each backlog; they are told without it too",
                 FLAG, default=True),
          flag("--get-earliest-time-in-backlog -etb", "?getEarliestTimeInBacklog", "when the oldest message of each backlog was published"))
_URLS = (Option("--url", ".serviceUrl", "http://..."), Option("--url-secure", ".serviceUrlTls", "https://..."),
         Option("--broker-url", ".brokerServiceUrl", "pulsar://..."),
         Option("--broker-url-secure", ".brokerServiceUrlTls", "pulsar+ssl://..."))
_DOMAIN = need("--domain-name", "", "its name")
_BROKERS = Option("--broker-list", ".brokers", "its brokers, with commas", LIST, default=())
_TENANT = (Option("--admin-roles -r", ".adminRoles", "roles that may administer it, with commas", LIST, default=()),
           Option("--allowed-clusters -c", ".allowedClusters", "clusters that it may use, with commas", LIST, default=()))
_PERMISSIONS = (need("--role -r", "", "whose"), need("--actions -a", "=", "produce, consume, ..., with commas", LIST))
_TIME_WHEEL = (
    Option("--time-partition-granularity -p", "", "how much of a schedule is in one file: 30s, 5m, 1h, 3d, 2w; 5m without options",
           MILLIS),
    Option("--tick-duration -t", "", "how exactly it is kept: 500ms, 1s, 5m; 1s without options", MILLIS))
_SCHEMA_FILE = need("--filename -f", "", 'a file with {"type": ..., "schema": ..., "properties": {}}', FILE)
_PEEK = (_SUBSCRIPTION, Option("--count -n", "", "how many messages", INT, default=1))

GROUPS: dict[str, tuple[str, tuple[Verb, ...]]] = {
    "clusters": ("Clusters that the broker knows of.", (
        Verb("list", "GET", "clusters", "List the clusters."),
        Verb("get", "GET", "clusters/{cluster}", "Show a cluster's addresses."),
        Verb("create", "PUT", "clusters/{cluster}", "Make a cluster known.", _URLS, "--url http://far:8080"),
        Verb("update", "POST", "clusters/{cluster}", "Change a cluster's addresses.", _URLS, "--url http://far:8080"),
        Verb("delete", "DELETE", "clusters/{cluster}", "Forget a cluster."),
        Verb("update-cluster-migration", "POST", "clusters/{cluster}/migrate", "Send clients elsewhere.", (
            flag("--migrated", "?migrated", "all of them; else those of namespaces that are marked"),
            Option("--service-url", ".serviceUrl", "http://..."), Option("--service-url-secure", ".serviceUrlTls", "https://..."),
            Option("--broker-url", ".brokerServiceUrl", "pulsar://..."),
            Option("--broker-url-secure", ".brokerServiceUrlTls", "pulsar+ssl://...")), "--broker-url pulsar://far:6650"),
        Verb("get-cluster-migration", "GET", "clusters/{cluster}/migrate", "Show where clients of a cluster are sent."),
        Verb("get-peer-clusters", "GET", "clusters/{cluster}/peers", "Show the clusters that stand in for one."),
        Verb("update-peer-clusters", "POST", "clusters/{cluster}/peers", "Say which clusters stand in for one.",
             (need("--peer-clusters", "=", "with commas", LIST),), "--peer-clusters ''"),
        Verb("create-failure-domain", "POST", "clusters/{cluster}/failureDomains/{domain_name}", "Say which brokers fail together.",
             (_DOMAIN, _BROKERS), "--domain-name rack-1 --broker-list b1:8080"),
        Verb("update-failure-domain", "POST", "clusters/{cluster}/failureDomains/{domain_name}", "Change a failure domain's brokers.",
             (_DOMAIN, _BROKERS), "--domain-name rack-1 --broker-list b1:8080"),
        Verb("list-failure-domains", "GET", "clusters/{cluster}/failureDomains", "Show which brokers fail together."),
        Verb("get-failure-domain", "GET", "clusters/{cluster}/failureDomains/{domain_name}", "Show the brokers of a failure domain.",
             (_DOMAIN,), "--domain-name rack-1"),
        Verb("delete-failure-domain", "DELETE", "clusters/{cluster}/failureDomains/{domain_name}", "Forget a failure domain.",
             (_DOMAIN,), "--domain-name rack-1"),
    )),
    "tenants": ("Tenants: the first part of a topic's name.", (
        Verb("list", "GET", "tenants", "List the tenants."),
        Verb("get", "GET", "tenants/{tenant}", "Show who administers a tenant, and where it may be."),
        Verb("create", "PUT", "tenants/{tenant}", "Create a tenant.", _TENANT, "--admin-roles alice,bob", run=runs.create_tenant),
        Verb("update", "POST", "tenants/{tenant}", "Change a tenant; what is not given stays.", _TENANT, "--admin-roles alice",
             run=runs.update_tenant),
        Verb("delete", "DELETE", "tenants/{tenant}", "Delete a tenant without namespaces, or with --force all it has.", (_FORCE,)),
    )),
    "namespaces": ("Namespaces: groups of topics with common policies.", (
        Verb("list", "GET", "namespaces/{tenant}", "List a tenant's namespaces."),
        Verb("create", "PUT", "namespaces/{namespace}", "Create a namespace.", (
            Option("--clusters -c", "", "where its topics are, with commas", LIST),
            Option("--bundles -b", "", "in how many bundles its topics are counted", INT)), body=runs.new_namespace),
        Verb("delete", "DELETE", "namespaces/{namespace}", "Delete a namespace without topics, or with --force all it has.", (_FORCE,)),
        Verb("policies", "GET", "namespaces/{namespace}", "Show all that is set for a namespace."),
        Verb("enable-delayed-message", "POST", "namespaces/{namespace}/delayedDelivery",
             "Deliver messages of a namespace not before their time.", _TIME_WHEEL, "-p 1h -t 500ms", run=runs.enable_delays),
        Verb("disable-delayed-message", "POST", "namespaces/{namespace}/delayedDelivery",
             "Deliver messages of a namespace at once, whatever their time is.", run=runs.disable_delays),
        Verb("topics", "GET", "namespaces/{namespace}/topics", "List a namespace's topics.", (
            Option("--mode -m", "?mode", "which", choices=("PERSISTENT", "NON_PERSISTENT", "ALL")), _SYSTEM)),
        Verb("bundles", "GET", "namespaces/{namespace}/bundles", "Show how its topics are divided among brokers."),
        Verb("permissions", "GET", "namespaces/{namespace}/permissions", "Show who may do what."),
        Verb("grant-permission", "POST", "namespaces/{namespace}/permissions/{role}", "Let a role do something.", _PERMISSIONS,
             "--role alice --actions produce,consume"),
        Verb("revoke-permission", "DELETE", "namespaces/{namespace}/permissions/{role}", "Take away what a role may do.",
             (_PERMISSIONS[0],), "--role alice"),
        Verb("subscription-permission", "GET", "namespaces/{namespace}/permissions/subscription", "Show who may use which subscription."),
        Verb("grant-subscription-permission", "POST", "namespaces/{namespace}/permissions/subscription/{subscription}",
             "Let roles use a subscription.", (_SUBSCRIPTION, need("--roles -rs", "=", "with commas", LIST)), "-s billing -rs alice,bob"),
        Verb("revoke-subscription-permission", "DELETE", "namespaces/{namespace}/permissions/{subscription}/{role}",
             "Take a subscription away from a role.", (_SUBSCRIPTION, need("--role -r", "", "whose")), "-s billing -r alice"),
        Verb("get-properties", "GET", "namespaces/{namespace}/properties", "Show a namespace's properties."),
        Verb("set-properties", "PUT", "namespaces/{namespace}/properties", "Set properties; others stay.", (
            Option("--properties -p", "=", "key=value; can be given again", MAP, required=True),), "-p team=payments"),
        Verb("clear-properties", "DELETE", "namespaces/{namespace}/properties", "Remove all properties."),
        Verb("get-property", "GET", "namespaces/{namespace}/property/{key}", "Show one property.", (need("--key -k"),), "-k team"),
        Verb("set-property", "PUT", "namespaces/{namespace}/property/{key}/{value}", "Set one property.",
             (need("--key -k"), need("--value -v")), "-k team -v payments"),
        Verb("remove-property", "DELETE", "namespaces/{namespace}/property/{key}", "Remove one property.", (need("--key -k"),), "-k team"),
        Verb("clear-backlog", "POST", "namespaces/{namespace}/clearBacklog", "Skip what subscriptions of all its topics have before them.",
             (Option("--sub -s", "", "only this subscription's"), Option("--bundle -b", "", "only topics of this bundle"),
              flag("--force -force", "", "do not ask")), "--force", run=lambda broker, values: runs.clear_backlog(broker, values)),
        Verb("unsubscribe", "POST", "namespaces/{namespace}/unsubscribe/{sub}", "Delete a subscription of all its topics.",
             (need("--sub -s", "", "the subscription's name"),), "-s billing"),
        Verb("update-migration-state", "POST", "namespaces/{namespace}/migration", "Mark a namespace, whose clients are sent elsewhere.",
             (flag("--migrated", "=", "mark it; else it is not marked any more"),)),
        Verb("unload", "PUT", "namespaces/{namespace}/unload", "Close its topics; clients come back at once.",
             (Option("--bundle -b", "", "only topics of this bundle"),),
             run=lambda broker, values: runs.ask_bundle(broker, values, "unload")),
    )),
    "topics": ("Topics, their messages and their subscriptions.", (
        Verb("list", "GET", "{domain}/{namespace}", "List a namespace's topics.", (
            Option("--topic-domain -td", "", "which", choices=("persistent", "non_persistent")),
            Option("--bundle -b", "", "only those of this bundle"), _SYSTEM), run=runs.list_topics("")),
        Verb("list-partitioned-topics", "GET", "{domain}/{namespace}/partitioned", "List a namespace's partitioned topics.",
             (_SYSTEM,), run=runs.list_topics("/partitioned")),
        Verb("create", "PUT", "{topic}", "Create a topic without partitions.",
             (Option("--metadata -m", "=", "a property, key=value; can be given again", MAP, default=()),), "-m team=payments"),
        Verb("create-partitioned-topic", "PUT", "{topic}/partitions", "Create a topic with partitions.", (
            need("--partitions -p", "", "how many", INT), Option("--metadata -m", "", "a property, key=value; can be given again", MAP)),
            "-p 4", body=lambda values: {"partitions": values["partitions"], "properties": values["metadata"]}
            if values["metadata"] else values["partitions"]),
        Verb("update-partitioned-topic", "POST", "{topic}/partitions", "Add partitions to a topic.", (
            need("--partitions -p", "=", "how many there are to be", INT),
            flag("--update-local-only -ulo", "?updateLocalTopicOnly", "do not tell other clusters"), _FORCE), "-p 8"),
        Verb("get-partitioned-topic-metadata", "GET", "{topic}/partitions", "Show how many partitions a topic has."),
        Verb("create-missed-partitions", "POST", "{topic}/createMissedPartitions", "Create partitions that do not exist."),
        Verb("delete-partitioned-topic", "DELETE", "{topic}/partitions", "Delete a topic and its partitions.", (_FORCE,)),
        Verb("delete", "DELETE", "{topic}", "Delete a topic.", (_FORCE,), "--force"),
        Verb("get-properties", "GET", "{topic}/properties", "Show a topic's properties."),
        Verb("update-properties", "PUT", "{topic}/properties", "Set properties; others stay.", (_PROPERTIES._replace(to="="),),
             "-p team=payments"),
        Verb("remove-properties", "DELETE", "{topic}/properties", "Remove a property.", (need("--key -k", "?key"),), "-k team"),
        Verb("lookup", "GET", "/lookup/v2/topic/{topic}", "Show who serves a topic."),
        Verb("partitioned-lookup", "GET", "{topic}/partitions", "Show who serves each partition of a topic.",
             (flag("--sort-by-broker -s", "", "list brokers with their partitions"),), run=runs.lookup_partitions),
        Verb("why-partition", "GET", "{topic}/{message_key}", "Show which partition each client publishes a key to, and by which hash.",
             (Option("--client", "", "only this one", choices=("java", "go", "python", "cpp", "node")),), "--client java",
             run=runs.partition_of_key),
        Verb("bundle-range", "GET", "/lookup/v2/topic/{topic}/bundle", "Show the bundle of a topic."),
        Verb("stats", "GET", "{topic}/stats", "Show rates, producers, subscriptions and consumers of a topic.", _STATS),
        Verb("partitioned-stats", "GET", "{topic}/partitioned-stats", "Show the same of a topic with partitions.",
             (flag("--per-partition", "?perPartition", "of each of them too"), *_STATS)),
        Verb("stats-internal", "GET", "{topic}/internalStats", "Show ledgers and positions.",
             (flag("--metadata -m", "?metadata", "and what the ledgers' own metadata say"),)),
        Verb("partitioned-stats-internal", "GET", "{topic}/partitioned-internalStats", "Show ledgers and positions of each partition."),
        Verb("info-internal", "GET", "{topic}/internal-info", "Show what is kept of ledgers and positions."),
        Verb("unload", "PUT", "{topic}/unload", "Close a topic; clients come back at once."),
        Verb("terminate", "POST", "{topic}/terminate", "Let nobody publish any more; shows the last message's id."),
        Verb("partitioned-terminate", "POST", "{topic}/terminate/partitions", "Let nobody publish to any partition any more."),
        Verb("truncate", "DELETE", "{topic}/truncate", "Skip and delete all that a topic holds."),
        Verb("trim-topic", "POST", "{topic}/trim", "Delete now what nobody needs any more."),
        Verb("compact", "PUT", "{topic}/compaction", "Keep the last message of each key only."),
        Verb("compaction-status", "GET", "{topic}/compaction", "Show how the last compaction went.",
             (flag("--wait-complete -w", "", "wait until none is under way"),), "-w", run=runs.compaction_status),
        Verb("last-message-id", "GET", "{topic}/lastMessageId", "Show the last message's id."),
        Verb("get-message-id", "GET", "{topic}/messageid/{datetime}", "Show the id of the first message published at a time or later.",
             (need("--datetime -d", "", "such as 2026-01-31T12:00:00Z"),), "-d 2026-01-31T12:00:00Z", run=runs.message_id_at),
        Verb("peek-messages", "GET", "{topic}/subscription/{subscription}/position/{n}",
             "Show the next messages of a subscription, and leave them there.", _PEEK, "-s billing -n 3", run=runs.peek, streams=True),
        Verb("peek", "GET", "{topic}/subscription/{subscription}/position/{n}", "The same as peek-messages.", _PEEK, "-s billing -n 3",
             run=runs.peek, streams=True),
        Verb("examine-messages", "GET", "{topic}/examinemessage", "Show a message by its place from the first or the last.", (
            Option("--initialPosition -i", "", "where to count from", default="latest", choices=("latest", "earliest")),
            Option("--messagePosition -m", "", "1 is the one there", INT, default=1)), "-i earliest",
            run=runs.read_entry("{topic}/examinemessage", ("initialPosition", "initialPosition"), ("messagePosition", "messagePosition")),
            streams=True),
        Verb("get-message-by-id", "GET", "{topic}/ledger/{ledgerId}/entry/{entryId}", "Show a message by its id.",
             (need("--ledgerId -l", "", "", INT), need("--entryId -e", "", "", INT)), "-l 12 -e 0",
             run=runs.read_entry("{topic}/ledger/{ledgerId}/entry/{entryId}"), streams=True),
        Verb("permissions", "GET", "{topic}/permissions", "Show who may do what."),
        Verb("grant-permission", "POST", "{topic}/permissions/{role}", "Let a role do something.", _PERMISSIONS,
             "--role alice --actions produce,consume"),
        Verb("revoke-permission", "DELETE", "{topic}/permissions/{role}", "Take away what a role may do.", (_PERMISSIONS[0],),
             "--role alice"),
        Verb("subscriptions", "GET", "{topic}/subscriptions", "List a topic's subscriptions."),
        Verb("create-subscription", "PUT", "{topic}/subscription/{subscription}", "Create a subscription.", (
            _SUBSCRIPTION, Option("--messageId -m", "", "where it begins: earliest, latest or LEDGER:ENTRY", default="latest"),
            flag("--replicated -r", "?replicated", "in other clusters too"), _PROPERTIES), "-s audit -m earliest",
            body=runs.new_subscription),
        Verb("unsubscribe", "DELETE", "{topic}/subscription/{subscription}", "Delete a subscription.", (_SUBSCRIPTION, _FORCE), "-s audit"),
        Verb("get-subscription-properties", "GET", "{topic}/subscription/{subscription}/properties", "Show a subscription's properties.",
             (_SUBSCRIPTION,), "-s billing"),
        Verb("update-subscription-properties", "PUT", "{topic}/subscription/{subscription}/properties",
             "Set a subscription's properties: all of them.", (_SUBSCRIPTION, _PROPERTIES, flag("--clear -c", "", "to none")),
             "-s billing -p team=payments", body=lambda values: {} if values["clear"] else dict(values["property"] or {})),
        Verb("get-replicated-subscription-status", "GET", "{topic}/subscription/{subscription}/replicatedSubscriptionStatus",
             "Show whether a subscription is to be known in other clusters.", (_SUBSCRIPTION,), "-s billing"),
        Verb("set-replicated-subscription-status", "POST", "{topic}/subscription/{subscription}/replicatedSubscriptionStatus",
             "Set whether a subscription is to be known in other clusters.",
             (_SUBSCRIPTION, flag("--enable -e", "", "it is"), flag("--disable -d", "", "it is not")), "-s billing -e",
             body=runs.is_enabled),
        Verb("skip", "POST", "{topic}/subscription/{subscription}/skip/{count}", "Skip the next messages of a subscription.",
             (_SUBSCRIPTION, need("--count -n", "", "how many", INT)), "-s billing -n 1"),
        Verb("clear-backlog", "POST", "{topic}/subscription/{subscription}/skip_all", "Skip all messages of a subscription.",
             (_SUBSCRIPTION,), "-s billing"),
        Verb("reset-cursor", "POST", "{topic}/subscription/{subscription}/resetcursor", "Let a subscription go on elsewhere.", (
            _SUBSCRIPTION, Option("--time -t", "", "so long ago: 10m, 3h, 2d", MILLIS),
            Option("--messageId -m", "", "at a message: earliest, latest or LEDGER:ENTRY"),
            flag("--exclude-reset-position -e", "", "behind that message")), "-s billing -t 10m", run=runs.reset_cursor),
        Verb("expire-messages", "POST", "{topic}/subscription/{subscription}/expireMessages", "Skip old messages of a subscription.", (
            _SUBSCRIPTION, Option("--expireTime -t", "", "older than this: 10m, 3h, 2d", SECONDS),
            Option("--position -p", "", "up to a message: LEDGER:ENTRY"), flag("--exclude-reset-position -e", "", "and the one behind it")),
            "-s billing -t 10m", run=runs.expire),
        Verb("expire-messages-all-subscriptions", "POST", "{topic}/all_subscription/expireMessages/{expireTime}",
             "Skip old messages of all subscriptions.", (need("--expireTime -t", "", "older than this: 10m, 3h, 2d", SECONDS),), "-t 10m"),
        Verb("get-backlog-size", "PUT", "{topic}/backlogSize", "Show how many bytes lie behind a message.", (
            Option("--messageId -m", "", "LEDGER:ENTRY", default="-1:-1"),), body=lambda values: runs.position_of(values["messageId"])),
        Verb("analyze-backlog", "POST", "{topic}/subscription/{subscription}/analyzeBacklog",
             "Walk over a subscription's backlog and count.",
             (_SUBSCRIPTION, Option("--position -p", "", "from a message: LEDGER:ENTRY")), "-s billing",
            body=lambda values: runs.position_of(values["position"]) if values["position"] else None),
    )),
    "delayed": ("Messages that wait for their time.  Times are ms, as 2026-01-31T12:00:00Z (UTC where they do not say), or so long from "
                "now: 10m, -2h.", (
        Verb("list", "GET", "/ops/v1/delayed/{topic}", "Show how much falls due in each hour or window of the index, or each entry.", (
            Option("--from -f", "?from", "only what falls due then or later"), Option("--to -t", "?to", "only what falls due before"),
            Option("--by -b", "?by", "what a row is about", default="hour", choices=("hour", "window", "message")),
            Option("--limit -n", "?limit", "rows at most", INT, default=1_000)), "--to 1d", table=runs.readable_times),
        Verb("cancel", "DELETE", "/ops/v1/delayed/{topic}/{message}",
             "Let nobody get an entry that waits, named LEDGER:ENTRY, with all its messages where it is a batch."),
        Verb("reschedule", "PATCH", "/ops/v1/delayed/{topic}/{message}", "Give an entry that waits, named LEDGER:ENTRY, another time.", (
            Option("--at", "", "then; at once where that is past"), Option("--after", "", "so long from now: 10m, 3h, 2d", MILLIS)),
            "--after 1h", body=runs.new_time),
    )),
    "auth": ("Rights.", (
        Verb("can-i", "GET", "/ops/v1/can-i/{topic}?role={asked_role}&action={asked_action}",
             "Tell whether a role may do something with a topic (produce, consume, lookup, administer, ...), and why.", (
                 Option("--subscription -s", "?subscription", "that it would use"),
                 Option("--proxy", "?proxy", "role of the proxy that would ask for it")), "-s billing"),
    )),
    "topicPolicies": ("What is set for topics.", (
        Verb("enable-delayed-message", "POST", "{topic}/delayedDelivery", "Deliver messages of a topic not before their time.", _TIME_WHEEL,
             "-p 1h -t 500ms", run=runs.enable_delays),
        Verb("disable-delayed-message", "POST", "{topic}/delayedDelivery",
             "Deliver messages of a topic at once, whatever their time is.", run=runs.disable_delays),
        Verb("delete", "DELETE", "{topic}/policies", "Remove all that is set for a topic."),
    )),
    "schemas": ("Schemas of topics.", (
        Verb("upload", "POST", "schemas/{schema_topic}/schema", "Add a schema, if it is compatible.", (_SCHEMA_FILE,), "-f schema.json",
             body=runs.schema_file),
        Verb("get", "GET", "schemas/{schema_topic}/schema", "Show a topic's schema.", (
            Option("--version -v", "", "an older one", INT), flag("--all-version -a", "", "all of them")), run=runs.get_schema),
        Verb("delete", "DELETE", "schemas/{schema_topic}/schema", "Delete a topic's schema.", (_FORCE,)),
        Verb("metadata", "GET", "schemas/{schema_topic}/metadata", "Show what is kept about a topic's schemas."),
        Verb("compatibility", "POST", "schemas/{schema_topic}/compatibility", "Tell whether a schema is compatible; nothing is stored.",
             (_SCHEMA_FILE,), "-f schema.json", body=runs.schema_file),
    )),
    "brokers": ("The broker itself.", (
        Verb("list", "GET", "brokers/{cluster}", "List the cluster's brokers."),
        Verb("leader-broker", "GET", "brokers/leaderBroker", "Show the leading one."),
        Verb("version", "GET", "brokers/version", "Show its version."),
        Verb("healthcheck", "GET", "brokers/health", "Have it publish a message and read it back.", (
            Option("--topic-version -tv", "?topicVersion", "of the topic's name", choices=("V1", "V2")),)),
        Verb("namespaces", "GET", "brokers/{cluster}/{url}/ownedNamespaces", "Show what a broker serves.",
             (need("--url -u", "", "its host and port of HTTP"),), "-u 127.0.0.1:8080"),
        Verb("list-dynamic-config", "GET", "brokers/configuration", "List what can be set while it runs."),
        Verb("get-all-dynamic-config", "GET", "brokers/configuration/values", "Show what was set while it runs."),
        Verb("get-runtime-config", "GET", "brokers/configuration/runtime", "Show its whole configuration."),
        Verb("get-internal-config", "GET", "brokers/internal-configuration", "Show where it keeps its metadata."),
        Verb("update-dynamic-config", "POST", "brokers/configuration/{config}/{value}", "Set something while it runs.",
             (need("--config -c", "", "its name"), need("--value -v")), "-c ttlDurationDefaultInSeconds -v 3600"),
        Verb("delete-dynamic-config", "DELETE", "brokers/configuration/{config}", "Go back to what the file says.",
             (need("--config -c", "", "its name"),), "-c ttlDurationDefaultInSeconds"),
        Verb("downgrade-check", "GET", "/ops/v1/downgrade-check",
             "List what is set that a broker without fixed delays would not do: set those to 0 before going back to one."),
        Verb("shutdown", "POST", "brokers/shutdown", "Stop it, with everything on disk.", (
            Option("--max-concurrent-unload-per-sec -m", "?maxConcurrentUnloadPerSec", "topics to close in a second; 0: no bound", INT,
                   default=0),
            flag("--forced-terminate-topic -f", "?forcedTerminateTopic", "do not wait for topics to close"))),
        Verb("backlog-quota-check", "GET", "brokers/backlog-quota-check", "Look now whether subscriptions keep to their quotas."),
    )),
    "broker-stats": ("Numbers of the broker as a whole.", (
        Verb("topics", "GET", "broker-stats/topics", "Show all topics' stats, by namespace."),
        Verb("monitoring-metrics", "GET", "broker-stats/metrics", "Show its metrics."),
        Verb("load-report", "GET", "broker-stats/load-report", "Show what it uses of its host."),
        Verb("mbeans", "GET", "broker-stats/mbeans", "Show its processes' numbers."),
    )),
}
