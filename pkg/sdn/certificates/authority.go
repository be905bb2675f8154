package certificates

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

const (
	authorityLifetime = 10 * 365 * 24 * time.Hour
	// authorityRenewal is the remaining lifetime at which an authority is renewed. It exceeds that of all certificates that the authority has signed.
	authorityRenewal = 2 * 365 * 24 * time.Hour
	authorityName    = "ovsdn-diagnostics"

	controllerLifetime = 24 * time.Hour
	agentLifetime      = 30 * 24 * time.Hour

	clockSkew = time.Hour // of clients and servers whose clock is late

	maxPEM         = 64 << 10 // bytes of a bundle or key
	maxAuthorities = 4        // in a bundle
)

// PEM block types.
const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
	requestBlock     = "CERTIFICATE REQUEST"
)

// Authority signs certificates of controllers and agents. It is immutable.
type Authority struct {
	certs []*x509.Certificate // the first is that of the key, the others are previous ones that are still trusted
	key   *ecdsa.PrivateKey
}

// NewAuthority returns a new authority. It trusts the valid certificates of the previous one, if that is not nil.
func NewAuthority(now time.Time, previous *Authority) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create key of the authority: %w", err)
	}
	template, err := newTemplate(authorityName, now, now.Add(authorityLifetime))
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	a := &Authority{key: key}
	cert, err := a.sign(template, template, key.Public())
	if err != nil {
		return nil, err
	}
	a.certs = []*x509.Certificate{cert}
	if previous != nil {
		for _, c := range previous.certs {
			if now.Before(c.NotAfter) && len(a.certs) < maxAuthorities {
				a.certs = append(a.certs, c)
			}
		}
	}
	return a, nil
}

// ErrNotYetValid is the error of an authority whose notBefore is in the future: the clock of its creator, or that of the reader, is wrong.
var ErrNotYetValid = errors.New("the CA certificate is not yet valid")

// ParseAuthority returns the authority of a Secret. It fails if the authority can't sign valid certificates: with ErrNotYetValid, if it can later.
func ParseAuthority(bundle, key []byte, now time.Time) (*Authority, error) {
	certs, err := ParseBundle(bundle)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(key[:min(len(key), maxPEM)])
	if block == nil || block.Type != keyBlock || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s: want one PEM block %s", KeyKey, keyBlock)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", KeyKey, err)
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s is no ECDSA key", KeyKey)
	case !private.PublicKey.Equal(certs[0].PublicKey):
		return nil, fmt.Errorf("%s is not the key of the first certificate", KeyKey)
	case now.Before(certs[0].NotBefore):
		return nil, fmt.Errorf("%w: notBefore is %s", ErrNotYetValid, certs[0].NotBefore)
	case now.After(certs[0].NotAfter):
		return nil, fmt.Errorf("the CA certificate expired: notAfter is %s", certs[0].NotAfter)
	}
	return &Authority{certs, private}, nil
}

// ParseBundle returns the certificates of authorities in PEM, at least one.
func ParseBundle(bundle []byte) ([]*x509.Certificate, error) {
	if len(bundle) > maxPEM {
		return nil, fmt.Errorf("%d bytes of certificates, want at most %d", len(bundle), maxPEM)
	}
	var certs []*x509.Certificate
	for rest := bytes.TrimSpace(bundle); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != certificateBlock {
			return nil, fmt.Errorf("certificate %d: want a PEM block %s", len(certs)+1, certificateBlock)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return nil, fmt.Errorf("parse certificate %d: %w", len(certs)+1, err)
		case !cert.IsCA || !cert.BasicConstraintsValid || cert.KeyUsage&x509.KeyUsageCertSign == 0:
			return nil, fmt.Errorf("certificate %d is not that of an authority", len(certs)+1)
		case len(certs) == maxAuthorities:
			return nil, fmt.Errorf("more than %d certificates", maxAuthorities)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no certificate")
	}
	return certs, nil
}

// NewPool returns the certificates as a pool.
func NewPool(certs []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}

// RenewAt returns the time at which the authority is to be renewed.
func (a *Authority) RenewAt() time.Time { return a.certs[0].NotAfter.Add(-authorityRenewal) }

// Bundle returns all certificates in PEM.
func (a *Authority) Bundle() []byte {
	var bundle bytes.Buffer
	for _, c := range a.certs {
		bundle.Write(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: c.Raw}))
	}
	return bundle.Bytes()
}

// Key returns the private key in PEM.
func (a *Authority) Key() ([]byte, error) { return encodeKey(a.key) }

// Pool returns all certificates.
func (a *Authority) Pool() *x509.CertPool { return NewPool(a.certs) }

// Controller returns a new client certificate of a controller, or its serving certificate if isServer is true.
func (a *Authority) Controller(now time.Time, isServer bool) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	template, err := newTemplate(ControllerName, now, now.Add(controllerLifetime))
	if err != nil {
		return nil, err
	}
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if isServer {
		template.ExtKeyUsage, template.DNSNames = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []string{ServiceName}
	}
	cert, err := a.sign(template, a.certs[0], key.Public())
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

// Agent returns the serving certificate, in PEM, of a request that ValidateRequest accepted.
func (a *Authority) Agent(now time.Time, request *x509.CertificateRequest) ([]byte, error) {
	template, err := newTemplate(request.Subject.CommonName, now, now.Add(agentLifetime))
	if err != nil {
		return nil, err
	}
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames, template.IPAddresses = slices.Clone(request.DNSNames), slices.Clone(request.IPAddresses)
	cert, err := a.sign(template, a.certs[0], request.PublicKey)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: cert.Raw}), nil
}

func newTemplate(name string, now, end time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("create serial number: %w", err)
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-clockSkew), NotAfter: end}, nil
}

func (a *Authority) sign(template, parent *x509.Certificate, key any) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", template.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}
