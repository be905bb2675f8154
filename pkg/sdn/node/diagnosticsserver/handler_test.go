package diagnosticsserver

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/test/fakeca"
)

func TestServeHTTP_certificates(t *testing.T) {
	ca, other := fakeca.New(t, "diagnostics"), fakeca.New(t, "diagnostics")
	pool := ca.Pool()
	h := New(Options{
		NodeName: "node1", CAs: func() *x509.CertPool { return pool }, Ready: func() error { return nil },
		Version: func(*http.Request) (agent, ovs string) { return "", "" },
	})
	get := func(certificates ...*x509.Certificate) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, diagnostics.StatusPath, nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: certificates}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	const client, server = x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	valid := ca.Issue(t, certificates.ControllerName, client).Leaf
	for name, tc := range map[string]struct {
		chain []*x509.Certificate
		code  int
	}{
		"a controller's":                     {[]*x509.Certificate{valid}, http.StatusOK},
		"none":                               {nil, http.StatusUnauthorized},
		"of another CA":                      {[]*x509.Certificate{other.Issue(t, certificates.ControllerName, client).Leaf}, http.StatusForbidden},
		"of another CA, which is sent":       {[]*x509.Certificate{other.Issue(t, certificates.ControllerName, client).Leaf, other.Certificate}, http.StatusForbidden},
		"of another CA, with a valid one":    {[]*x509.Certificate{other.Issue(t, certificates.ControllerName, client).Leaf, valid}, http.StatusForbidden},
		"an agent's, for servers":            {[]*x509.Certificate{ca.Issue(t, certificates.ControllerName, server).Leaf}, http.StatusForbidden},
		"of another name":                    {[]*x509.Certificate{ca.Issue(t, "node2", client).Leaf}, http.StatusForbidden},
		"of a name that begins like it":      {[]*x509.Certificate{ca.Issue(t, certificates.ControllerName+"x", client).Leaf}, http.StatusForbidden},
		"expired":                            {[]*x509.Certificate{ca.IssueExpired(t, certificates.ControllerName, client).Leaf}, http.StatusForbidden},
		"the CA itself, which is no clients": {[]*x509.Certificate{ca.Certificate}, http.StatusForbidden},
	} {
		w := get(tc.chain...)
		if w.Code != tc.code {
			t.Errorf("%s: got %d: %s, want %d", name, w.Code, w.Body, tc.code)
		}
		if tc.code != http.StatusOK && (w.Header().Get("Connection") != "close" || w.Body.Len() < 20 || strings.Contains(w.Body.String(), "agentVersion")) {
			t.Errorf("%s: got %q with Connection: %q, want a text and a closed connection", name, w.Body, w.Header().Get("Connection"))
		}
	}
	pool = nil
	if w := get(valid); w.Code != http.StatusUnauthorized {
		t.Errorf("without a CA: got %d, want 401", w.Code)
	}
}

func TestServeHTTP_paths(t *testing.T) {
	c := newClient(t)
	for _, tc := range []struct {
		method, path string
		code         int
	}{
		{http.MethodGet, diagnostics.StatusPath, http.StatusOK},
		{http.MethodPost, diagnostics.StatusPath, http.StatusMethodNotAllowed},
		{http.MethodGet, diagnostics.NodeTracesPath, http.StatusMethodNotAllowed},
		{http.MethodPost, diagnostics.NodeTracesPath, http.StatusBadRequest},
		{http.MethodGet, diagnostics.StatusPath + "/x", http.StatusNotFound},
		{http.MethodGet, "/diagnostics/v9/status", http.StatusNotFound},
	} {
		if w := c.do(t.Context(), tc.method, tc.path); w.Code != tc.code {
			t.Errorf("%s %s: got %d: %s, want %d", tc.method, tc.path, w.Code, w.Body, tc.code)
		}
	}
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	var got diagnostics.NodeStatus
	n.get(t, diagnostics.StatusPath, &got)
	st := got.Status
	if got.Name != "node1" || got.Kind != "NodeStatus" || got.APIVersion != "diagnostics.ovsdn.io/v1alpha1" || !st.Ready || st.NotReady != "" ||
		st.AgentVersion != "v1.2.3" || st.OVSVersion != "3.1.0" || st.Datapath != "netdev" || st.Mode != "networkpolicy" ||
		st.HostIP != "192.0.2.1" || st.Subnet != "10.128.0.0/23" || st.Pods != 1 || st.Addresses != 509 || st.Free != 508 || st.Drift != 0 ||
		st.Flows != len(n.sw.Dump(t)) || st.LastWrite == nil || st.LastAudit == nil || st.Started.IsZero() || len(st.RefusedFlows) > 0 ||
		!slices.Equal(st.Drops, n.network.Drops()) || !slices.Equal(st.EgressIPsNotPlaced, n.network.EgressIPsNotPlaced()) ||
		!slices.Equal(st.PeerProblems, []diagnostics.PeerProblem{{Node: "node2", Problem: "no answer"}}) || st.Peers != 4 || st.AnsweringPeers != 3 {
		t.Errorf("got %+v", got)
	}
	version, err := n.bridge.Version(t.Context())
	if want := strings.Fields(n.sw.VSCtl(t, "--version"))[3]; err != nil || version != want {
		t.Errorf("got version %q of Open vSwitch, %v, want %s", version, err, want)
	}
}

