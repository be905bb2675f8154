package diagnosticsapi

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	policyfake "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/fakeapi"
	"github.com/ovsdn/ovsdn/test/fakeca"
)

// run runs a server with informers of fake clients until the test ends.
func run(t *testing.T, kube *fake.Clientset, subnets ...runtime.Object) *Server {
	t.Helper()
	network := networkfake.NewSimpleClientset(subnets...)
	s, err := newWithInformers(t.Context(), Config{Kube: kube, Network: network, Policies: policyfake.NewClientset(), Agents: answering(""), Accept: func(*http.Request) {}},
		fakeapi.NewInformer(kube.CoreV1().ConfigMaps("kube-system"), &corev1.ConfigMap{}), fakeapi.NewInformer(network.NetworkV1().HostSubnets(), &networkv1.HostSubnet{}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	return s
}

// A change of the front proxy's CA takes effect without a restart. A deleted ConfigMap accepts no client.
func TestServer_followsConfigMap(t *testing.T) {
	first, second := fakeca.New(t, "first"), fakeca.New(t, "second")
	kube := fake.NewClientset()
	s := run(t, kube)
	accepts := func(ca *fakeca.Authority) bool {
		headers := s.proxy.headers.Load()
		return headers != nil && headers.verify([]*x509.Certificate{ca.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth).Leaf}, time.Now()) == nil
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		await.OK(t, 90*time.Second, func(context.Context) error {
			if !ok() {
				return errors.New("not " + what)
			}
			return nil
		})
	}
	eventually("read", func() bool { return s.proxy.hasRead() && s.nodes.HasSynced() })
	if accepts(first) {
		t.Error("accepted without a ConfigMap")
	}
	api := kube.CoreV1().ConfigMaps("kube-system")
	// A fake client does not report what changes between the list and the watch: write again until it is read.
	publish := func(ca string) {
		t.Helper()
		if _, err := api.Update(t.Context(), configMap(ca, "front-proxy-client"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := api.Create(t.Context(), configMap(first.PEM(), "front-proxy-client"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("accepted", func() bool { publish(first.PEM()); return accepts(first) && !accepts(second) })
	publish("invalid")
	publish(second.PEM())
	eventually("replaced", func() bool { return accepts(second) && !accepts(first) })
	if err := api.Delete(t.Context(), authenticationConfigMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("refused", func() bool { return !accepts(second) })
}

func TestFrontProxy_retainsLastValidConfigMap(t *testing.T) {
	ca := fakeca.New(t, "ca")
	p := &frontProxy{}
	update := func(o *corev1.ConfigMap) *requestHeaders { p.update(t.Context(), o); return p.headers.Load() }
	before := update(configMap(ca.PEM()))
	if before == nil || update(configMap("invalid")) != before {
		t.Error("an invalid ConfigMap replaced a valid one")
	}
	other := configMap(fakeca.New(t, "other").PEM())
	other.Name = "tenant"
	if update(other) != before {
		t.Error("another ConfigMap replaced the one of the API server")
	}
	o := configMap(ca.PEM())
	delete(o.Data, caKey)
	if update(o) != nil {
		t.Error("accepts clients of an API server without a front proxy")
	}
}

func TestServer_readsHostSubnets(t *testing.T) {
	subnet := func(name, hostIP string, annotations ...string) *networkv1.HostSubnet {
		o := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}, Host: name, HostIP: hostIP, Subnet: "10.128.0.0/23"}
		for _, key := range annotations {
			o.Annotations[key] = "x"
		}
		return o
	}
	labeled := subnet("node1", "192.0.2.1", "example.com/large")
	labeled.Labels = map[string]string{"a": "b"}
	otherHost := subnet("node6", "192.0.2.6")
	otherHost.Host = "node1"
	s := run(t, fake.NewClientset(),
		subnet("node3", "192.0.2.3", networkv1.AssignHostSubnetAnnotation), subnet("node2", "127.0.0.1"), labeled, subnet("node4", "192.0.2.4", config.ProposedAnnotation),
		subnet("node5", "192.0.2.5", config.NodeDeletedAnnotation), otherHost, subnet("node7", "192.0.2.7", networkv1.FixedVNIDHostAnnotation))
	await.OK(t, 90*time.Second, func(context.Context) error {
		if !s.nodes.HasSynced() {
			return errors.New("HostSubnets not read")
		}
		return nil
	})
	var got []string
	for _, n := range s.nodes.List() {
		got = append(got, fmt.Sprint(n.Name, " ", n.HostIP, " ", n.Labels, " ", n.NoAgent, " ", n.IsExpected))
		if one, ok := s.nodes.Get(n.Name); !ok || cmp.Diff(n.NoAgent, one.NoAgent) != "" {
			t.Errorf("%s: got %+v, want %+v", n.Name, one, n)
		}
	}
	if diff := cmp.Diff([]string{
		"node1 192.0.2.1 map[a:b]  false",
		"node2 invalid IP map[] invalid HostSubnet: hostIP 127.0.0.1 can't be reached by other nodes: write the node's address in their network false",
		"node3 192.0.2.3 map[] an external machine, which has no agent true",
		"node5 192.0.2.5 map[] its Node was deleted; the HostSubnet is retained for a time true",
		"node6 192.0.2.6 map[] invalid HostSubnet: host is not the object's name false",
		"node7 192.0.2.7 map[] an external machine, which has no agent true",
	}, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if _, ok := s.nodes.Get("node4"); ok {
		t.Error("got a node whose subnet is only proposed")
	}
	for _, obj := range s.subnets.GetStore().List() {
		if o := obj.(*networkv1.HostSubnet); o.Annotations["example.com/large"] != "" {
			t.Errorf("%s: the cache has annotations that nothing reads", o.Name)
		}
	}
}
