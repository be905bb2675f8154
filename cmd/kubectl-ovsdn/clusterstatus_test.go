package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/ovsdn-system/leases/ovsdn-controller"

func leaseAnswer(holder string, seconds int, renewed time.Time) map[string]any {
	return map[string]any{"spec": map[string]any{"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": metav1.NewMicroTime(renewed)}}
}

func eventAnswer(kind, namespace, name, reason, message string, age time.Duration) map[string]any {
	return map[string]any{
		"involvedObject": map[string]any{"kind": kind, "namespace": namespace, "name": name}, "reason": reason, "message": message,
		"lastTimestamp": metav1.NewTime(time.Now().Add(-age)),
	}
}

func TestStatus_cluster(t *testing.T) {
	full := readyStatus()
	full.Free = 0
	lists := 0
	api := newFakeAPI(t, map[string]any{
		diagnosticsPath + "/nodestatuses":       nodeStatuses(full),
		diagnosticsPath + "/nodestatuses/node1": nodeStatuses(readyStatus()).Items[0],
		"/api/v1/nodes": map[string]any{"items": []any{
			map[string]any{"metadata": map[string]any{"name": "node1"}},
			map[string]any{"metadata": map[string]any{"name": "node2"}, "status": map[string]any{"conditions": []any{
				map[string]any{"type": "NetworkUnavailable", "status": "True", "reason": "NoHostSubnet", "message": "no subnet\nis free"}}}},
			map[string]any{"metadata": map[string]any{"name": "node3"}},
		}},
		"/apis/network.openshift.io/v1/clusternetworks/default": map[string]any{"metadata": map[string]any{"name": "default", "annotations": map[string]any{
			config.ConditionsAnnotation: `[{"type":"Accepted","status":"False","reason":"Invalid","message":"the ranges overlap","lastTransitionTime":null}]`}}},
		"/api/v1/events": func() any { // asked for each component
			if lists++; lists%2 == 0 {
				return map[string]any{}
			}
			return map[string]any{"items": []any{
				eventAnswer("Node", "", "node2", "NodeAddressUnusable", "HostSubnet node1 has the address\x1b[2J", 5*time.Minute),
				eventAnswer("Pod", "shop", "web", "NetworkAttachFailed", "the subnet is full", 3*time.Minute),
				eventAnswer("Node", "", "node1", "NetworkWaiting", "too old", 2*time.Hour),
			}}
		},
		leasePath: leaseAnswer("ovsdn-controller-abc", 10, time.Now()),
	})
	const table = `
NODE    READY   HOST-IP     SUBNET          PODS   FREE   FLOWS   DRIFT   VERSION
node1   True    192.0.2.1   10.128.0.0/23   12     %s    840     0       v1.2.0

Nodes ready: 1/1
Versions:    v1.2.0 (1)
Leader:      ovsdn-controller-abc
`
	api.wants(t, exitFailed, fmt.Sprintf(table, "0  ")+`node1: no address of the subnet is free: new pods do not start
node2: no HostSubnet: NoHostSubnet: no subnet; is free
node3: no HostSubnet
ClusterNetwork default: not accepted: Invalid: the ranges overlap
Warnings of the last hour:
  3m ago  pod/shop/web: NetworkAttachFailed: the subnet is full
  5m ago  node/node2: NodeAddressUnusable: HostSubnet node1 has the address [2J
`, "", "status")
	delete(api.answers, "/apis/network.openshift.io/v1/clusternetworks/default")
	api.wants(t, exitOK, fmt.Sprintf(table, "497"), "", "status", "node1")
}

func TestStatus_leader(t *testing.T) {
	var reads int
	api := newFakeAPI(t, map[string]any{diagnosticsPath + "/nodestatuses": nodeStatuses(readyStatus())})
	for _, test := range []struct {
		name   string
		answer func() any
		code   int
		words  string // after the name of the leader
	}{
		{"renewed", func() any { return leaseAnswer("a", 1, time.Now()) }, exitOK, "Leader:      a\n"},
		{"expired", func() any { return leaseAnswer("a", 1, time.Unix(1000, 0)) }, exitFailed, "Leader:      a\nno controller leads: a has not renewed the Lease for "},
		{"released", func() any { return leaseAnswer("", 1, time.Now()) }, exitFailed, "Leader:      <none>\nno controller leads: the Lease has no holder\n"},
		{"clocks differ", func() any {
			reads++
			return leaseAnswer("a", 2, time.Unix(1000+int64(reads), 0))
		}, exitOK, "Leader:      a\n"},
		{"clocks differ, expired", func() any { return leaseAnswer("a", 1, time.Now().Add(time.Hour)) }, exitFailed, "no controller leads: a has not renewed the Lease for 1s\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			api.answers[leasePath] = test.answer
			code, out, errOut := api.run(t.Context(), "status")
			if code != test.code || !strings.Contains(out, test.words) || code == exitOK && !strings.HasSuffix(out, test.words) || errOut != "" {
				t.Errorf("got exit code %d, output %q, errors %q", code, out, errOut)
			}
		})
	}
}

