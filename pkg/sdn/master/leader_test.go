package master_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

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

// freeAddress is free to listen on, as far as one can know.
func freeAddress(t *testing.T) string {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}

func wantProbe(t *testing.T, address, path string, status int, text string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		got, said, err := probe(ctx, address, path)
		if err == nil && (got != status || said != text) {
			err = fmt.Errorf("%s%s: %d %q, want %d %q", address, path, got, said, status, text)
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

// ruler waits until the holder of the lease has written itself on the ClusterNetwork.
func (c *cluster) ruler(t *testing.T, not string) (name string) {
	t.Helper()
	eventually(t, func(ctx context.Context) (err error) {
		name, err = c.holder(ctx)
		if err == nil && (name == "" || name == not) {
			err = fmt.Errorf("the lease is %q's", name)
		}
		if err != nil {
			return err
		}
		o, err := c.network.NetworkV1().ClusterNetworks().Get(ctx, "default", metav1.GetOptions{})
		if controller, _, _ := strings.Cut(o.Annotations[config.ControllerAnnotation], "/"); err == nil && controller != name {
			err = errors.New("the holder of the lease does not rule")
		}
		return err
	})
	return name
}

func testHandsOver(t *testing.T, c *cluster) {
	c.noLeaks(t)
	first, second := freeAddress(t), freeAddress(t)
	_, stop := c.start(t, func(cfg *master.Config) { cfg.HealthzAddress = first })
	leader := c.ruler(t, "")
	c.start(t, func(cfg *master.Config) { cfg.HealthzAddress = second })
	for _, address := range []string{first, second} { // one leads, one stands by
		wantProbe(t, address, "/readyz", http.StatusOK, "ok\n")
		wantProbe(t, address, "/healthz", http.StatusOK, "ok\n")
	}
	if now := c.ruler(t, ""); now != leader {
		t.Errorf("%s leads after %s, which did not stop", now, leader)
	}
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))

	stop()
	if now := must(c.holder(t.Context()))(t); now == leader {
		t.Error("the lease was not given back")
	}
	begin := time.Now()
	c.addNode(t, "node2", "192.0.2.2")
	c.hostSubnet(t, "node2", has("10.129.0.0/23"))
	took := time.Since(begin)
	t.Logf("the next leader had served a node after %v", took)
	if took > 8*time.Second { // a lease lasts ten
		t.Errorf("the lease was not handed over: %v", took)
	}
	c.ruler(t, leader)
	if _, _, err := probe(t.Context(), first, "/healthz"); err == nil {
		t.Error("the first still answers probes")
	}
	wantProbe(t, second, "/readyz", http.StatusOK, "ok\n")
}

// A leader whose calls to the API server hang stops before its lease ends, and comes back with the API server.
func testCutOff(t *testing.T, c *cluster) {
	c.noLeaks(t)
	road := newSlowRoad(t, c.master, nil)
	t.Cleanup(road.close)
	address := freeAddress(t)
	l, stop := c.start(t, func(cfg *master.Config) { cfg.REST, cfg.HealthzAddress = road.config, address })
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))

	road.freeze()
	c.addNode(t, "node2", "192.0.2.2")
	eventually(t, func(context.Context) error {
		if !l.contains("Failed to renew lease") {
			return errors.New("it still thinks that it leads")
		}
		return nil
	})
	wantProbe(t, address, "/healthz", http.StatusOK, "ok\n") // a restart would not help
	road.open()
	c.hostSubnet(t, "node2", nil)
	wantProbe(t, address, "/readyz", http.StatusOK, "ok\n")
	stop()
	road.close()
}
