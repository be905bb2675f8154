package diagnosticsapi

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// Pods of the namespaces a and b on two nodes.
func tracedNodes() nodeList {
	return nodeList{
		{Name: "node1", HostIP: netip.MustParseAddr("192.0.2.1"), Subnet: "10.128.0.0/23"},
		{Name: "node2", HostIP: netip.MustParseAddr("192.0.2.2"), Subnet: "10.128.2.0/23"},
	}
}

func tracedPod(namespace, name, node, addr string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addr},
	}
}

func tracedNetwork() *networkv1.ClusterNetwork {
	n := config.Network{
		Mode: config.ModeNetworkPolicy, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"), VXLANPort: 4789,
		ClusterNetworks: []config.ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}},
	}
	accepted, _ := n.Accepted() // never fails
	o := n.Object()
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, config.AcceptedAnnotation, accepted)
	return o
}

// queriedPacket returns the packet that a query asks for, with its defaults.
func queriedPacket(query url.Values) diagnostics.TracePacket {
	number := func(name string) uint64 {
		n, _ := strconv.ParseUint(query.Get(name), 10, 32) // 0 if it is not set
		return n
	}
	return diagnostics.TracePacket{
		From: query.Get("from"), VNID: uint32(number("vnid")), Origin: diagnostics.PacketOrigin(query.Get("origin")), EgressIP: query.Get("egressIP"), Endpoint: query.Get("endpoint"), //nolint:gosec // in the range
		Protocol: query.Get("protocol"), Source: query.Get("source"), Destination: query.Get("destination"),
		SourcePort: uint16(number("sourcePort")), DestinationPort: uint16(number("destinationPort")), //nolint:gosec // in the range
		Conntrack: diagnostics.ConntrackState(cmp.Or(query.Get("conntrack"), string(diagnostics.ConntrackNew))),
	}
}

// tracingAgents are agents of pods that node2 denies all packets of tenants to by policies of the namespaces b and hidden, and delivers replies.
func tracingAgents(_ context.Context, node, path string, query url.Values) (string, error) {
	packet := diagnostics.TracePacket{Protocol: query.Get("protocol"), Source: query.Get("source"), Destination: query.Get("destination")}
	answer := diagnostics.NodeTrace{Packet: queriedPacket(query), Verdict: diagnostics.VerdictForwarded, Steps: []diagnostics.TraceStep{{TableName: "classify", Match: "in_port=3"}}}
	switch {
	case path != diagnostics.NodeTracePath:
		return "", fmt.Errorf("got path %s", path)
	case node == "node2" && strings.HasPrefix(packet.Destination, "10.128.2."):
		answer.Verdict, answer.Reason = diagnostics.VerdictDropped, "secret policies deny it"
		answer.Objects = []diagnostics.TraceObject{{Object: "networkpolicy/b/own", Rule: "ingress 3"}, {Object: "networkpolicy/hidden/secret", Rule: "ingress 4"}, {Object: "clusternetworkpolicy/admin"}}
		answer.Steps = append(answer.Steps, diagnostics.TraceStep{TableName: "ingress-denied", Match: "secret", Actions: "secret", Objects: answer.Objects})
	case strings.HasPrefix(packet.Destination, "10.128.2."):
		answer.Outputs = []diagnostics.TraceOutput{{To: "node/node2", VNID: 7, Packet: packet}}
	case packet.Destination == "10.128.0.5":
		answer.Verdict, answer.Outputs = diagnostics.VerdictDelivered, []diagnostics.TraceOutput{{To: "pod/a/web", Packet: packet}}
	case packet.Destination == "10.128.0.6":
		answer.Verdict, answer.Outputs = diagnostics.VerdictDelivered, []diagnostics.TraceOutput{{To: "pod/a/db", Packet: packet}}
	default:
		answer.Outputs = []diagnostics.TraceOutput{{To: "host", Packet: packet}}
	}
	content, err := json.Marshal(answer)
	return string(content), err
}

// newTraceFixture serves two nodes with pods. The rights are lines such as "u create traces a".
func newTraceFixture(t *testing.T, rights ...string) *fixture {
	t.Helper()
	return newTraceFixtureOf(t, tracingAgents, rights...)
}

