package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIssue(t *testing.T) {
	made, err := New("test-ca")
	if err != nil {
		t.Fatal(err)
	}
	// A loaded authority must sign like the created one.
	authority, err := Load(made.Pair)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(Subject{
		CommonName:    "system:node:node1",
		Organizations: []string{"system:nodes"},
		DNSNames:      []string{"node1"},
		Addresses:     []netip.Addr{netip.MustParseAddr("172.31.0.11")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
		t.Fatalf("certificate and key do not match: %v", err)
	}
	block, _ := pem.Decode(pair.Cert)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"system:nodes"}, cert.Subject.Organization); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(made.Pair.Cert)
	for _, name := range []string{"node1", "172.31.0.11"} {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Errorf("verify as server %s: %v", name, err)
		}
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("verify as client: %v", err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "node2"}); err == nil {
		t.Error("the certificate of node1 verifies as node2")
	}
}

func TestLoadRefuses(t *testing.T) {
	authority, err := New("test-ca")
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string]Pair{
		"no certificate":      {Key: authority.Pair.Key},
		"no key":              {Cert: authority.Pair.Cert},
		"key for certificate": {Cert: authority.Pair.Key, Key: authority.Pair.Key},
	} {
		if _, err := Load(pair); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
}

func TestNewSigningKey(t *testing.T) {
	pair, err := NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pair.Cert)
	if _, err := x509.ParsePKIXPublicKey(block.Bytes); err != nil {
		t.Errorf("public key: %v", err)
	}
	block, _ = pem.Decode(pair.Key)
	if _, err := x509.ParseECPrivateKey(block.Bytes); err != nil {
		t.Errorf("private key: %v", err)
	}
}
