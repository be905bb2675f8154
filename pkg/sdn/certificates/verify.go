// Package certificates creates and verifies the certificates by which controllers and agents recognize each other, and kube-apiserver a controller
// (docs/decisions/0020-diagnostics.md).
package certificates

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// VerifyClient returns an error unless the chain that a client sent begins with a client certificate of one of the authorities with that common name.
// Without authorities it always returns an error.
func VerifyClient(chain []*x509.Certificate, authorities *x509.CertPool, name string) error {
	if len(chain) == 0 {
		return errors.New("no client certificate")
	}
	if authorities == nil { // for which Verify would use those of the system
		return errors.New("no authority of client certificates is known yet")
	}
	// No intermediates: the authorities sign directly, and each signature would be verified with a key that the client has chosen.
	if _, err := chain[0].Verify(x509.VerifyOptions{
		Roots: authorities, CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return fmt.Errorf("verify client certificate: %w", err)
	}
	if got := chain[0].Subject.CommonName; got != name || name == "" {
		return fmt.Errorf("client certificate of %.100q, want that of %q", got, name)
	}
	return nil
}
