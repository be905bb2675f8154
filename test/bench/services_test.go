package main

import (
	"net/netip"
	"os"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
)

// The services and endpoints of the objects are all different, and each endpoint is on a node whose subnet has it.
func TestServiceObjects(t *testing.T) {
	subnets := map[string]netip.Prefix{}
	for i := range serviceNodes {
		name, _, subnet := serviceNode(i)
		if subnet != subnet.Masked() {
			t.Errorf("subnet of %s: got %s, want %s", name, subnet, subnet.Masked())
		}
		subnets[name] = subnet
	}
	services, endpoints, nodes := map[string]bool{}, map[netip.Addr]bool{}, map[string]int{}
	for i := range manyServices {
		svc, slice := serviceObjects(i)
		services[svc.Spec.ClusterIP] = true
		own := map[string]bool{}
		for _, e := range slice.Endpoints {
			addr, node := netip.MustParseAddr(e.Addresses[0]), *e.NodeName
			if !subnets[node].Contains(addr) {
				t.Fatalf("endpoint of %s: got %s on %s, want an address in %s", svc.Name, addr, node, subnets[node])
			}
			endpoints[addr], own[node] = true, true
			nodes[node]++
		}
		if len(own) != endpointsPerService {
			t.Fatalf("nodes of %s: got %d, want %d", svc.Name, len(own), endpointsPerService)
		}
	}
	if len(services) != manyServices || len(endpoints) != manyServices*endpointsPerService || len(nodes) != serviceNodes {
		t.Errorf("got %d services, %d endpoints, %d nodes, want %d, %d, %d", len(services), len(endpoints), len(nodes), manyServices,
			manyServices*endpointsPerService, serviceNodes)
	}
}

// Rules of kube-proxy have a service only after its element was added.
func TestKubeProxy_has(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	host, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	p := &kubeProxy{b: &B{tb: newTB(t.Context(), t.Name(), t.Logf)}, host: host}
	svc, _ := serviceObjects(0)
	other, _ := serviceObjects(1)
	for _, step := range []struct {
		rules string
		want  bool
	}{
		{"add table ip kube-proxy", false},
		{"add chain ip kube-proxy web; add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }; " +
			"add element ip kube-proxy service-ips { " + other.Spec.ClusterIP + " . tcp . 80 : goto web }", false},
		{"add element ip kube-proxy service-ips { " + svc.Spec.ClusterIP + " . tcp . 80 : goto web }", true},
	} {
		if _, err := p.nft(t.Context(), step.rules); err != nil {
			t.Fatal(err)
		}
		if got, err := p.has(t.Context(), svc); got != step.want || err != nil {
			t.Errorf("rules have the service after %q: got %v, %v, want %v", step.rules, got, err, step.want)
		}
	}
	if got := p.services(); got != 2 {
		t.Errorf("services in the rules: got %d, want 2", got)
	}
}

// The memory of a process is that of the kernel, and a process that has ended has none.
func TestReadMemory(t *testing.T) {
	resident, err := readMemory(os.Getpid(), residentMemory)
	if err != nil {
		t.Fatal(err)
	}
	peak, err := readMemory(os.Getpid(), peakMemory)
	if err != nil || resident <= 0 || peak < resident {
		t.Errorf("got resident %v MiB, peak %v MiB, %v, want a peak of at least the resident memory", resident, peak, err)
	}
	if got, err := readMemory(os.Getpid(), "VmNothing"); err == nil {
		t.Errorf("a field that does not exist: got %v, want an error", got)
	}
}
