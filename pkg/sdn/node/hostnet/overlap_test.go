package hostnet

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestCheckOverlap(t *testing.T) {
	cluster, service := prefixes("10.128.0.0/14", "10.64.0.0/16"), netip.MustParsePrefix("172.30.0.0/16")
	for _, test := range []struct {
		name   string
		routes string
		want   []string // nil: no overlap
	}{
		{"none", "ip route add default via 192.0.2.1; ip route add 10.200.0.0/16 via 192.0.2.1", nil},
		{"tun0's own", "ip route add 10.128.0.0/14 dev tun0; ip route add 172.30.0.0/16 dev tun0", nil},
		{"default in halves", "ip route add 0.0.0.0/1 via 192.0.2.1; ip route add 128.0.0.0/1 via 192.0.2.1", nil},
		{"link-local and multicast", "ip route add 169.254.0.0/16 dev eth0; ip route add 224.0.0.0/4 dev eth0", nil},
		{"part of the cluster network", "ip route add 10.130.4.0/24 via 192.0.2.1",
			[]string{"cluster network 10.128.0.0/14", "route 10.130.4.0/24 dev eth0", "--cluster-network", "clusterNetworks of ClusterNetwork default"}},
		{"around the cluster network", "ip route add 10.0.0.0/8 via 192.0.2.1", []string{"cluster network 10.128.0.0/14", "cluster network 10.64.0.0/16", "10.0.0.0/8 dev eth0"}},
		{"the second cluster network", "ip route add 10.64.0.0/16 dev eth0", []string{"cluster network 10.64.0.0/16"}},
		{"service network", "ip route add 172.30.9.9/32 dev eth0", []string{"service network 172.30.0.0/16", "172.30.9.9/32 dev eth0", "--service-network", "serviceNetwork of"}},
		{"an interface's subnet", "ip addr add 10.131.0.1/24 dev eth0", []string{"10.131.0.0/24 dev eth0"}},
		{"blackhole", "ip route add blackhole 10.128.0.0/16", []string{"overlaps this host's route 10.128.0.0/16"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inNetNS(t)
			addInterface(t, "eth0", nil, "192.0.2.10/24")
			addInterface(t, Tun0Name, nil, "10.128.0.1/23")
			sh(t, test.routes)
			err := CheckOverlap(cluster, service)
			if test.want == nil {
				must(t, err)
				return
			}
			wantError(t, err, test.want...)
			if _, is := errors.AsType[*OverlapError](err); !is {
				t.Errorf("got %T, want an *OverlapError", err)
			}
		})
	}
}

// Only routes that take packets from tun0 are found.
func TestCheckMoreSpecific(t *testing.T) {
	cluster, service := prefixes("10.128.0.0/14"), netip.MustParsePrefix("172.30.0.0/16")
	inNetNS(t)
	addInterface(t, "eth0", nil, "192.0.2.10/24")
	addInterface(t, Tun0Name, nil, "10.128.0.1/23")
	sh(t, "ip route add 10.128.0.0/14 dev tun0; ip route add 10.0.0.0/8 via 192.0.2.1; ip route add 172.16.0.0/12 via 192.0.2.1")
	must(t, CheckMoreSpecific(cluster, service))
	sh(t, "ip route add 10.130.4.0/24 via 192.0.2.1; ip route add blackhole 172.30.0.0/16")
	wantError(t, CheckMoreSpecific(cluster, service), "cluster network 10.128.0.0/14 overlaps this host's route 10.130.4.0/24 dev eth0", "service network 172.30.0.0/16 overlaps")
	sh(t, "ip route del 10.130.4.0/24; ip route del blackhole 172.30.0.0/16")
	must(t, CheckMoreSpecific(cluster, service))
}

func TestCheckOverlap_oneRoutePerNetwork(t *testing.T) {
	inNetNS(t)
	addInterface(t, "eth0", nil, "192.0.2.10/24")
	sh(t, "for i in 1 2 3; do ip route add 10.128.$i.0/24 dev eth0; done")
	err := CheckOverlap(prefixes("10.128.0.0/14"), netip.Prefix{})
	wantError(t, err, "10.128.1.0/24")
	if n := strings.Count(err.Error(), "overlaps"); n != 1 {
		t.Errorf("got %d overlaps, want 1: %v", n, err)
	}
}
