package servingcertificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/certificaterequests"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/diagnosticsca"
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

// TestManager runs an agent's manager and a leader against an API server: controller and agent recognize each other, also after the authority was replaced.
func TestManager(t *testing.T) {
	config := apitest.Start(t)
	apitest.ApplyRights(t, config)
	hostIP := netip.MustParseAddr("192.0.2.1")
	apitest.AddNode(t, config, "node1", hostIP.String(), "10.128.1.0/24")
	admin, adminOurs := apitest.Clients(t, config)
	own := apitest.AsServiceAccount(config, certificates.Namespace, "ovsdn-controller")
	kube, ours := apitest.Clients(t, own)
	objects, err := metadata.NewForConfig(own)
	must(t, err)
	agent, agentOurs := apitest.Clients(t, apitest.AsPod(t, config, certificates.Namespace, "ovsdn-node", "node1"))

	credentials, err := diagnosticsca.NewCredentials(kube)
	must(t, err)
	publisher, err := diagnosticsca.NewPublisher(kube, objects)
	must(t, err)
	signer, err := certificaterequests.New(kube, ours, credentials.Authority)
	must(t, err)
	m, err := New(agent, "node1")
	must(t, err)
	m.spread = 0
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context){credentials.Run, publisher.Run, signer.Run, m.Run} {
		running.Go(func() { run(ctx) })
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
		apitest.Disconnect(admin, adminOurs)
		apitest.Disconnect(kube, ours)
		apitest.Disconnect(agent, agentOurs)
	})

	connect := func(node string) error { return handshake(t, m, credentials.ClientTLS(node)) }
	if err := connect("node1"); err == nil {
		t.Error("got a connection before there is a certificate")
	}
	m.SetHostIP(hostIP)
	await.OK(t, patience, func(context.Context) error { return connect("node1") })
	if err := connect("node2"); err == nil {
		t.Error("the agent of node1 is accepted as that of node2")
	}
	if err := handshake(t, m, &tls.Config{InsecureSkipVerify: true}); err == nil { //nolint:gosec // only the server's check matters
		t.Error("the agent accepts a client without a certificate")
	}

	previous := m.ServingCertificate()
	must(t, admin.CoreV1().Secrets(certificates.Namespace).Delete(t.Context(), certificates.ObjectName, metav1.DeleteOptions{}))
	await.OK(t, patience, func(context.Context) error {
		if m.ServingCertificate() == previous {
			return errors.New("the agent has the certificate of the previous authority")
		}
		return connect("node1")
	})
}

// handshake connects to a server with the agent's certificate, which accepts controllers only.
func handshake(t *testing.T, m *Manager, client *tls.Config) error {
	t.Helper()
	serving := m.ServingCertificate()
	if serving == nil {
		return errors.New("the agent has no certificate")
	}
	a, b := net.Pipe()
	server := tls.Server(a, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*serving}, ClientAuth: tls.RequestClientCert})
	verified := make(chan error, 1)
	go func() {
		err := server.HandshakeContext(t.Context())
		if err == nil {
			err = certificates.VerifyClient(server.ConnectionState().PeerCertificates, m.ClientCAs(), certificates.ControllerName)
		}
		_ = a.Close()
		verified <- err
	}()
	err := tls.Client(b, client).HandshakeContext(t.Context())
	_ = b.Close()
	return errors.Join(err, <-verified)
}

// Without a valid authority no client is accepted, also if there was one.
func TestManager_withoutAuthority(t *testing.T) {
	now := time.Now()
	authority, err := certificates.NewAuthority(now, nil)
	must(t, err)
	client, err := authority.Controller(now, false)
	must(t, err)
	m := &Manager{changed: make(chan struct{}, 1)}
	verify := func() error {
		return certificates.VerifyClient([]*x509.Certificate{client.Leaf}, m.ClientCAs(), certificates.ControllerName)
	}
	if verify() == nil {
		t.Error("accepted before there is an authority")
	}
	for _, invalid := range []string{"", "x"} {
		m.update(configMap(string(authority.Bundle())))
		must(t, verify())
		m.update(configMap(invalid))
		if verify() == nil {
			t.Errorf("accepted with %q as the authority", invalid)
		}
	}
}

func configMap(bundle string) *corev1.ConfigMap {
	return &corev1.ConfigMap{Data: map[string]string{certificates.BundleKey: bundle}}
}
