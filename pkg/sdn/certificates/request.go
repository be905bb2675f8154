package certificates

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// MaxRequest is the largest request, in bytes, that ValidateRequest reads.
const MaxRequest = 8 << 10

// AgentUsages returns the usages of an agent's certificate.
func AgentUsages() []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
}

// NewRequest returns a key and the request, in PEM, for the serving certificate of a node's agent with the address.
func NewRequest(node string, hostIP netip.Addr) ([]byte, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("create key: %w", err)
	}
	template := &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: AgentName(node)}, DNSNames: []string{AgentServerName(node)}, IPAddresses: []net.IP{hostIP.AsSlice()},
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, nil, fmt.Errorf("create certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: der}), key, nil
}

// Pair returns the certificate that was signed for a request, with its key.
func Pair(certificate []byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	encoded, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, encoded)
	if err != nil {
		return nil, fmt.Errorf("read signed certificate: %w", err)
	}
	return &pair, nil
}

// VerifyAgent returns an error unless the certificate is the current serving certificate of the node's agent.
func VerifyAgent(cert *x509.Certificate, authorities []*x509.Certificate, node string, hostIP netip.Addr, now time.Time) error {
	for _, name := range []string{AgentServerName(node), hostIP.String()} {
		if _, err := cert.Verify(x509.VerifyOptions{
			Roots: NewPool(authorities), DNSName: name, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}); err != nil {
			return err
		}
	}
	return nil
}

// RequestingNode returns the node whose agent created the CertificateSigningRequest. The error is the reason of a refusal.
func RequestingNode(spec *certificatesv1.CertificateSigningRequestSpec) (string, error) {
	if spec.Username != AgentUser {
		return "", fmt.Errorf("the user is not %s", AgentUser)
	}
	nodes := spec.Extra[NodeNameExtra]
	if len(nodes) != 1 || nodes[0] == "" {
		return "", errors.New("the token of the agent names no node: it must be that of a pod, of Kubernetes 1.30 or later")
	}
	return nodes[0], nil
}

// ValidateRequest returns the request of a node's agent, whose HostSubnet has the address; the zero address: it has none. The error is the reason of a
// refusal.
func ValidateRequest(spec *certificatesv1.CertificateSigningRequestSpec, node string, hostIP netip.Addr) (*x509.CertificateRequest, error) {
	want := AgentUsages()
	if len(spec.Usages) != len(want) || slices.ContainsFunc(want, func(u certificatesv1.KeyUsage) bool { return !slices.Contains(spec.Usages, u) }) {
		return nil, fmt.Errorf("the usages are not %q", want)
	}
	request, err := parseRequest(spec.Request)
	if err != nil {
		return nil, err
	}
	return request, validateNames(request, node, hostIP)
}

// parseRequest returns the request if its signature is that of its key.
func parseRequest(content []byte) (*x509.CertificateRequest, error) {
	if len(content) > MaxRequest {
		return nil, fmt.Errorf("the request has more than %d bytes", MaxRequest)
	}
	block, rest := pem.Decode(content)
	if block == nil || block.Type != requestBlock || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("the request is not one PEM block %s", requestBlock)
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse request: %w", err)
	}
	switch key := request.PublicKey.(type) { // before the signature, whose cost depends on the key
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
			return nil, errors.New("the ECDSA key is not one of P-256 or P-384")
		}
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < 2048 || bits > 4096 {
			return nil, fmt.Errorf("the RSA key has %d bits, want 2048 to 4096", bits)
		}
	default:
		return nil, errors.New("the key is neither of ECDSA nor of RSA")
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("check signature of the request: %w", err)
	}
	return request, nil
}

func validateNames(request *x509.CertificateRequest, node string, hostIP netip.Addr) error {
	subject := pkix.Name{CommonName: AgentName(node)}
	if request.Subject.CommonName != subject.CommonName || request.Subject.String() != subject.String() {
		return fmt.Errorf("the subject is not CN=%s, of the node to which the token of the agent was issued", subject.CommonName)
	}
	if want := []string{AgentServerName(node)}; !slices.Equal(request.DNSNames, want) {
		return fmt.Errorf("the DNS names are not %q", want)
	}
	if len(request.EmailAddresses) > 0 || len(request.URIs) > 0 {
		return errors.New("the request has other names than DNS names and addresses")
	}
	if !hostIP.IsValid() {
		return fmt.Errorf("node %.100q has no HostSubnet", node)
	}
	for _, ip := range request.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); !ok || addr.Unmap() != hostIP {
			return fmt.Errorf("address %s is not %s, that of the HostSubnet", ip, hostIP)
		}
	}
	return nil
}
