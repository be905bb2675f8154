// Package pki makes the keys and certificates of a lab's control plane: one authority that signs everything,
// and a key pair for service account tokens. Keys are ECDSA P-256, since RSA would cost seconds for every lab.
// Certificates are neither revoked nor renewed: a lab does not live that long.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"
)

// lifetime of every certificate.
const lifetime = 10 * 365 * 24 * time.Hour

// Pair is a certificate (or a public key) and its private key, both PEM.
type Pair struct {
	Cert, Key []byte
}

// Authority signs certificates.
type Authority struct {
	// Pair is what Load needs to make the same authority again.
	Pair Pair
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes a self-signed authority.
func New(commonName string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the authority: %w", err)
	}
	template, err := newTemplate(pkix.Name{CommonName: commonName})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	pair, err := sign(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("make the authority: %w", err)
	}
	return Load(pair)
}

// Load makes an authority of what New made.
func Load(pair Pair) (*Authority, error) {
	block, _ := pem.Decode(pair.Cert)
	if block == nil {
		return nil, errors.New("the authority's certificate is not PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the authority's certificate: %w", err)
	}
	if block, _ = pem.Decode(pair.Key); block == nil {
		return nil, errors.New("the authority's key is not PEM")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the authority's key: %w", err)
	}
	return &Authority{Pair: pair, cert: cert, key: key}, nil
}

// Subject is the subject of a certificate. Kubernetes reads the common name as the user and the organizations as the groups.
type Subject struct {
	CommonName    string
	Organizations []string
	// DNSNames and Addresses are what a server is called by.
	DNSNames  []string
	Addresses []netip.Addr
}

// Issue makes a key and a certificate for both client and server use.
func (a *Authority) Issue(subject Subject) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key for %s: %w", subject.CommonName, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: subject.CommonName, Organization: subject.Organizations})
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.DNSNames = subject.DNSNames
	for _, addr := range subject.Addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(addr.AsSlice()))
	}
	pair, err := sign(template, a.cert, key, a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign a certificate for %s: %w", subject.CommonName, err)
	}
	return pair, nil
}

// NewSigningKey makes the key pair that signs and verifies service account tokens. Cert holds the public key.
func NewSigningKey() (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make the key of service account tokens: %w", err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the key of service account tokens: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return Pair{}, fmt.Errorf("encode the public key of service account tokens: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
	}, nil
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	// An hour back, for virtual machines with a slow clock.
	return &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime)}, nil
}

func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return Pair{}, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}, nil
}
