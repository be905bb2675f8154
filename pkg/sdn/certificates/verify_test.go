package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"
)

// issue returns a certificate of the parent, or a self-signed one.
func issue(t *testing.T, template x509.Certificate, parent *issued) *issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(1)
	signer := &issued{&template, key}
	if parent != nil {
		signer = parent
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, signer.Certificate, key.Public(), signer.key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &issued{parsed, key}
}

type issued struct {
	*x509.Certificate
	key *ecdsa.PrivateKey
}

func template(name string, usage x509.ExtKeyUsage) x509.Certificate {
	return x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
}

func authority(name string) x509.Certificate {
	return x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
}

func TestVerifyClient(t *testing.T) {
	const name = ControllerName
	ca, other := issue(t, authority("ca"), nil), issue(t, authority("ca"), nil)
	intermediate := issue(t, authority("intermediate"), ca)
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate)
	expired := template(name, x509.ExtKeyUsageClientAuth)
	expired.NotAfter = time.Now().Add(-time.Minute)
	client := issue(t, template(name, x509.ExtKeyUsageClientAuth), ca)
	for _, c := range []struct {
		name  string
		chain []*x509.Certificate
		pool  *x509.CertPool
		want  string
		ok    bool
	}{
		{"controller", []*x509.Certificate{client.Certificate}, pool, name, true},
		{"an intermediate, which the authorities do not have", []*x509.Certificate{issue(t, template(name, x509.ExtKeyUsageClientAuth), intermediate).Certificate, intermediate.Certificate}, pool, name, false},
		{"no certificate", nil, pool, name, false},
		{"no authorities", []*x509.Certificate{client.Certificate}, nil, name, false},
		{"empty authorities", []*x509.Certificate{client.Certificate}, x509.NewCertPool(), name, false},
		{"no name", []*x509.Certificate{issue(t, template("", x509.ExtKeyUsageClientAuth), ca).Certificate}, pool, "", false},
		{"another name", []*x509.Certificate{client.Certificate}, pool, "front-proxy-client", false},
		{"an agent's", []*x509.Certificate{issue(t, template("system:ovsdn-node:node1", x509.ExtKeyUsageServerAuth), ca).Certificate}, pool, name, false},
		{"a server's", []*x509.Certificate{issue(t, template(name, x509.ExtKeyUsageServerAuth), ca).Certificate}, pool, name, false},
		{"expired", []*x509.Certificate{issue(t, expired, ca).Certificate}, pool, name, false},
		{"another authority of the same name", []*x509.Certificate{issue(t, template(name, x509.ExtKeyUsageClientAuth), other).Certificate}, pool, name, false},
		{"self-signed", []*x509.Certificate{issue(t, template(name, x509.ExtKeyUsageClientAuth), nil).Certificate}, pool, name, false},
		{"an intermediate that is no authority", []*x509.Certificate{issue(t, template(name, x509.ExtKeyUsageClientAuth), client).Certificate, client.Certificate}, pool, name, false},
	} {
		if err := VerifyClient(c.chain, c.pool, c.want); (err == nil) != c.ok {
			t.Errorf("%s: got error %v, want accepted: %t", c.name, err, c.ok)
		}
	}
}
