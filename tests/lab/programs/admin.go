// Calls Go's library for administration, each thing by its name; Ground.ask says how the program is told.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func text(value any) string { return string(must(json.Marshal(value))) }

func sorted(names []string) string {
	sort.Strings(names)
	return strings.Join(names, " ")
}

// last is the part of a topic's name behind the last slash, of each.
func last(names []string) []string {
	for at, name := range names {
		names[at] = name[strings.LastIndex(name, "/")+1:]
	}
	return names
}

func main() {
	var told map[string]string
	check(json.Unmarshal([]byte(os.Args[len(os.Args)-1]), &told))
	c := must(pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: told["http"]}))
	tenant := told["prefix"]
	namespace := tenant + "/n"
	name := must(utils.GetTopicName("persistent://" + namespace + "/t"))
	parted := must(utils.GetTopicName("persistent://" + namespace + "/p"))
	ns := must(utils.GetNamespaceName(namespace))
	things := map[string]func() string{
		"clusters": func() string { return sorted(must(c.Clusters().List())) },
		"tenant": func() string {
			check(c.Tenants().Create(utils.TenantData{Name: tenant, AdminRoles: []string{"r"}, AllowedClusters: []string{"standalone"}}))
			return text(must(c.Tenants().Get(tenant)).AdminRoles)
		},
		"namespace": func() string {
			check(c.Namespaces().CreateNamespace(namespace))
			return sorted(must(c.Namespaces().GetNamespaces(tenant)))
		},
		"topic": func() string {
			check(c.Topics().Create(*name, 0))
			check(c.Topics().Create(*parted, 3))
			partitioned, plain, err := c.Topics().List(*ns)
			check(err)
			return sorted(last(partitioned)) + ", " + sorted(last(plain))
		},
		"partitions": func() string {
			check(c.Topics().Update(*parted, 4))
			return fmt.Sprint(must(c.Topics().GetMetadata(*parted)).Partitions)
		},
		"stats":          func() string { return fmt.Sprint(len(must(c.Topics().GetStats(*name)).Publishers)) },
		"internal stats": func() string { return fmt.Sprint(must(c.Topics().GetInternalStats(*name)).NumberOfEntries) },
		"partitioned stats": func() string {
			return fmt.Sprint(len(must(c.Topics().GetPartitionedStats(*parted, true)).Partitions))
		},
		"subscription": func() string {
			check(c.Subscriptions().Create(*name, "s", utils.Earliest))
			return sorted(must(c.Subscriptions().List(*name)))
		},
		"skip and reset": func() string {
			check(c.Subscriptions().ClearBacklog(*name, "s"))
			check(c.Subscriptions().ResetCursorToTimestamp(*name, "s", 1))
			return "done"
		},
		"subscription deleted": func() string {
			check(c.Subscriptions().Delete(*name, "s"))
			return fmt.Sprint(len(must(c.Subscriptions().List(*name))))
		},
		"retention": func() string {
			check(c.Namespaces().SetRetention(namespace, utils.RetentionPolicies{RetentionTimeInMinutes: 10, RetentionSizeInMB: 20}))
			return text(must(c.Namespaces().GetRetention(namespace)))
		},
		"TTL": func() string {
			check(c.Namespaces().SetNamespaceMessageTTL(namespace, 60))
			return fmt.Sprint(must(c.Namespaces().GetNamespaceMessageTTL(namespace)))
		},
		"backlog quota": func() string {
			check(c.Namespaces().SetBacklogQuota(namespace, utils.NewBacklogQuota(1000, -1, utils.ProducerException), utils.DestinationStorage))
			return fmt.Sprint(must(c.Namespaces().GetBacklogQuotaMap(namespace))[utils.DestinationStorage].LimitSize)
		},
		"rates": func() string {
			check(c.Namespaces().SetDispatchRate(*ns, utils.DispatchRate{DispatchThrottlingRateInMsg: 5, RatePeriodInSecond: 1}))
			return fmt.Sprint(must(c.Namespaces().GetDispatchRate(*ns)).DispatchThrottlingRateInMsg)
		},
		"permissions": func() string {
			check(c.Namespaces().GrantNamespacePermission(*ns, "role", []utils.AuthAction{"produce"}))
			return text(must(c.Namespaces().GetNamespacePermissions(*ns))["role"])
		},
		"policies": func() string {
			policies := must(c.Namespaces().GetPolicies(namespace))
			return fmt.Sprint(*policies.MessageTTLInSeconds, " ", policies.RetentionPolicies.RetentionSizeInMB)
		},
		"schema": func() string {
			check(c.Schemas().CreateSchemaByPayload(name.String(), utils.PostSchemaPayload{SchemaType: "STRING", Schema: "", Properties: map[string]string{"a": "1"}}))
			return must(c.Schemas().GetSchemaInfo(name.String())).Type
		},
		"compatibility": func() string {
			check(c.Namespaces().SetSchemaCompatibilityStrategy(*ns, utils.SchemaCompatibilityStrategyForward))
			return text(must(c.Namespaces().GetSchemaCompatibilityStrategy(*ns)))
		},
		"topic policy": func() string {
			check(c.Topics().SetMaxConsumers(*name, 7))
			for range 100 { // it is in force a moment later
				if found, err := c.Topics().GetMaxConsumers(*name); err == nil && found == 7 {
					return "7"
				}
				time.Sleep(50 * time.Millisecond)
			}
			return fmt.Sprint(must(c.Topics().GetMaxConsumers(*name)))
		},
		"lookup":  func() string { return fmt.Sprint(must(c.Topics().Lookup(*name)).BrokerURL != "") },
		"brokers": func() string { return fmt.Sprint(len(must(c.Brokers().GetActiveBrokers("standalone")))) },
		"health":  func() string { return fmt.Sprint(c.Brokers().HealthCheck() == nil) },
		"terminate": func() string {
			must(c.Topics().Terminate(*name))
			return "done"
		},
		"unload":  func() string { check(c.Topics().Unload(*name)); return "done" },
		"missing": func() string { _, err := c.Namespaces().GetPolicies(tenant + "/none"); return err.Error() },
		"deleted": func() string {
			check(c.Topics().Delete(*name, true, true))
			check(c.Topics().Delete(*parted, true, false))
			check(c.Namespaces().DeleteNamespace(namespace))
			check(c.Tenants().Delete(tenant))
			return "done"
		},
	}
	for _, thing := range strings.Split(told["things"], ",") {
		fmt.Println(text(map[string]string{"thing": thing, "answer": run(things[thing])}))
	}
}

func run(thing func() string) (answer string) {
	defer func() {
		if trouble := recover(); trouble != nil {
			answer = fmt.Sprint("error: ", trouble)
		}
	}()
	return thing()
}
