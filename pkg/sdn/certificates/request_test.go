package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// request returns the request of a template in PEM.
func request(t *testing.T, template x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: der})
}

func TestNewRequest(t *testing.T) {
	now, hostIP := time.Now(), netip.MustParseAddr("192.0.2.1")
	content, key, err := NewRequest("10.0.0.1", hostIP) // a Node can have the name of an address
	if err != nil {
		t.Fatal(err)
	}
	spec := &certificatesv1.CertificateSigningRequestSpec{Request: content, Usages: AgentUsages()}
	parsed, err := ValidateRequest(spec, "10.0.0.1", hostIP)
	if err != nil {
		t.Fatal(err)
	}
	a := newStored(t, now, nil)
	pair := must[*tls.Certificate](t)(Pair(must[[]byte](t)(a.Agent(now, parsed)), key))
	if err := VerifyAgent(pair.Leaf, a.certs, "10.0.0.1", hostIP, now); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"another node":      VerifyAgent(pair.Leaf, a.certs, "node2", hostIP, now),
		"another address":   VerifyAgent(pair.Leaf, a.certs, "10.0.0.1", netip.MustParseAddr("192.0.2.2"), now),
		"another authority": VerifyAgent(pair.Leaf, newStored(t, now, nil).certs, "10.0.0.1", hostIP, now),
		"expired":           VerifyAgent(pair.Leaf, a.certs, "10.0.0.1", hostIP, now.Add(agentLifetime+time.Minute)),
		"as a client":       VerifyClient([]*x509.Certificate{pair.Leaf}, a.Pool(), AgentName("10.0.0.1")),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A node that is named like the controllers' Service gets no certificate of that name.
func TestAgentServerName_isNoService(t *testing.T) {
	hostIP := netip.MustParseAddr("192.0.2.1")
	content, _, err := NewRequest(ServiceName, hostIP)
	if err != nil {
		t.Fatal(err)
	}
	a := newStored(t, time.Now(), nil)
	parsed := must[*x509.CertificateRequest](t)(ValidateRequest(&certificatesv1.CertificateSigningRequestSpec{Request: content, Usages: AgentUsages()}, ServiceName, hostIP))
	block, _ := pem.Decode(must[[]byte](t)(a.Agent(time.Now(), parsed)))
	cert := must[*x509.Certificate](t)(x509.ParseCertificate(block.Bytes))
	if _, err := cert.Verify(x509.VerifyOptions{Roots: a.Pool(), DNSName: ServiceName}); err == nil {
		t.Error("the certificate of an agent is one of the controllers' Service")
	}
}

func TestRequestingNode(t *testing.T) {
	extra := func(nodes ...string) map[string]certificatesv1.ExtraValue {
		return map[string]certificatesv1.ExtraValue{NodeNameExtra: nodes}
	}
	for _, c := range []struct {
		name string
		spec certificatesv1.CertificateSigningRequestSpec
		want string
	}{
		{"agent", certificatesv1.CertificateSigningRequestSpec{Username: AgentUser, Extra: extra("node1")}, "node1"},
		{"another account", certificatesv1.CertificateSigningRequestSpec{Username: "system:serviceaccount:tenant:ovsdn-node", Extra: extra("node1")}, ""},
		{"kubelet", certificatesv1.CertificateSigningRequestSpec{Username: "system:node:node1", Extra: extra("node1")}, ""},
		{"token without a node", certificatesv1.CertificateSigningRequestSpec{Username: AgentUser}, ""},
		{"empty node", certificatesv1.CertificateSigningRequestSpec{Username: AgentUser, Extra: extra("")}, ""},
		{"two nodes", certificatesv1.CertificateSigningRequestSpec{Username: AgentUser, Extra: extra("node1", "node2")}, ""},
	} {
		if got, err := RequestingNode(&c.spec); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func TestValidateRequest_refuses(t *testing.T) {
	p256, rsaKey := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))
	p224 := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hostIP := netip.MustParseAddr("192.0.2.1")
	edit := func(edit func(*x509.CertificateRequest)) x509.CertificateRequest {
		template := x509.CertificateRequest{
			Subject: pkix.Name{CommonName: AgentName("node1")}, DNSNames: []string{AgentServerName("node1")}, IPAddresses: []net.IP{hostIP.AsSlice()},
		}
		edit(&template)
		return template
	}
	same := func(*x509.CertificateRequest) {}
	valid := request(t, edit(same), p256)
	forged := strings.Replace(string(valid), "A", "B", 1)
	for _, c := range []struct {
		name    string
		content []byte
		hostIP  netip.Addr
		usages  []certificatesv1.KeyUsage
		ok      bool
	}{
		{"agent", valid, hostIP, AgentUsages(), true},
		{"RSA", request(t, edit(same), rsaKey), hostIP, AgentUsages(), true},
		{"without an address", request(t, edit(func(r *x509.CertificateRequest) { r.IPAddresses = nil }), p256), hostIP, AgentUsages(), true},
		{"another node", request(t, edit(func(r *x509.CertificateRequest) { r.Subject.CommonName = AgentName("node2") }), p256), hostIP, AgentUsages(), false},
		{"all names of another node", request(t, edit(func(r *x509.CertificateRequest) {
			r.Subject.CommonName, r.DNSNames = AgentName("node2"), []string{AgentServerName("node2")}
		}), p256), hostIP, AgentUsages(), false},
		{"another node's DNS name", request(t, edit(func(r *x509.CertificateRequest) { r.DNSNames = []string{AgentServerName("node2")} }), p256), hostIP, AgentUsages(), false},
		{"a further DNS name", request(t, edit(func(r *x509.CertificateRequest) { r.DNSNames = append(r.DNSNames, ServiceName) }), p256), hostIP, AgentUsages(), false},
		{"no DNS name", request(t, edit(func(r *x509.CertificateRequest) { r.DNSNames = nil }), p256), hostIP, AgentUsages(), false},
		{"another address", request(t, edit(func(r *x509.CertificateRequest) { r.IPAddresses[0] = net.IPv4(192, 0, 2, 9) }), p256), hostIP, AgentUsages(), false},
		{"no HostSubnet", valid, netip.Addr{}, AgentUsages(), false},
		{"an organization", request(t, edit(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }), p256), hostIP, AgentUsages(), false},
		{"the controller", request(t, edit(func(r *x509.CertificateRequest) { r.Subject.CommonName = ControllerName }), p256), hostIP, AgentUsages(), false},
		{"mail address", request(t, edit(func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@example.com"} }), p256), hostIP, AgentUsages(), false},
		{"URI", request(t, edit(func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "a"}} }), p256), hostIP, AgentUsages(), false},
		{"P-224", request(t, edit(same), p224), hostIP, AgentUsages(), false},
		{"Ed25519", request(t, edit(same), ed), hostIP, AgentUsages(), false},
		{"client usage", valid, hostIP, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}, false},
		{"a further usage", valid, hostIP, append(AgentUsages(), certificatesv1.UsageClientAuth), false},
		{"repeated usage", valid, hostIP, []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth, certificatesv1.UsageServerAuth}, false},
		{"no usage", valid, hostIP, nil, false},
		{"empty", nil, hostIP, AgentUsages(), false},
		{"forged", []byte(forged), hostIP, AgentUsages(), false},
		{"two requests", append(append([]byte{}, valid...), valid...), hostIP, AgentUsages(), false},
		{"large", append([]byte(strings.Repeat("\n", MaxRequest)), valid...), hostIP, AgentUsages(), false},
	} {
		_, err := ValidateRequest(&certificatesv1.CertificateSigningRequestSpec{Request: c.content, Usages: c.usages}, "node1", c.hostIP)
		if (err == nil) != c.ok {
			t.Errorf("%s: got error %v, want accepted: %t", c.name, err, c.ok)
		}
	}
}
