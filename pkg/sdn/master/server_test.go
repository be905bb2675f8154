package master_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// The CRDs must accept what the parsers of pkg/sdn/config accept, or the controller's writes would fail.
func testCRDs(t *testing.T, c *cluster) {
	ctx := t.Context()
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	compare := func(object string, crd, parser error) {
		t.Helper()
		if crd != nil && !apierrors.IsInvalid(crd) {
			t.Fatal(crd)
		}
		if crd != nil && parser == nil {
			t.Errorf("%s: accepted by the parser, refused by the CRD: %v", object, crd)
		}
	}
	var accepted int
	for _, hostIP := range []string{"192.0.2.1", "192.0.02.1", "192.0.2.256", "192.0.2", "", "fd00::1", "::ffff:192.0.2.1", "127.0.0.1", "x"} {
		for _, subnet := range []string{"10.128.0.0/23", "10.128.0.1/23", "10.128.0.0/033", "10.128.0.0/33", "10.128.0.0", "", "0.0.0.0/0", "fd00::/64", "x"} {
			o := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Host: "node1", HostIP: hostIP, Subnet: subnet}
			_, crd := c.network.NetworkV1().HostSubnets().Create(ctx, o, dry)
			_, parser := config.ParseHostSubnet(o)
			compare(fmt.Sprintf("HostSubnet %q %q", hostIP, subnet), crd, parser)
			if parser == nil {
				accepted++
			}
		}
	}
	for _, cidr := range []string{"10.128.0.0/14", "10.128.0.1/14", "10.128.0.0/33", "0.0.0.0/0", "10.0.0.0/8", "", "fd00::/48"} {
		for _, bits := range []uint32{0, 1, 2, 9, 18, 24, 30, 31, 32} {
			for _, port := range []uint32{0, 1, 4789, 65535, 65536} {
				for _, mtu := range []uint32{0, 575, 576, 1450, 65485, 65536, 65537} {
					o := &networkv1.ClusterNetwork{
						ObjectMeta:      metav1.ObjectMeta{Name: "default"},
						ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: cidr, HostSubnetLength: bits}},
						ServiceNetwork:  "172.30.0.0/16", PluginName: "subnet", VXLANPort: &port, MTU: &mtu,
					}
					network, parser := config.ParseNetwork(o)
					if parser != nil && (port != 4789 || mtu != 1450) {
						continue // one fault suffices; thousands of calls take long
					}
					_, crd := c.network.NetworkV1().ClusterNetworks().Create(ctx, o, dry)
					compare(fmt.Sprintf("ClusterNetwork %q %d %d %d", cidr, bits, port, mtu), crd, parser)
					if parser == nil {
						accepted++
						if _, err := c.network.NetworkV1().ClusterNetworks().Create(ctx, network.Object(), dry); err != nil {
							t.Errorf("the CRD refuses the object of %+v: %v", network, err)
						}
					}
				}
			}
		}
	}
	if accepted < 20 {
		t.Errorf("only %d objects accepted, want at least 20", accepted)
	}
}

func testWaitsForServer(t *testing.T, c *cluster) {
	server := must(url.Parse(c.master.Host))(t)
	address := reserveAddress(t) // without a listener
	l, stop := c.run(t, func(cfg *master.Config) {
		cfg.REST = rest.CopyConfig(cfg.REST)
		cfg.REST.Host = "https://" + address
	})
	eventually(t, func(context.Context) error {
		if !l.contains("connection refused") {
			return errors.New("the log does not report the API server")
		}
		return nil
	})
	c.addNode(t, "node1", "192.0.2.1")
	listener := must(net.Listen("tcp", address))(t)
	closeProxy := forward(listener, server.Host)
	defer closeProxy()
	c.hostSubnet(t, "node1", nil)
	closeProxy()
	stop()
}

func testWaitsForCRDs(t *testing.T, c *cluster) {
	if testing.Short() {
		t.Skip("complete tier: waits for retries of 15 s")
	}
	client := must(dynamic.NewForConfig(c.admin))(t)
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, name := range []string{"hostsubnets.network.openshift.io", "clusternetworks.network.openshift.io"} {
		if err := crds.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, func(ctx context.Context) error {
			if _, err := crds.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s still exists: %w", name, err)
			}
			return nil
		})
	}
	eventually(t, func(ctx context.Context) error {
		_, err := c.network.NetworkV1().HostSubnets().List(ctx, metav1.ListOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("HostSubnets are still served: %w", err)
		}
		return nil
	})
	l, _ := c.run(t, nil)
	eventually(t, func(context.Context) error {
		if !l.contains("apply the manifests in deploy/crds") {
			return errors.New("the log does not report the missing CRDs")
		}
		return nil
	})
	c.addNode(t, "node1", "192.0.2.1")
	if err := controlplane.Apply(t.Context(), c.admin, os.DirFS("../../../deploy/crds")); err != nil {
		t.Fatal(err)
	}
	c.hostSubnet(t, "node1", nil)
}
