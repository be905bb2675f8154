package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/tier"
)

// testRoutedHost: an outside host that has a route to the cluster through a node reaches only VNID 0; pods reach it.
func testRoutedHost(t *testing.T, c *cluster, tenant, global member) {
	outside := c.Machine(t, lab.Outside)
	network, services := c.Shape().ClusterNetwork.String(), c.Shape().ServiceNetwork.String()
	for _, route := range []string{network, services} {
		c.Output(t, lab.Outside, "ip", "route", "replace", route, "via", c.Addr(t, tenant.Node).String())
		t.Cleanup(func() {
			if _, err := c.TryOutput(context.WithoutCancel(t.Context()), lab.Outside, "ip", "route", "del", route); err != nil {
				t.Error(err)
			}
		})
	}
	fixture.MustNotReach(t, "from outside to a tenant's pod",
		fixture.AsksHTTP(outside.NetNS, tenant.Addr, fixture.HTTPPort), fixture.AsksHTTP(outside.NetNS, global.Addr, fixture.HTTPPort))
	fixture.Eventually(t, fixture.SyncTime, "a tenant's pod reaches outside", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return tenant.NetNS.Ping(ctx, lab.OutsideAddr(), wire.Echo{})
	})
}

// testTenantServices: pods of its VNID and of VNID 0 reach a service, and all pods if it has VNID 0, on whatever node its endpoint is.
func testTenantServices(t *testing.T, m *matrix) {
	addrs := map[int][]netip.Addr{}
	endpoints := map[netip.Addr]string{}
	for i, ns := range m.tenants {
		for _, endpoint := range m.members {
			if endpoint.tenant == i {
				addr := m.Expose(t, ns.namespace, "of-"+endpoint.Name, servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, endpoint.pod)
				addrs[i] = append(addrs[i], addr)
				endpoints[addr] = endpoint.Name
			}
		}
	}
	t.Run("access", func(t *testing.T) {
		for _, from := range m.members {
			t.Run("from "+from.Name, func(t *testing.T) {
				tier.Parallel(t)
				m.reachesServices(t, from, addrs, endpoints)
			})
		}
	})
	// A port that changes is followed, and so is a service that goes.
	ns, client := m.tenants[0].namespace, m.members[0]
	patch := []byte(`[{"op":"replace","path":"/spec/ports/0/port","value":8000}]`)
	name := "of-" + m.members[0].Name
	if _, err := m.Kube.CoreV1().Services(ns).Patch(t.Context(), name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	second := m.members[1]
	fixture.Eventually(t, fixture.SyncTime, "the service's other port", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, fixture.RefusedTime)
		defer cancel()
		return fixture.AsksHTTP(second.NetNS, addrs[0][0], 8000)(ctx)
	})
	fixture.MustNotReach(t, "the service's previous port", fixture.AsksHTTP(second.NetNS, addrs[0][0], 80), fixture.AsksHTTP(second.NetNS, addrs[0][0], 8000))
	if err := m.Kube.CoreV1().Services(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, fixture.SyncTime, "the deleted service's flows are removed", func(ctx context.Context) error {
		flows, err := m.TryOutput(ctx, client.Node, "ovs-ofctl", "-O", "OpenFlow13", "dump-flows", "br0", "table=60")
		if err == nil && strings.Contains(flows, addrs[0][0].String()) {
			return fmt.Errorf("there are some: %s", flows)
		}
		return err
	})
}

