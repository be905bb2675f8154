package node

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/agentmetrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/diagnosticsserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podcapture"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podprobe"
	"github.com/ovsdn/ovsdn/pkg/version"
)

// newDiagnostics returns the handler of controllers' requests, which accepts certificates of the authorities.
func (a *agent) newDiagnostics(authorities func() *x509.CertPool) *diagnosticsserver.Handler {
	versions := &switchVersion{bridge: a.bridge}
	return diagnosticsserver.New(diagnosticsserver.Options{
		NodeName: a.NodeName, Datapath: a.Datapath, CAs: authorities, Ready: a.probes()["/readyz"],
		Version: func(r *http.Request) (agent, ovs string) { return version.Get().Version, versions.get(r.Context()) },
	})
}

// setDiagnostics lets the handler answer for this set-up.
func (n *nodeNetwork) setDiagnostics(sampler *agentmetrics.Sampler) {
	d := &diagnosticsserver.Network{
		Mode: n.network.Mode, HostSubnet: n.hostSubnet, Store: n.store, Switch: n.agent.bridge, SwitchHealthy: n.pods.Healthy,
		Pods: n.pods.Pods, Addrs: n.ipam.Usage,
		Drops: sampler.Drops, Peers: n.pinger.Problems,
		HasEgressPolicy: n.hasEgressPolicy, EgressPolicies: n.egressPolicies, UnresolvedNames: n.egress.UnresolvedNames, Node: n.node, HostSubnetOf: n.hostSubnetOf, NodeOf: n.nodeOf,
		Host: n.firewall.Path, Probe: podprobe.Send, Capture: func(c podcapture.Capture) (diagnosticsserver.CaptureSession, error) { return podcapture.Open(c) },
	}
	if n.policies != nil {
		d.Policies = n.policies
	}
	if n.egressIPs != nil {
		d.EgressIPsNotPlaced = n.egressIPs.NotPlaced
	}
	n.agent.diagnostics.SetNetwork(d)
}

func (n *nodeNetwork) hasEgressPolicy(namespace, name string) bool {
	_, err := n.caches.Network.Network().V1().EgressNetworkPolicies().Lister().EgressNetworkPolicies(namespace).Get(name)
	return err == nil // a lister has no error but NotFound
}

// egressPolicies returns the names of a namespace's EgressNetworkPolicies, sorted.
func (n *nodeNetwork) egressPolicies(namespace string) (names []string) {
	all, _ := n.caches.Network.Network().V1().EgressNetworkPolicies().Lister().EgressNetworkPolicies(namespace).List(labels.Everything()) // from memory
	for _, o := range all {
		names = append(names, o.Name)
	}
	slices.Sort(names)
	return names
}

// hostSubnetOf returns the HostSubnet of a node; false if it does not exist or is invalid.
func (n *nodeNetwork) hostSubnetOf(node string) (*config.HostSubnet, bool) {
	o, err := n.caches.Network.Network().V1().HostSubnets().Lister().Get(node)
	if err != nil {
		return nil, false
	}
	h, err := config.ParseHostSubnet(o)
	return h, err == nil
}

// nodeOf returns the node with the hostIP. Only a trace needs it: no index is worth it.
func (n *nodeNetwork) nodeOf(hostIP netip.Addr) (string, bool) {
	all, _ := n.caches.Network.Network().V1().HostSubnets().Lister().List(labels.Everything()) // from memory
	text := hostIP.String()
	for _, o := range all {
		if o.HostIP == text {
			return o.Name, true
		}
	}
	return "", false
}

// versionTimeout is how long a status waits for vswitchd.
const versionTimeout = time.Second

// switchVersion reads the version of vswitchd, once for each connection to it.
type switchVersion struct {
	bridge *native.Native

	mu      sync.Mutex
	session int64
	text    string
}

// get returns the version; "" if vswitchd does not answer, or another request waits for it: requests must not queue behind a vswitchd that hangs.
func (v *switchVersion) get(ctx context.Context) string {
	if !v.mu.TryLock() {
		return ""
	}
	defer v.mu.Unlock()
	session := v.bridge.Session()
	if v.text != "" && v.session == session {
		return v.text
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	text, err := v.bridge.Version(ctx)
	if err != nil {
		return ""
	}
	v.text, v.session = text, session
	return text
}
