package diagnosticsapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// table is the form that kubectl prints.
func table() representation {
	return representation{as: "Table", group: metav1.GroupName, version: metav1.SchemeGroupVersion.Version}
}

// includeObject returns the query's policy: which part of an object a row of a table has.
func includeObject(query url.Values) metav1.IncludeObjectPolicy {
	if policy := metav1.IncludeObjectPolicy(query.Get("includeObject")); policy != "" {
		return policy
	}
	return metav1.IncludeMetadata
}

// metadataOnly is the object of a row with metav1.IncludeMetadata.
func metadataOnly(meta metav1.ObjectMeta) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: metav1.SchemeGroupVersion.String()}, ObjectMeta: meta,
	}
}

// Columns with a priority are those of `kubectl get -o wide`.
const wide = 1

func statusColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the Node."},
		{Name: "Ready", Type: "string", Description: "True, False, Unknown if the agent does not answer, or NoAgent if none is expected."},
		{Name: "Host-IP", Type: "string", Description: "Address of the HostSubnet."},
		{Name: "Subnet", Type: "string", Description: "Subnet of the HostSubnet."},
		{Name: "Pods", Type: "integer", Description: "Pods in the pod network."},
		{Name: "Flows", Type: "integer", Description: "Flows of br0."},
		{Name: "Drift", Type: "integer", Description: "Differences of flows that audits found and repaired."},
		{Name: "Version", Type: "string", Description: "Version of the agent."},
		{Name: "OVS", Type: "string", Priority: wide, Description: "Version of Open vSwitch."},
		{Name: "Datapath", Type: "string", Priority: wide, Description: "Datapath of br0."},
		{Name: "Mode", Type: "string", Priority: wide, Description: "Mode of the pod network."},
		{Name: "Free", Type: "integer", Priority: wide, Description: "Free addresses of the subnet."},
		{Name: "Refused", Type: "integer", Priority: wide, Description: "Owners whose flows the switch refuses."},
		{Name: "Started", Type: "date", Priority: wide, Description: "Start of the agent."},
		{Name: "Message", Type: "string", Priority: wide, Description: "Why the node is not ready, or its agent does not answer."},
	}
}

// statusTable returns a table with a row for each node. Its strings are printable.
func statusTable(items []diagnostics.NodeStatus, meta metav1.ListMeta, policy metav1.IncludeObjectPolicy) *metav1.Table {
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: metav1.SchemeGroupVersion.String()}, ListMeta: meta,
		ColumnDefinitions: statusColumns(), Rows: make([]metav1.TableRow, 0, len(items)),
	}
	for i := range items {
		row := metav1.TableRow{Cells: statusCells(&items[i])}
		switch policy {
		case metav1.IncludeNone:
		case metav1.IncludeObject:
			if content, err := json.Marshal(&items[i]); err == nil {
				row.Object = runtime.RawExtension{Raw: content}
			}
		default:
			row.Object = runtime.RawExtension{Object: metadataOnly(items[i].ObjectMeta)}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func statusCells(o *diagnostics.NodeStatus) []any {
	s := &o.Status
	if s.Error != "" { // kubectl prints nothing for nil
		ready := "Unknown"
		if s.NoAgent {
			ready = "NoAgent"
		}
		return []any{o.Name, ready, s.HostIP, s.Subnet, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, s.Error}
	}
	ready := "False"
	if s.Ready {
		ready = "True"
	}
	var started any
	if !s.Started.IsZero() {
		started = s.Started.UTC().Format(time.RFC3339)
	}
	return []any{
		o.Name, ready, s.HostIP, s.Subnet, s.Pods, s.Flows, s.Drift, s.AgentVersion,
		s.OVSVersion, s.Datapath, s.Mode, s.Free, len(s.RefusedFlows), started, s.NotReady,
	}
}

// writeFlowTable writes a table with a row for each flow.
func writeFlowTable(w http.ResponseWriter, meta metav1.ObjectMeta, answer *flowsAnswer, policy metav1.IncludeObjectPolicy) {
	head := struct {
		metav1.TypeMeta
		metav1.ListMeta   `json:"metadata"`
		ColumnDefinitions []metav1.TableColumnDefinition `json:"columnDefinitions"`
	}{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: metav1.SchemeGroupVersion.String()},
		ColumnDefinitions: []metav1.TableColumnDefinition{
			{Name: "Table", Type: "string", Description: "Name of the flow's table."},
			{Name: "Priority", Type: "integer", Description: "Priority of the flow."},
			{Name: "State", Type: "string", Description: "Result of the comparison with the desired flows."},
			{Name: "Packets", Type: "integer", Description: "Packets that matched the flow."},
			{Name: "Match", Type: "string", Description: "Match of the flow, as ovs-ofctl prints it."},
			{Name: "Actions", Type: "string", Description: "Actions of the flow on the switch."},
			{Name: "Number", Type: "integer", Priority: wide, Description: "Number of the flow's table."},
			{Name: "Bytes", Type: "integer", Priority: wide, Description: "Bytes of the packets."},
			{Name: "Cookie", Type: "string", Priority: wide, Description: "Cookie of the flow."},
			{Name: "Owners", Type: "string", Priority: wide, Description: "Objects that the flow belongs to."},
		},
	}
	var part runtime.Object
	if policy != metav1.IncludeNone { // all flows in each row would be quadratic
		part = metadataOnly(meta)
	}
	writeArray(w, table(), head, "rows", len(answer.flows), func(i int) any {
		f := &answer.flows[i]
		return metav1.TableRow{
			Cells: []any{
				f.TableName, f.Priority, string(f.State), f.Packets, f.Match, f.Actions, f.Table, f.Bytes, f.Cookie, strings.Join(f.Owners, ", "),
			},
			Object: runtime.RawExtension{Object: part},
		}
	})
}
