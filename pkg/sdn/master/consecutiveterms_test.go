package master_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

// A controller leads, loses its lease and leads again. In between another one validates the object and is stopped before it writes. Its later
// write is based on an older version and must conflict, although the object was not edited since.
func testTwoTerms(t *testing.T, c *cluster) {
	if testing.Short() {
		t.Skip("complete tier: waits for the end of a lease")
	}
	c.noLeaks(t)
	ranges := []string{"10.128.0.0/23", "10.9.0.0/23"}
	twiceProxy := newSlowProxy(t, c.master, nil)
	t.Cleanup(twiceProxy.close)
	twice, stopTwice := c.start(t, func(cfg *master.Config) {
		cfg.REST, cfg.ClusterNetworks = twiceProxy.config, ranges
	})
	c.accepted(t, "True", "Accepted", "", "10.128.0.0/23 with 9 host bits", "10.9.0.0/23 with 9 host bits")
	// The Event about the annotation shows that the controller knows the object.
	faulty := map[string]string{networkv1.FixedVNIDHostAnnotation: "none"}
	external := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "external", Annotations: faulty}, Host: "external", HostIP: "192.0.2.100", Subnet: "10.9.0.0/23",
	}
	subnets := c.network.NetworkV1().HostSubnets()
	must(subnets.Create(t.Context(), external, metav1.CreateOptions{}))(t)
	c.event(t, "HostSubnet", "external", "InvalidHostSubnet", networkv1.FixedVNIDHostAnnotation)
	c.edit(t, setRanges("10.128.0.0/23"))
	c.accepted(t, "False", "InUse", "HostSubnet external is in use", "10.128.0.0/23 with 9 host bits", "10.9.0.0/23 with 9 host bits")

	twiceProxy.freeze()
	if err := subnets.Delete(t.Context(), "external", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	betweenProxy := newSlowProxy(t, c.master, func(r *http.Request) bool {
		return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/clusternetworks/default")
	})
	t.Cleanup(betweenProxy.close)
	_, stopBetween := c.start(t, func(cfg *master.Config) {
		withoutElection(cfg)
		cfg.REST = betweenProxy.config
	})
	betweenProxy.awaitDelayed(t, 1)
	eventually(t, func(context.Context) error {
		if !twice.contains("Failed to renew lease") {
			return errors.New("the first term has not ended")
		}
		return nil
	})

	must(subnets.Create(t.Context(), external, metav1.CreateOptions{}))(t)
	twiceProxy.open()
	eventually(t, func(context.Context) error {
		if n := twice.count("Successfully acquired lease"); n != 2 {
			return fmt.Errorf("acquired the lease %d times", n)
		}
		return nil
	})
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", nil) // after the second term has written what it found

	betweenProxy.open()
	betweenProxy.awaitStatus(t, "PATCH /apis/network.openshift.io/v1/clusternetworks/default ", http.StatusConflict)
	stopBetween()
	stopTwice()
	betweenProxy.close()
	twiceProxy.close()
}