func TestStatus_manyWarnings(t *testing.T) {
	var items []any
	for i := range maxWarnings + 2 {
		items = append(items, eventAnswer("Node", "", "node1", "NetworkWaiting", strings.Repeat("long ", 1000), time.Duration(i)*time.Minute))
	}
	api := newFakeAPI(t, map[string]any{diagnosticsPath + "/nodestatuses": diagnostics.NodeStatusList{Items: nodeStatuses(readyStatus()).Items},
		"/api/v1/events": map[string]any{"items": items}})
	_, out, _ := api.run(t.Context(), "status")
	if want := fmt.Sprintf("  and %d more: ", 2*len(items)-maxWarnings); strings.Count(out, "NetworkWaiting") != maxWarnings || !strings.Contains(out, want) || len(out) > maxWarnings*(maxWarningText+100)+500 {
		t.Errorf("got %d bytes, want %d warnings and %q:\n%s", len(out), maxWarnings, want, out)
	}
}

// A HostSubnet that is as large as several subnets, as from a network with larger ones, counts as these; one without a subnet as none.
func TestStatus_subnets(t *testing.T) {
	hostSubnet := func(name, subnet string) any {
		return map[string]any{"metadata": map[string]any{"name": name}, "subnet": subnet}
	}
	const networkPath = "/apis/network.openshift.io/v1/clusternetworks/default"
	api := newFakeAPI(t, map[string]any{
		diagnosticsPath + "/nodestatuses": nodeStatuses(readyStatus(), readyStatus()),
		"/apis/network.openshift.io/v1/hostsubnets": map[string]any{"items": []any{
			hostSubnet("node1", "10.128.0.0/23"), hostSubnet("node2", "10.129.0.0/22"), hostSubnet("external", "")}},
		"/apis/network.openshift.io/v1/netnamespaces": map[string]any{"items": []any{map[string]any{"metadata": map[string]any{"name": "a"}, "netname": "a", "netid": 17}}},
		networkPath: map[string]any{"metadata": map[string]any{"name": "default", "annotations": map[string]any{config.AcceptedAnnotation: `{"network":"10.128.0.0/14",
			"hostsubnetlength":9,"serviceNetwork":"172.30.0.0/16","pluginName":"redhat/openshift-ovs-multitenant"}`}}},
	})
	for _, tc := range []struct{ name, line, counts string }{
		{"active", "Subnets:     3 of 512\n", `{"namespaces":1,"subnets":{"total":512,"used":3},"vnids":1}`},
		{"no ClusterNetwork", "Subnets:     3\n", `{"namespaces":1,"subnets":{"used":3},"vnids":1}`},
	} {
		if code, out, errOut := api.run(t.Context(), "status"); code != exitOK || !strings.Contains(out, tc.line) {
			t.Errorf("%s: got exit code %d, errors %q and no %q:\n%s", tc.name, code, errOut, tc.line, out)
		}
		for _, format := range []string{"json", "yaml"} {
			_, out, _ := api.run(t.Context(), "status", "-o", format)
			var o struct {
				Items   []diagnostics.NodeStatus
				Cluster json.RawMessage
			}
			if err := yaml.Unmarshal([]byte(out), &o); err != nil || len(o.Items) != 2 || string(o.Cluster) != tc.counts {
				t.Errorf("%s, -o %s: got error %v, %d nodes and %s, want 2 and %s", tc.name, format, err, len(o.Items), o.Cluster, tc.counts)
			}
		}
		delete(api.answers, networkPath)
	}
}

// HostSubnets of external machines are no problem.
func TestStatus_noAgent(t *testing.T) {
	external := diagnostics.NodeStatusStatus{Error: "an external machine, which has no agent", NoAgent: true}
	api := newFakeAPI(t, map[string]any{
		diagnosticsPath + "/nodestatuses": nodeStatuses(readyStatus(), external),
		diagnosticsPath + "/nodetraffics": diagnostics.NodeTrafficList{Items: []diagnostics.NodeTraffic{{ObjectMeta: metav1.ObjectMeta{Name: "node2"}, Error: external.Error, NoAgent: true}}},
	})
	api.wants(t, exitOK, `
NODE    READY     HOST-IP     SUBNET          PODS        FREE        FLOWS       DRIFT       VERSION
node1   True      192.0.2.1   10.128.0.0/23   12          497         840         0           v1.2.0
node2   NoAgent   192.0.2.2   10.129.0.0/23   <unknown>   <unknown>   <unknown>   <unknown>   <none>

Nodes ready: 1/1
Versions:    v1.2.0 (1)
`, "", "status")
	api.wants(t, exitOK, "", "No dropped packets\n", "drops")
	if code, out, errOut := api.run(t.Context(), "top", "pods", "-A", "--interval=1s"); code != exitOK || strings.Contains(errOut, "external") {
		t.Errorf("top: got exit code %d, output %q, errors %q", code, out, errOut)
	}
}

// Anything may write Events: they neither hide those of others nor change the terminal.
func TestStatus_forgedWarnings(t *testing.T) {
	var items []any
	for range 2 * maxWarnings {
		items = append(items, eventAnswer("Pod", "tenant", "web", "Forged\x1b[2J", "m", time.Second))
	}
	items = append(items, eventAnswer("Node", "", "node1", "NetworkWaiting", "real", time.Minute), eventAnswer("Node", "", "node1", "Future", "m", -time.Hour))
	api := newFakeAPI(t, map[string]any{diagnosticsPath + "/nodestatuses": nodeStatuses(readyStatus()), "/api/v1/events": map[string]any{"items": items}})
	_, out, _ := api.run(t.Context(), "status")
	if strings.Count(out, "Forged") != maxNamespaceWarnings || !strings.Contains(out, "NetworkWaiting: real") || strings.Contains(out, "Future") || strings.Contains(out, "\x1b") {
		t.Errorf("got\n%q", out)
	}
}