// reachesServices asks all services, of tenants by index. The names of their endpoints are for messages.
func (m *matrix) reachesServices(t *testing.T, from member, addrs map[int][]netip.Addr, endpoints map[netip.Addr]string) {
	t.Helper()
	for i := range m.tenants {
		a, b := m.tenants[from.tenant].vnid, m.tenants[i].vnid
		allowed := a == b || a == 0 || b == 0
		for _, addr := range addrs[i] {
			what := fmt.Sprintf("%s (VNID %d) to the service of %s (VNID %d)", from.Name, a, endpoints[addr], b)
			if allowed {
				fixture.Eventually(t, fixture.SyncTime, what, func(ctx context.Context) error {
					ctx, cancel := context.WithTimeout(ctx, fixture.RefusedTime)
					defer cancel()
					return fixture.AsksHTTP(from.NetNS, addr, 80)(ctx)
				})
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			if fixture.AsksHTTP(from.NetNS, addr, 80)(ctx) == nil {
				fixture.Arrived(t, "%s: got through", what)
			}
			cancel()
		}
	}
}

// testTenantNodePorts: a tenant's node port is open to hosts outside and to its own pods, through any node, and to no other tenant's.
func testTenantNodePorts(t *testing.T, c *cluster, m *matrix, ours, theirs, global member) {
	expose := func(endpoint member) uint16 {
		ns := m.tenants[endpoint.tenant].namespace
		addr := c.Expose(t, ns, "port-of-"+endpoint.Name, servicePort{Protocol: "TCP", Port: 81, Target: fixture.HTTPPort}, endpoint.pod)
		patch := []byte(`{"spec":{"type":"NodePort"}}`)
		s, err := c.Kube.CoreV1().Services(ns).Patch(t.Context(), "port-of-"+endpoint.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Fatalf("service %s: %v", addr, err)
		}
		return uint16(s.Spec.Ports[0].NodePort)
	}
	own, other, everybodys := expose(ours), expose(theirs), expose(global)
	outside := c.Machine(t, lab.Outside)
	for _, node := range []string{fixture.Node1, fixture.Node2, fixture.Node3} {
		addr := c.Addr(t, node)
		t.Run("through "+node, func(t *testing.T) {
			tier.Parallel(t)
			for what, ask := range map[string]func(context.Context) error{
				"own":                  fixture.AsksHTTP(ours.NetNS, addr, own),
				"of VNID 0":            fixture.AsksHTTP(ours.NetNS, addr, everybodys),
				"from VNID 0":          fixture.AsksHTTP(global.NetNS, addr, other),
				"from outside":         fixture.AsksHTTP(outside.NetNS, addr, other),
				"from outside to ours": fixture.AsksHTTP(outside.NetNS, addr, own),
			} {
				fixture.Eventually(t, fixture.SyncTime, what, func(ctx context.Context) error {
					ctx, cancel := context.WithTimeout(ctx, fixture.RefusedTime)
					defer cancel()
					return ask(ctx)
				})
			}
			fixture.MustNotReach(t, "another tenant's", fixture.AsksHTTP(ours.NetNS, addr, other), fixture.AsksHTTP(theirs.NetNS, addr, other))
		})
	}
}

// testTenantMulticast: if multicast is enabled, exactly the pods of the sender's VNID receive its packets, on all nodes.
func testTenantMulticast(t *testing.T, m *matrix) {
	group := netip.MustParseAddrPort("239.7.7.7:7007")
	heard := make(chan string, 1000)
	for _, listener := range m.members {
		var conn *net.UDPConn
		if err := listener.NetNS.Do(func() error {
			iface, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			conn, err = net.ListenMulticastUDP("udp4", iface, net.UDPAddrFromAddrPort(group))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go func() {
			buffer := make([]byte, 1<<10)
			for {
				n, _, err := conn.ReadFrom(buffer)
				if err != nil {
					return
				}
				heard <- string(buffer[:n]) + " " + listener.Name
			}
		}()
	}
	for number, on := range []bool{false, true, false} {
		for _, ns := range m.tenants[:2] {
			m.setMulticast(t, ns.namespace, on)
		}
		for _, sender := range []member{m.members[0], m.members[4]} {
			m.hears(t, heard, group, fmt.Sprintf("round-%d-%s", number, sender.Name), sender, on)
		}
	}
}

// hears sends until exactly the expected receivers have the packet.
func (m *matrix) hears(t *testing.T, heard <-chan string, group netip.AddrPort, text string, sender member, on bool) {
	t.Helper()
	conn, err := sender.NetNS.DialContext(t.Context(), "udp4", group.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mates := map[string]bool{}
	for _, other := range m.members {
		if other.tenant == sender.tenant {
			mates[other.Name] = true
		}
	}
	attempt := 0
	fixture.Stops(t, fixture.SyncTime, text, func(context.Context) (arrived, other error) {
		attempt++
		number := fmt.Sprintf("%s-%d", text, attempt)
		if _, err := conn.Write([]byte(number)); err != nil {
			return nil, err
		}
		got := map[string]bool{}
		timer := time.NewTimer(time.Second)
		defer timer.Stop()
		for {
			select {
			case line := <-heard:
				number2, name, _ := strings.Cut(line, " ")
				if strings.HasPrefix(number2, text+"-") && !mates[name] {
					fixture.Arrived(t, "%s: heard by %s, which has another VNID", number2, name)
					t.FailNow()
				}
				if number2 == number && name != sender.Name { // its own kernel gives it a copy
					got[name] = true
				}
			case <-timer.C:
				switch {
				case !on && len(got) > 0:
					return fmt.Errorf("multicast is disabled, but heard by %v", got), nil
				case on && len(got) != len(mates)-1:
					return nil, fmt.Errorf("heard by %v, want by all of %v but %s", got, mates, sender.Name)
				}
				return nil, nil
			}
		}
	})
}
