package deploy

import (
	"fmt"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/apitest"
)

// `kubectl get -o wide` shows the state that annotations hold.
func TestColumns(t *testing.T) {
	admin := clients(t, apitest.Start(t))
	since := time.Now().Add(-30*time.Hour - 30*time.Minute).UTC().Format(time.RFC3339)
	_, err := admin.network.NetworkV1().HostSubnets().Create(t.Context(), &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: map[string]string{config.EgressUnreachableAnnotation: since, config.NodeDeletedAnnotation: since}},
		Host:       "node1", HostIP: "192.0.2.1", Subnet: "10.128.0.0/23",
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = admin.network.NetworkV1().NetNamespaces().Create(t.Context(), &networkv1.NetNamespace{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{changeAnnotation: "refused:join:dev", refusedAnnotation: "dev does not exist"}}, NetName: "shop", NetID: 100,
	}, metav1.CreateOptions{})
	must(t, err)
	for resource, want := range map[string]map[string]string{
		"hostsubnets": {
			"Name": "node1", "Host": "node1", "Host IP": "192.0.2.1", "Subnet": "10.128.0.0/23", "Egress CIDRs": "<nil>", "Egress IPs": "<nil>",
			"Egress unreachable": "30h", "Node deleted": "30h",
		},
		"netnamespaces": {
			"Name": "shop", "NetID": "100", "Egress IPs": "<nil>", "Change": "refused:join:dev", "Change refused": "dev does not exist",
		},
	} {
		var table metav1.Table
		must(t, admin.network.NetworkV1().RESTClient().Get().Resource(resource).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Into(&table))
		if len(table.Rows) != 1 || len(table.ColumnDefinitions) != len(want) {
			t.Fatalf("%s: got %d rows and columns %v, want 1 row and %d columns", resource, len(table.Rows), table.ColumnDefinitions, len(want))
		}
		for i, column := range table.ColumnDefinitions {
			if got := fmt.Sprint(table.Rows[0].Cells[i]); got != want[column.Name] {
				t.Errorf("%s, column %s: got %s, want %s", resource, column.Name, got, want[column.Name])
			}
		}
	}
}
