package metrics

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"os"
	"sync"
	"time"
)

// certificateLifetime is that of a self-signed certificate, which is replaced after half of it.
const certificateLifetime = 365 * 24 * time.Hour

// certificate is the certificate of the server: that of two files, read again when they change, the provided one, or a self-signed one.
type certificate struct {
	certFile, keyFile string                  // empty: provided or self-signed
	provided          func() *tls.Certificate // nil, or returns nil: self-signed
	now               func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	files   [2]os.FileInfo // from which it was read
	renewal time.Time

	failures FailureLog
}

// isSame reports whether the file is unchanged. A mounted Secret is replaced by renaming a symbolic link: then the path is that of another file.
func isSame(before, now os.FileInfo) bool {
	return before != nil && os.SameFile(before, now) && before.ModTime().Equal(now.ModTime()) && before.Size() == now.Size()
}

// load returns the current certificate. With an error it returns the previous one, if there is any.
func (c *certificate) load() (*tls.Certificate, error) {
	if c.certFile == "" && c.provided != nil {
		if current := c.provided(); current != nil {
			return current, nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	update := c.readFiles
	if c.certFile == "" {
		update = c.selfSign
	}
	err := update()
	return c.current, err
}

func (c *certificate) readFiles() error {
	var files [2]os.FileInfo
	for i, path := range []string{c.certFile, c.keyFile} {
		var err error
		if files[i], err = os.Stat(path); err != nil {
			return err
		}
	}
	if isSame(c.files[0], files[0]) && isSame(c.files[1], files[1]) {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("load %s and %s: %w", c.certFile, c.keyFile, err)
	}
	c.current, c.files = &pair, files
	return nil
}

func (c *certificate) selfSign() error {
	now := c.now()
	if c.current != nil && now.Before(c.renewal) {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	host, _ := os.Hostname() // the name is only informative
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: cmp.Or(host, "ovsdn")},
		NotBefore:    now.Add(-time.Hour), // of clients whose clock is late
		NotAfter:     now.Add(certificateLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if host != "" {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("create self-signed certificate: %w", err)
	}
	c.current, c.renewal = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, now.Add(certificateLifetime/2)
	return nil
}

// named returns the provided certificate if the client asks for one of its names: clients of routes verify these, whatever the files have for others.
func (c *certificate) named(hello *tls.ClientHelloInfo) *tls.Certificate {
	if c.provided == nil || hello == nil || hello.ServerName == "" {
		return nil
	}
	current := c.provided()
	if current == nil || current.Leaf == nil || current.Leaf.VerifyHostname(hello.ServerName) != nil {
		return nil
	}
	return current
}

// config returns the TLS configuration, which reads changed files at the next connection.
func (c *certificate) config(ctx context.Context) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}, // HTTP/2 would let one connection start any number of requests
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if named := c.named(hello); named != nil {
				return named, nil
			}
			current, err := c.load()
			if err != nil && current != nil {
				c.failures.Log(ctx, err, "Failed to load the certificate of the metrics server", "effect", "the previous certificate is used", "action", "correct the files")
				return current, nil
			}
			return current, err
		},
	}
}
