package hostnet

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

func TestRouteLoopback(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "net/ipv4/conf/tun0/route_localnet")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		permit bool
		want   string
	}{{true, "1"}, {true, "1"}, {false, "0"}} {
		if err := RouteLoopback(sysctl.Dir(dir), tc.permit); err != nil {
			t.Fatal(err)
		}
		if got, err := sysctl.Dir(dir).Get("net/ipv4/conf/tun0/route_localnet"); got != tc.want || err != nil {
			t.Errorf("permit %t: got %q (%v), want %q", tc.permit, got, err, tc.want)
		}
	}
}