// newTraceFixtureOf is newTraceFixture with other agents.
func newTraceFixtureOf(t *testing.T, agents agentFunc, rights ...string) *fixture {
	t.Helper()
	f := newFixture(t, tracedNodes(), agents)
	f.allow = func(s authorizationv1.SubjectAccessReviewSpec) (bool, error) {
		a := s.ResourceAttributes
		wanted := strings.TrimSpace(fmt.Sprintf("%s %s %s %s%s", s.User, a.Verb, strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/"), a.Namespace, a.Name))
		return strings.Contains("\n"+strings.Join(rights, "\n")+"\n", "\n"+wanted+"\n"), nil
	}
	for _, pod := range []*corev1.Pod{tracedPod("a", "web", "node1", "10.128.0.5"), tracedPod("a", "db", "node1", "10.128.0.6"), tracedPod("b", "db", "node2", "10.128.2.7"), tracedPod("b", "web", "node1", "10.128.0.7")} {
		if err := f.kube.Tracker().Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.network.Tracker().Add(tracedNetwork()); err != nil {
		t.Fatal(err)
	}
	return f
}

// post creates a Trace of the spec as the user.
func (f *fixture) post(t *testing.T, user, namespace string, spec diagnostics.TraceSpec) response {
	t.Helper()
	content, err := json.Marshal(diagnostics.Trace{TypeMeta: typeMeta("Trace"), Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return f.postBody(t, user, "/namespaces/"+namespace+"/traces", string(content))
}

func (f *fixture) postBody(t *testing.T, user, path, body string, headers ...string) response {
	t.Helper()
	client := f.client(t, f.proxy.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth))
	return doBody(t, client, http.MethodPost, f.url+versionPath+path, body, append([]string{"X-Remote-User", user}, headers...)...)
}

func TestTraces(t *testing.T) {
	f := newTraceFixture(t, "u create traces a")
	r := f.post(t, "u", "a", diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/a/db", Port: 80})
	o := decode[diagnostics.Trace](t, r, http.StatusCreated)
	if o.Kind != "Trace" || o.APIVersion != "diagnostics.ovsdn.io/v1alpha1" || o.Namespace != "a" || o.Spec.Protocol != "TCP" || o.Status.Verdict != diagnostics.VerdictDelivered ||
		o.Status.Reason != "delivered to pod/a/db on node node1" || len(o.Status.Paths[0].Hops) != 2 || o.Status.Paths[0].Hops[0].Steps[0].Match != "in_port=3" {
		t.Errorf("got %s", r.body)
	}
}

// The rights are those of each namespace; errors name the one that is missing.
func TestTraces_access(t *testing.T) {
	spec := func(source, destination string) diagnostics.TraceSpec {
		return diagnostics.TraceSpec{Source: source, Destination: destination, Port: 80}
	}
	forbidden := func(namespace string) string {
		return `traces.diagnostics.ovsdn.io is forbidden: User "u" cannot create resource "traces" in API group "diagnostics.ovsdn.io" in the namespace "` + namespace + `"`
	}
	for name, tc := range map[string]struct {
		rights    []string
		namespace string
		spec      diagnostics.TraceSpec
		code      int
		want      string // in the body
	}{
		"no right":                      {nil, "a", spec("pod/a/web", "pod/a/db"), http.StatusForbidden, forbidden("a")},
		"not in the other's namespace":  {[]string{"u create traces a"}, "a", spec("pod/a/web", "pod/b/db"), http.StatusForbidden, forbidden("b")},
		"not for a service":             {[]string{"u create traces a"}, "a", spec("pod/a/web", "service/b/db"), http.StatusForbidden, forbidden("b")},
		"a missing pod is not revealed": {[]string{"u create traces a"}, "a", spec("pod/a/web", "pod/b/missing"), http.StatusForbidden, forbidden("b")},
		"only the other's":              {[]string{"u create traces b"}, "a", spec("pod/a/web", "pod/b/db"), http.StatusForbidden, forbidden("a")},
		"both":                          {[]string{"u create traces a", "u create traces b"}, "a", spec("pod/a/web", "pod/b/db"), http.StatusCreated, `"verdict":"Dropped"`},
		"in the destination's namespace": {[]string{"u create traces a", "u create traces b"}, "b", spec("pod/a/web", "pod/b/db"), http.StatusUnprocessableEntity,
			`spec.source: Invalid value: \"pod/a/web\": must be in the namespace of the request, \"b\"`},
		"from a node":                {[]string{"u create traces b"}, "b", spec("node/node1", "pod/b/db"), http.StatusCreated, `"verdict":"Dropped"`},
		"from a node elsewhere":      {[]string{"u create traces a", "u create traces b"}, "a", spec("node/node1", "pod/b/db"), http.StatusUnprocessableEntity, "must be in the namespace of the request"},
		"no pod":                     {[]string{"u create traces a"}, "a", spec("node/node1", "203.0.113.5"), http.StatusUnprocessableEntity, "neither the source nor the destination is a pod or a service"},
		"address of a pod of others": {[]string{"u create traces a"}, "a", spec("pod/a/web", "10.128.2.7"), http.StatusUnprocessableEntity, "is an address of the pod network"},
		"missing pod":                {[]string{"u create traces a"}, "a", spec("pod/a/web", "pod/a/missing"), http.StatusNotFound, `pods \"missing\" not found`},
	} {
		f := newTraceFixture(t, tc.rights...)
		r := f.post(t, "u", tc.namespace, tc.spec)
		body := r.body
		if r.code == http.StatusForbidden {
			body = decode[metav1.Status](t, r, r.code).Message
		}
		if r.code != tc.code || !strings.Contains(body, tc.want) {
			t.Errorf("%s: got status %d with %s, want %d with %s", name, r.code, r.body, tc.code, tc.want)
		}
		if r.code == http.StatusNotFound && decode[metav1.Status](t, r, r.code).Details.Group != diagnostics.Group {
			t.Errorf("%s: got the details of another group, which clients take for a missing API: %s", name, r.body)
		}
	}
}

// Names of objects of namespaces in which the user may not create Traces are nowhere in the answer.
func TestTraces_redacted(t *testing.T) {
	rights := []string{"u create traces a", "u create traces b"}
	spec := diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/b/db", Port: 80}
	for _, tc := range []struct {
		more   []string
		reason string
	}{
		{nil, "on node node2: table ingress-denied (0) dropped it: networkpolicy/b/own (ingress 3), another tenant's policy, a ClusterNetworkPolicy"},
		{[]string{"u get clusternetworkpolicies admin"}, "on node node2: table ingress-denied (0) dropped it: networkpolicy/b/own (ingress 3), another tenant's policy, clusternetworkpolicy/admin"},
		{[]string{"u get clusternetworkpolicies admin", "u create traces hidden"}, "on node node2: secret policies deny it"},
	} {
		f := newTraceFixture(t, append(rights, tc.more...)...)
		r := f.post(t, "u", "a", spec)
		o := decode[diagnostics.Trace](t, r, http.StatusCreated)
		if o.Status.Reason != tc.reason {
			t.Errorf("%v: got the reason %s, want %s", tc.more, o.Status.Reason, tc.reason)
		}
		if seesAll := len(tc.more) == 2; seesAll != strings.Contains(r.body, "secret") || seesAll != strings.Contains(r.body, "hidden") {
			t.Errorf("%v: got %s", tc.more, r.body)
		}
	}
}

// A review that fails shows nothing.
func TestTraces_failedReviewShowsNothing(t *testing.T) {
	f := newTraceFixture(t)
	f.allow = func(s authorizationv1.SubjectAccessReviewSpec) (bool, error) {
		if s.ResourceAttributes.Namespace == "hidden" || s.ResourceAttributes.Resource != traces {
			return true, errors.New("no answer")
		}
		return true, nil
	}
	r := f.post(t, "u", "a", diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/b/db", Port: 80})
	if r.code != http.StatusCreated || strings.Contains(r.body, "secret") || strings.Contains(r.body, "clusternetworkpolicy/admin") {
		t.Errorf("got status %d with %s", r.code, r.body)
	}
}

func TestTraces_service(t *testing.T) {
	f := newTraceFixture(t, "u create traces a")
	port, name := int32(8080), ""
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "api"}, Spec: corev1.ServiceSpec{ClusterIP: "172.30.0.9", Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "api-1", Labels: map[string]string{discoveryv1.LabelServiceName: "api"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.128.0.6"}}, {Addresses: []string{"10.128.2.7"}}},
	}
	if err := errors.Join(f.kube.Tracker().Add(service), f.kube.Tracker().Add(slice)); err != nil {
		t.Fatal(err)
	}
	o := decode[diagnostics.Trace](t, f.post(t, "u", "a", diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/api"}), http.StatusCreated)
	if len(o.Status.Paths) != 2 || o.Status.Paths[0].Verdict != diagnostics.VerdictDelivered || o.Status.Paths[1].Verdict != diagnostics.VerdictDropped {
		t.Errorf("got %+v", o.Status)
	}
}

func TestTraces_bodies(t *testing.T) {
	const valid = `"spec":{"source":"pod/a/web","destination":"pod/a/db","port":80`
	for name, tc := range map[string]struct {
		body, query, contentType string
		code                     int
		want                     string
	}{
		"minimal":               {`{` + valid + `}}`, "", "application/json", http.StatusCreated, ""},
		"without content type":  {`{` + valid + `}}`, "", "", http.StatusCreated, ""},
		"YAML":                  {"spec: {}", "", "application/yaml", http.StatusUnsupportedMediaType, "only application/json"},
		"empty":                 {"", "", "", http.StatusBadRequest, "the object provided is no Trace"},
		"not JSON":              {"\x1b[2J", "", "", http.StatusBadRequest, "the object provided is no Trace"},
		"a list":                {"[]", "", "", http.StatusBadRequest, "the object provided is no Trace"},
		"wrong type":            {`{"spec":{"port":"80"}}`, "", "", http.StatusBadRequest, "port"},
		"large":                 {`{"a":"` + strings.Repeat("a", maxTraceBody) + `"}`, "", "", http.StatusRequestEntityTooLarge, "limit is 16384 bytes"},
		"another kind":          {`{"kind":"Pod","apiVersion":"v1",` + valid + `}}`, "", "", http.StatusBadRequest, "is of kind Pod of v1"},
		"another namespace":     {`{"metadata":{"namespace":"b"},` + valid + `}}`, "", "", http.StatusBadRequest, "does not match the namespace"},
		"unknown field":         {`{` + valid + `,"x":1}}`, "", "", http.StatusCreated, ""},
		"unknown field, Warn":   {`{` + valid + `,"x":1}}`, "?fieldValidation=Warn", "", http.StatusCreated, ""},
		"unknown field, Ignore": {`{` + valid + `,"x":1}}`, "?fieldValidation=Ignore", "", http.StatusCreated, ""},
		"unknown field, Strict": {`{` + valid + `,"x":1}}`, "?fieldValidation=Strict", "", http.StatusBadRequest, `strict decoding error: unknown field \"spec.x\"`},
		"duplicate, Strict":     {`{` + valid + `,"port":81}}`, "?fieldValidation=Strict", "", http.StatusBadRequest, `duplicate field \"spec.port\"`},
		"another validation":    {`{` + valid + `}}`, "?fieldValidation=x", "", http.StatusBadRequest, "Ignore, Warn or Strict"},
		"invalid values":        {`{"spec":{"source":"pod/a/web","destination":"x","protocol":"tcp","port":-1}}`, "", "", http.StatusUnprocessableEntity, "spec.destination"},
	} {
		f := newTraceFixture(t, "u create traces a")
		var headers []string
		if tc.contentType != "" {
			headers = []string{"Content-Type", tc.contentType}
		}
		r := f.postBody(t, "u", "/namespaces/a/traces"+tc.query, tc.body, headers...)
		if r.code != tc.code || !strings.Contains(r.body, tc.want) {
			t.Errorf("%s: got status %d with %.300s, want %d with %q", name, r.code, r.body, tc.code, tc.want)
		}
		wantWarning := strings.HasPrefix(name, "unknown field") && r.code == http.StatusCreated && !strings.Contains(name, "Ignore")
		if got := r.header.Get("Warning"); wantWarning != (got == `299 - "unknown field \"spec.x\""`) {
			t.Errorf("%s: got warning %s", name, got)
		}
	}
}

// Traces of one user, with any of its tokens, and those of one namespace leave room for those of others. A body that is not sent occupies no slot.
func TestTraces_limits(t *testing.T) {
	f := newTraceFixture(t, "u create traces a", "u2 create traces a", "v create traces b")
	started, proceed := make(chan struct{}, 100), make(chan struct{})
	f.Agents = agentFunc(func(ctx context.Context, node, path string, query url.Values) (string, error) {
		started <- struct{}{}
		select {
		case <-proceed:
		case <-ctx.Done():
		}
		return tracingAgents(ctx, node, path, query)
	})
	client := f.client(t, f.proxy.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth))
	const spec, path = `{"spec":{"source":"pod/NS/web","destination":"pod/NS/db","port":80}}`, versionPath + "/namespaces/NS/traces"
	post := func(user, namespace, credential string) response {
		return doBody(t, client, http.MethodPost, f.url+strings.ReplaceAll(path, "NS", namespace), strings.ReplaceAll(spec, "NS", namespace),
			"X-Remote-User", user, "X-Remote-Extra-Authentication.kubernetes.io%2Fcredential-Id", "JTI="+credential)
	}
	var running sync.WaitGroup
	run := func(user, namespace, credential string) {
		running.Go(func() {
			if r := post(user, namespace, credential); r.code != http.StatusCreated {
				t.Errorf("%s: got status %d with %s", user, r.code, r.body)
			}
		})
		<-started
	}
	for i := range maxUserTraces {
		run("u", "a", fmt.Sprint(i))
	}
	for _, user := range []string{"u", "u2"} {
		if r := post(user, "a", "another"); r.code != http.StatusTooManyRequests || r.header.Get("Retry-After") == "" {
			t.Errorf("a third trace in the namespace, of %s: got status %d with %s, want 429", user, r.code, r.body)
		}
	}
	if r := f.postBody(t, "u", "/namespaces/a/traces", "{"); r.code != http.StatusBadRequest {
		t.Errorf("an invalid body: got status %d with %s, want 400: it needs no slot", r.code, r.body)
	}
	run("v", "b", "")
	close(proceed)
	running.Wait()
}

func TestUserLimit(t *testing.T) {
	l := newUserLimit(4, 2)
	token := func(name, id string) user {
		return user{name: name, extra: map[string]authorizationv1.ExtraValue{"authentication.kubernetes.io/credential-id": {id}}}
	}
	var releases []func()
	for _, tc := range []struct {
		user      user
		namespace string
		accepted  bool
	}{
		{token("u", "1"), "a", true}, {token("u", "2"), "b", true}, {token("u", "3"), "c", false}, // two of one user
		{user{name: "v"}, "a", true}, {user{name: "w"}, "a", false}, // two of one namespace
		{user{name: "a"}, "u", true}, {user{name: "x"}, "x", false}, // four in all
	} {
		release, err := l.acquire(tc.user, tc.namespace, "traces")
		if (err == nil) != tc.accepted {
			t.Errorf("%s in %s: got error %v, want accepted: %v", tc.user.name, tc.namespace, err, tc.accepted)
		}
		if err == nil {
			releases = append(releases, release)
		}
	}
	for _, release := range releases {
		release()
	}
	if len(l.by) > 0 || l.sum > 0 {
		t.Errorf("after the last trace: got %v, want no users", l.by)
	}
}

// The body of a request is hostile input.
func FuzzTraceBody(f *testing.F) {
	f.Add(`{"kind":"Trace","spec":{"source":"pod/a/web","destination":"pod/b/db","port":80,"port":81,"x":{}}}`, "application/json", "Strict")
	f.Add(`[{"\u001b":1e999}]`, "text/html;a", "\x1b")
	f.Fuzz(func(t *testing.T, body, contentType, validation string) {
		for _, c := range []*creation{newTrace(), newProbe()} {
			warnings, err := c.decode(strings.NewReader(body), contentType, url.Values{"fieldValidation": {validation}})
			if err != nil {
				warnings = []string{err.Error()}
			} else if _, errs := c.parse(); len(errs) > 0 {
				warnings = append(warnings, c.invalid("", errs).Error())
			}
			for _, text := range warnings {
				if printable(text, len(text)) != text {
					t.Errorf("%s: got %q, which is not printable", c.kind, text)
				}
			}
		}
	})
}
