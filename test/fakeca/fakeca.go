// Package fakeca issues certificates for tests of servers and clients that verify them.
package fakeca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"
)

const lifetime = time.Hour

// Authority is a certificate authority.
type Authority struct {
	*x509.Certificate
	key *ecdsa.PrivateKey
}

// New returns a new authority.
func New(tb testing.TB, name string) *Authority {
	tb.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-lifetime), NotAfter: time.Now().Add(lifetime),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key := newKey(tb)
	return &Authority{sign(tb, template, template, key, key), key}
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func sign(tb testing.TB, template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) *x509.Certificate {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return cert
}

// Issue returns a certificate with the common name, which is a DNS name too, for the usage.
func (a *Authority) Issue(tb testing.TB, name string, usage x509.ExtKeyUsage) tls.Certificate {
	tb.Helper()
	return a.issue(tb, name, usage, time.Now().Add(lifetime))
}

// IssueExpired returns a certificate like Issue that is not valid any longer.
func (a *Authority) IssueExpired(tb testing.TB, name string, usage x509.ExtKeyUsage) tls.Certificate {
	tb.Helper()
	return a.issue(tb, name, usage, time.Now().Add(-time.Minute))
}

func (a *Authority) issue(tb testing.TB, name string, usage x509.ExtKeyUsage, end time.Time) tls.Certificate {
	tb.Helper()
	key := newKey(tb)
	leaf := sign(tb, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: end.Add(-2 * lifetime), NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, KeyUsage: x509.KeyUsageDigitalSignature,
	}, a.Certificate, key, a.key)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

// PEM returns the authority's certificate.
func (a *Authority) PEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Raw}))
}

// Pool returns a pool with the authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate)
	return pool
}
