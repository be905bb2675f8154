package node

import (
	"context"
	"crypto/x509"
	"net/http"
	"sync"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/agentmetrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/diagnosticsserver"
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
		Mode: n.network.Mode, HostSubnet: n.hostSubnet, Store: n.store, Switch: n.agent.bridge, Pods: n.pods.Pods, Addrs: n.ipam.Usage,
		Drops: sampler.Drops, Peers: n.pinger.Problems,
		HasEgressPolicy: n.hasEgressPolicy,
	}
	if n.policies != nil {
		d.Policies = n.policies
	}
	n.agent.diagnostics.SetNetwork(d)
}

func (n *nodeNetwork) hasEgressPolicy(namespace, name string) bool {
	_, err := n.caches.Network.Network().V1().EgressNetworkPolicies().Lister().EgressNetworkPolicies(namespace).Get(name)
	return err == nil // a lister has no error but NotFound
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
