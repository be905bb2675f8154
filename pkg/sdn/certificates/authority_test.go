package certificates

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"testing"
	"time"
)

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// newStored returns an authority as it is read from its Secret.
func newStored(t *testing.T, now time.Time, previous *Authority) *Authority {
	t.Helper()
	a := must[*Authority](t)(NewAuthority(now, previous))
	return must[*Authority](t)(ParseAuthority(a.Bundle(), must[[]byte](t)(a.Key()), now))
}

// After a renewal both authorities are trusted, and the new one signs.
func TestNewAuthority_renewal(t *testing.T) {
	now := time.Now()
	first := newStored(t, now, nil)
	if got := first.RenewAt(); got.Before(now.Add(agentLifetime)) || first.certs[0].NotAfter.Sub(got) < 2*agentLifetime {
		t.Errorf("got renewal at %s of an authority until %s: certificates of agents would end after it", got, first.certs[0].NotAfter)
	}
	client := must[*tls.Certificate](t)(first.Controller(now, false))
	later := first.RenewAt()
	second := newStored(t, later, first)
	if got := second.Pool(); len(second.certs) != 2 || !got.Equal(NewPool([]*x509.Certificate{first.certs[0], second.certs[0]})) {
		t.Errorf("got %d authorities, want both", len(second.certs))
	}
	if err := VerifyClient([]*x509.Certificate{client.Leaf}, second.Pool(), ControllerName); err != nil {
		t.Errorf("the certificate of the previous authority: %v", err)
	}
	renewed := must[*tls.Certificate](t)(second.Controller(now, false))
	if err := VerifyClient([]*x509.Certificate{renewed.Leaf}, first.Pool(), ControllerName); err == nil {
		t.Error("the previous authority signed the new certificate")
	}
	// Previous authorities end, and their number is limited.
	ended := newStored(t, first.certs[0].NotAfter.Add(time.Hour), second)
	if len(ended.certs) != 2 || ended.certs[1] == first.certs[0] {
		t.Errorf("got %d authorities, want two, without the expired one", len(ended.certs))
	}
	many := first
	for range maxAuthorities + 2 {
		many = newStored(t, now, many)
	}
	if len(many.certs) != maxAuthorities {
		t.Errorf("got %d authorities, want %d", len(many.certs), maxAuthorities)
	}
}

func TestAuthority_Controller(t *testing.T) {
	now := time.Now()
	a := newStored(t, now, nil)
	client := must[*tls.Certificate](t)(a.Controller(now, false)).Leaf
	serving := must[*tls.Certificate](t)(a.Controller(now, true)).Leaf
	if err := VerifyClient([]*x509.Certificate{client}, a.Pool(), ControllerName); err != nil {
		t.Errorf("client certificate: %v", err)
	}
	if err := VerifyClient([]*x509.Certificate{serving}, a.Pool(), ControllerName); err == nil {
		t.Error("the serving certificate is accepted as that of a client")
	}
	verify := func(cert *x509.Certificate, at time.Time) error {
		_, err := cert.Verify(x509.VerifyOptions{Roots: a.Pool(), DNSName: ServiceName, CurrentTime: at})
		return err
	}
	if err := verify(serving, now); err != nil {
		t.Errorf("serving certificate: %v", err)
	}
	if err := verify(client, now); err == nil {
		t.Error("the client certificate is accepted as that of the Service")
	}
	if err := verify(serving, now.Add(controllerLifetime+time.Minute)); err == nil {
		t.Error("the serving certificate does not expire")
	}
	for _, cert := range []*x509.Certificate{client, serving} {
		if cert.IsCA || len(cert.DNSNames) > 0 && VerifyAgent(cert, a.certs, "node1", netip.MustParseAddr("192.0.2.1"), now) == nil {
			t.Error("the certificate of a controller is one of an agent or an authority")
		}
	}
}

func TestParseAuthority_refuses(t *testing.T) {
	now := time.Now()
	a, other := newStored(t, now, nil), newStored(t, now, nil)
	key := must[[]byte](t)(a.Key())
	leaf := must[*tls.Certificate](t)(a.Controller(now, false))
	leafPEM := pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: leaf.Certificate[0]})
	many := bytes.Repeat(a.Bundle(), maxAuthorities+1)
	for _, c := range []struct {
		name        string
		bundle, key []byte
		at          time.Time
	}{
		{"nothing", nil, nil, now},
		{"no key", a.Bundle(), nil, now},
		{"no certificate", nil, key, now},
		{"another key", a.Bundle(), must[[]byte](t)(other.Key()), now},
		{"truncated certificate", a.Bundle()[:100], key, now},
		{"truncated key", a.Bundle(), key[:len(key)-40], now},
		{"certificate in place of the key", a.Bundle(), a.Bundle(), now},
		{"two keys", a.Bundle(), append(bytes.Clone(key), key...), now},
		{"text after the certificates", append(a.Bundle(), "text"...), key, now},
		{"no authority", leafPEM, key, now},
		{"one that is no authority after the first", append(a.Bundle(), leafPEM...), key, now},
		{"too many", many, key, now},
		{"too large", append(bytes.Repeat([]byte(" "), maxPEM), a.Bundle()...), key, now},
		{"expired", a.Bundle(), key, now.Add(authorityLifetime + time.Hour)},
		{"not valid yet", a.Bundle(), key, now.Add(-2 * clockSkew)},
	} {
		if _, err := ParseAuthority(c.bundle, c.key, c.at); err == nil {
			t.Errorf("%s: accepted", c.name)
		} else {
			t.Logf("%s: %v", c.name, err)
		}
	}
}