// A status with all egress IPs of a node and errors that JSON escapes is one that the controller reads.
func TestStatus_egressIPsNotPlaced(t *testing.T) {
	c := newClient(t)
	n := newNetwork(flowstore.New(ovs.NewFake("br0")), nil)
	ip := netip.MustParseAddr("198.51.100.0")
	var all []diagnostics.EgressIPNotPlaced
	for range config.MaxNodeEgressIPs {
		all = append(all, diagnostics.EgressIPNotPlaced{IP: ip.String(), Problem: strings.Repeat("<", 116) + strings.Repeat("é", 1<<10)})
		ip = ip.Next()
	}
	n.EgressIPsNotPlaced = func() []diagnostics.EgressIPNotPlaced { return all }
	c.SetNetwork(n)
	w := c.do(t.Context(), http.MethodGet, diagnostics.StatusPath)
	if size := w.Body.Len(); size > diagnostics.MaxStatusAnswer {
		t.Errorf("got %d bytes, want at most %d", size, diagnostics.MaxStatusAnswer)
	}
	var got diagnostics.NodeStatus
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	listed := got.Status.EgressIPsNotPlaced
	if len(listed) != diagnostics.MaxEgressIPsNotPlaced || listed[0].IP != all[0].IP || listed[0].Problem != strings.Repeat("<", 116)+"…" {
		t.Errorf("got %d egress IPs, the first %+v, want %d", len(listed), listed[0], diagnostics.MaxEgressIPsNotPlaced)
	}
}

// Open vSwitch may fail during the set-up, which returns its error, or later, when the pods' manager finds it.
func TestStatus_switchFails(t *testing.T) {
	lost := ovs.NewUnavailable(errors.New("connection to the bridge lost"))
	for name, tc := range map[string]struct {
		ready, healthy error
		isSetUp        bool
		want           string
	}{
		"set-up, another failure": {ready: errors.New("waiting for the HostSubnet")},
		"set-up":                  {ready: errors.Join(fmt.Errorf("bridge br0: %w", lost), errors.New("no lease")), want: "bridge br0: " + lost.Error() + "\nno lease"},
		"later":                   {ready: errors.New("the Node's condition"), isSetUp: true, healthy: lost, want: lost.Error()},
		"later, still ready":      {isSetUp: true, healthy: lost, want: lost.Error()},
		"answers":                 {isSetUp: true},
	} {
		c := newClient(t, func(o *Options) { o.Ready = func() error { return tc.ready } })
		if tc.isSetUp {
			n := newNetwork(flowstore.New(ovs.NewFake("br0")), nil)
			n.SwitchHealthy = func() error { return tc.healthy }
			c.SetNetwork(n)
		}
		var got diagnostics.NodeStatus
		c.get(t, diagnostics.StatusPath, &got)
		if got.Status.SwitchError != tc.want {
			t.Errorf("%s: got %q, want %q", name, got.Status.SwitchError, tc.want)
		}
	}
}

func TestStatus_notReady(t *testing.T) {
	c := newClient(t, func(o *Options) { o.Ready = func() error { return errors.New("waiting for the HostSubnet") } })
	var got diagnostics.NodeStatus
	c.get(t, diagnostics.StatusPath, &got)
	if st := got.Status; st.Ready || st.NotReady != "waiting for the HostSubnet" || st.AgentVersion != "v1.2.3" || st.Mode != "" || st.LastWrite != nil {
		t.Errorf("got %+v, want a node without a network", st)
	}
}
