package certificaterequests

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

const patience = 2 * time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a leader's controller with the authority and the rights of deploy/rbac, beside two nodes.
func start(t *testing.T, config *rest.Config, authority *certificates.Authority) {
	t.Helper()
	apitest.ApplyRights(t, config)
	for name, hostIP := range map[string]string{"node1": "192.0.2.1", "node2": "192.0.2.2"} {
		apitest.AddNode(t, config, name, hostIP, "10.128."+hostIP[len(hostIP)-1:]+".0/24")
	}
	kube, ours := apitest.Clients(t, apitest.AsServiceAccount(config, certificates.Namespace, "ovsdn-controller"))
	c, err := New(kube, ours, func() *certificates.Authority { return authority })
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		apitest.Disconnect(kube, ours)
	})
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	kube, ours := apitest.Clients(t, config)
	t.Cleanup(func() { apitest.Disconnect(kube, ours) })
	return kube
}

// TestController creates requests, and waits for their results: those for another node than that of the sender's token are denied.
func TestController(t *testing.T) {
	authority, err := certificates.NewAuthority(time.Now(), nil)
	must(t, err)
	config := apitest.Start(t)
	t.Run("approved by another", func(t *testing.T) { testApprovedByAnother(t, config, authority) })
	start(t, config, authority)
	admin := client(t, config)
	agent := client(t, apitest.AsPod(t, config, certificates.Namespace, "ovsdn-node", "node1"))
	nowhere := client(t, apitest.AsServiceAccount(config, certificates.Namespace, "ovsdn-node"))
	for _, c := range []struct {
		name, node, hostIP string
		sender             kubernetes.Interface
		want               certificatesv1.RequestConditionType
	}{
		{"own node", "node1", "192.0.2.1", agent, certificatesv1.CertificateApproved},
		{"another node, with its own address", "node2", "192.0.2.1", agent, certificatesv1.CertificateDenied},
		{"another node", "node2", "192.0.2.2", agent, certificatesv1.CertificateDenied},
		{"address of another node", "node1", "192.0.2.2", agent, certificatesv1.CertificateDenied},
		{"token without a node", "node1", "192.0.2.1", nowhere, certificatesv1.CertificateDenied},
		{"administrator", "node1", "192.0.2.1", admin, certificatesv1.CertificateDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			content, _, err := certificates.NewRequest(c.node, netip.MustParseAddr(c.hostIP))
			must(t, err)
			o := create(t, c.sender, content)
			o = awaitFinished(t, admin, o.Name)
			if !has(o, c.want) || (len(o.Status.Certificate) > 0) != (c.want == certificatesv1.CertificateApproved) {
				t.Fatalf("got conditions %v with a certificate of %d bytes, want %s", o.Status.Conditions, len(o.Status.Certificate), c.want)
			}
			if c.want != certificatesv1.CertificateApproved {
				t.Log(o.Status.Conditions[0].Message)
				return
			}
			block, _ := pem.Decode(o.Status.Certificate)
			cert, err := x509.ParseCertificate(block.Bytes)
			must(t, err)
			bundle, err := certificates.ParseBundle(authority.Bundle())
			must(t, err)
			must(t, certificates.VerifyAgent(cert, bundle, c.node, netip.MustParseAddr(c.hostIP), time.Now()))
		})
	}
}

func create(t *testing.T, sender kubernetes.Interface, content []byte) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	o, err := sender.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: content, SignerName: certificates.SignerName, Usages: certificates.AgentUsages()},
	}, metav1.CreateOptions{})
	must(t, err)
	return o
}

func awaitFinished(t *testing.T, kube kubernetes.Interface, name string) (o *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	await.OK(t, patience, func(ctx context.Context) error {
		var err error
		if o, err = kube.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !isFinished(o) {
			return fmt.Errorf("pending: %v", o.Status.Conditions)
		}
		return nil
	})
	return o
}

// A request that is not allowed gets no certificate, also if an administrator has approved it.
func testApprovedByAnother(t *testing.T, config *rest.Config, authority *certificates.Authority) {
	kube, ours := apitest.Clients(t, config)
	defer apitest.Disconnect(kube, ours)
	c, err := New(kube, ours, func() *certificates.Authority { return authority })
	must(t, err)
	content, _, err := certificates.NewRequest("node1", netip.MustParseAddr("192.0.2.1"))
	must(t, err)
	o := create(t, kube, content)
	setCondition(o, certificatesv1.CertificateApproved, "Test", "by an administrator")
	o, err = kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), o.Name, o, metav1.UpdateOptions{})
	must(t, err)
	must(t, c.decide(t.Context(), authority, o))
	if o = awaitFinished(t, kube, o.Name); !has(o, certificatesv1.CertificateFailed) || len(o.Status.Certificate) > 0 {
		t.Errorf("got conditions %v with a certificate of %d bytes, want %s without one", o.Status.Conditions, len(o.Status.Certificate), certificatesv1.CertificateFailed)
	}
}

// A node with any number of requests does not use up the budget of another.
func TestBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets()
		for i := range nodeBurst {
			if pause := b.take("node1"); pause > 0 {
				t.Fatalf("request %d: got pause %s, want none", i, pause)
			}
		}
		for range 1000 {
			if pause := b.take("node1"); pause <= 0 || pause > nodeInterval {
				t.Fatalf("got pause %s, want one of at most %s", pause, nodeInterval)
			}
		}
		if pause := b.take("node2"); pause > 0 {
			t.Errorf("another node: got pause %s, want none", pause)
		}
		time.Sleep(nodeInterval) //nolint:forbidigo // of the bubble
		if pause := b.take("node1"); pause > 0 {
			t.Errorf("after %s: got pause %s, want none", nodeInterval, pause)
		}
	})
}

// The cache retains little of a request, whatever its size.
func TestTrim(t *testing.T) {
	large := make([]byte, 1<<20)
	o := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"a": string(large)}},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: large, Username: certificates.AgentUser, Groups: []string{string(large)},
			Extra: map[string]certificatesv1.ExtraValue{certificates.NodeNameExtra: {"node1"}, "other": {string(large)}},
		},
	}
	for _, finished := range []bool{false, true} {
		if finished {
			o.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Message: string(large)}}
		}
		trimmed, err := trim(o)
		must(t, err)
		got := trimmed.(*certificatesv1.CertificateSigningRequest)
		if got.Size() > 1000 || isFinished(got) != finished {
			t.Errorf("got %d bytes, finished: %t, want few, %t", got.Size(), isFinished(got), finished)
		}
		if node, err := certificates.RequestingNode(&got.Spec); err != nil || node != "node1" {
			t.Errorf("got node %q, error %v, want node1", node, err)
		}
	}
}
