package master_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

// probe returns the status and the text of a probe.
func probe(ctx context.Context, address, path string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// reserveAddress returns an address on which only a server that names it can listen, until the test ends: the kernel gives the port of a bound
// socket to no other program, and with SO_REUSEADDR, which net.Listen sets, a second socket may bind to it.
func reserveAddress(t *testing.T) string {
	t.Helper()
	fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	})
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	address, ok := must(unix.Getsockname(fd))(t).(*unix.SockaddrInet4)
	if !ok {
		t.Fatal("the socket has no IPv4 address")
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(address.Port))
}

func wantProbe(t *testing.T, address, path string, status int, text string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		got, body, err := probe(ctx, address, path)
		if err == nil && (got != status || body != text) {
			err = fmt.Errorf("%s%s: got %d %q, want %d %q", address, path, got, body, status, text)
		}
		return err
	})
}

func (c *cluster) holder(ctx context.Context) (string, error) {
	lease, err := c.kube.CoordinationV1().Leases("ovsdn-system").Get(ctx, "ovsdn-controller", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil {
		return "", nil
	}
	return *lease.Spec.HolderIdentity, nil
}

// awaitLeader waits until the holder of the lease, other than not, has written its name to the ClusterNetwork.
func (c *cluster) awaitLeader(t *testing.T, not string) (name string) {
	t.Helper()
	eventually(t, func(ctx context.Context) (err error) {
		name, err = c.holder(ctx)
		if err == nil && (name == "" || name == not) {
			err = fmt.Errorf("the lease is held by %q", name)
		}
		if err != nil {
			return err
		}
		o, err := c.network.NetworkV1().ClusterNetworks().Get(ctx, "default", metav1.GetOptions{})
		if controller, _, _ := strings.Cut(o.Annotations[config.ControllerAnnotation], "/"); err == nil && controller != name {
			err = errors.New("the ClusterNetwork does not name the holder of the lease")
		}
		return err
	})
	return name
}

func testTakeover(t *testing.T, c *cluster) {
	c.noLeaks(t)
	first, second := reserveAddress(t), reserveAddress(t)
	_, stop := c.start(t, func(cfg *master.Config) { cfg.HealthzAddress = first })
	leader := c.awaitLeader(t, "")
	c.start(t, func(cfg *master.Config) { cfg.HealthzAddress = second })
	for _, address := range []string{first, second} { // the leader and a candidate
		wantProbe(t, address, "/readyz", http.StatusOK, "ok\n")
		wantProbe(t, address, "/healthz", http.StatusOK, "ok\n")
	}
	if now := c.awaitLeader(t, ""); now != leader {
		t.Errorf("got leader %s, want %s, which did not stop", now, leader)
	}
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))

	stop()
	if now := must(c.holder(t.Context()))(t); now == leader {
		t.Error("the lease was not released")
	}
	begin := time.Now()
	c.addNode(t, "node2", "192.0.2.2")
	c.hostSubnet(t, "node2", has("10.129.0.0/23"))
	took := time.Since(begin)
	t.Logf("the next leader allocated a subnet after %v", took)
	t.Run("in time", func(t *testing.T) {
		if testing.Short() {
			t.Skip("complete tier: bound in time")
		}
		if took > 8*time.Second { // an unreleased lease expires after 10 s
			t.Errorf("got a takeover in %v, want at most 8s", took)
		}
	})
	c.awaitLeader(t, leader)
	if _, _, err := probe(t.Context(), first, "/healthz"); err == nil {
		t.Error("the stopped controller answers probes")
	}
	wantProbe(t, second, "/readyz", http.StatusOK, "ok\n")
}

// A leader whose API calls hang stops before its lease ends, and leads again when the API server answers.
func testUnreachableAPIServer(t *testing.T, c *cluster) {
	if testing.Short() {
		t.Skip("complete tier: waits for the end of a lease")
	}
	c.noLeaks(t)
	proxy := newSlowProxy(t, c.master, nil)
	t.Cleanup(proxy.close)
	address := reserveAddress(t)
	l, stop := c.start(t, func(cfg *master.Config) { cfg.REST, cfg.HealthzAddress = proxy.config, address })
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))

	proxy.freeze()
	c.addNode(t, "node2", "192.0.2.2")
	eventually(t, func(context.Context) error {
		if !l.contains("Failed to renew lease") {
			return errors.New("the controller still leads")
		}
		return nil
	})
	wantProbe(t, address, "/healthz", http.StatusOK, "ok\n") // a restart would not help
	proxy.open()
	c.hostSubnet(t, "node2", nil)
	wantProbe(t, address, "/readyz", http.StatusOK, "ok\n")
	stop()
	proxy.close()
}
