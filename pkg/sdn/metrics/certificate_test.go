package metrics

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// writePair writes a pair of files like kubelet: in a new directory, to which it changes a symbolic link.
func writePair(t *testing.T, dir, version string) {
	t.Helper()
	c := &certificate{now: time.Now}
	pair, err := c.load()
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, "tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, version, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "current")
	if err := os.Symlink(version, link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
}

func TestCertificate_reloadsFiles(t *testing.T) {
	dir := t.TempDir()
	c := &certificate{certFile: filepath.Join(dir, "current/tls.crt"), keyFile: filepath.Join(dir, "current/tls.key"), now: time.Now}
	if _, err := c.load(); err == nil {
		t.Error("without files: got no error, want one")
	}
	writePair(t, dir, "1")
	first, err := c.load()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.load(); err != nil || again != first {
		t.Errorf("unchanged files: got %p, %v, want %p", again, err, first)
	}
	writePair(t, dir, "2")
	second, err := c.load()
	if err != nil || string(second.Certificate[0]) == string(first.Certificate[0]) {
		t.Errorf("changed files: got the previous certificate, error %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "2/tls.key"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	config := c.config(klog.NewContext(t.Context(), logger))
	for range 3 {
		if got, err := config.GetCertificate(nil); err != nil || got != second {
			t.Errorf("invalid files: got %p, %v, want the previous certificate %p", got, err, second)
		}
	}
	// Clients cannot fill the log.
	if got := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); strings.Count(got, "Failed to load the certificate") != 1 {
		t.Errorf("got log %q, want one line", got)
	}
}

func TestCertificate_renewsSelfSigned(t *testing.T) {
	now := time.Now()
	c := &certificate{now: func() time.Time { return now }}
	first, err := c.load()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(first.Certificate[0])
	if err != nil || parsed.IsCA || parsed.NotAfter.Sub(now) < certificateLifetime-time.Second {
		t.Errorf("got %+v, error %v, want a certificate for %v", parsed, err, certificateLifetime)
	}
	now = now.Add(certificateLifetime/2 - time.Hour)
	if again, err := c.load(); err != nil || again != first {
		t.Errorf("before half of the lifetime: got another certificate, error %v", err)
	}
	now = now.Add(2 * time.Hour)
	if again, err := c.load(); err != nil || again == first {
		t.Errorf("after half of the lifetime: got the same certificate, error %v", err)
	}
}
