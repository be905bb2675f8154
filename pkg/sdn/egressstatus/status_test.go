package egressstatus

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/apitest"
)

// The status of a real API server retains what is patched, and kubectl's table shows it.
func TestClient(t *testing.T) {
	server := apitest.Start(t)
	kube, network := apitest.Clients(t, server)
	t.Cleanup(func() { apitest.Disconnect(kube, network) })
	policies := network.NetworkV1().EgressNetworkPolicies(metav1.NamespaceDefault)
	o := &networkv1.EgressNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: networkv1.EgressNetworkPolicySpec{Egress: []networkv1.EgressNetworkPolicyRule{}},
	}
	if _, err := policies.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c := Client{network}
	since := metav1.NewTime(time.Now().Add(-30*time.Hour - 30*time.Minute).Truncate(time.Second))
	first := Node{Names: []Name{{Name: "www.example.com", Addresses: []string{"192.0.2.1"}, Count: 1, Error: "timeout", Since: &since}}, Error: "www.example.com: timeout"}
	dnsErrors := "1 of 1 nodes (node1): www.example.com: timeout"
	accepted := metav1.Condition{Type: ConditionAccepted, Status: metav1.ConditionTrue, Reason: ReasonAccepted, Message: "the rules are active", LastTransitionTime: since}
	var patched *Status
	for _, patch := range []Status{
		{Nodes: map[string]*Node{"node1": &first}}, {Conditions: []metav1.Condition{accepted}}, {Nodes: map[string]*Node{"node2": {}}}, {Nodes: map[string]*Node{"node2": nil}},
		{DNSErrors: &dnsErrors},
	} {
		var err error
		if patched, err = c.Patch(t.Context(), metav1.NamespaceDefault, "default", patch); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Get(t.Context(), metav1.NamespaceDefault, "default")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, patched); diff != "" || got.ResourceVersion == "" {
		t.Errorf("result of the last patch, of version %q (-read +patched):\n%s", got.ResourceVersion, diff)
	}
	node := got.Nodes["node1"]
	if len(got.Nodes) != 1 || node == nil || node.Error != first.Error || len(node.Names) != 1 || !node.Names[0].Since.Equal(&since) || len(got.Conditions) != 1 {
		t.Errorf("got %+v", got)
	}
	table, err := network.NetworkV1().RESTClient().Get().Namespace(metav1.NamespaceDefault).Resource("egressnetworkpolicies").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var printed metav1.Table
	if err := json.Unmarshal(table, &printed); err != nil {
		t.Fatal(err)
	}
	cells := map[string]any{}
	for i, column := range printed.ColumnDefinitions {
		cells[column.Name] = printed.Rows[0].Cells[i]
	}
	for column, want := range map[string]string{
		"Name": "default", "Accepted": "True", "Reason": "Accepted", "DNS error": dnsErrors, "Message": "the rules are active", "Since": "30h",
	} {
		if cells[column] != want {
			t.Errorf("column %s: got %v, want %s", column, cells[column], want)
		}
	}
	if _, listed := cells["DNS names"]; listed {
		t.Error("got column DNS names, whose node and size vary")
	}
}
