package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

const (
	datagramSize  = 1300
	datagramFrame = (datagramSize + 42) * 8 // bits
)

// seeBandwidth limits a pod, changes its limit while it runs, and tries an invalid one, which changes nothing.
func seeBandwidth(t *testing.T, x *trio) {
	const limit, burst = 1e6, 525e3 // bits per second, bits
	object := fixture.Netexec("limited", fixture.Node1)
	object.Annotations = map[string]string{config.EgressBandwidthAnnotation: "1M"}
	started := time.Now()
	limited := x.Run(t, x.namespace, object)[0]
	server, err := x.c.NetNS.ListenPacket("udp4", netip.AddrPortFrom(x.c.Addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()

	sent := time.Now()
	received, err := sendDatagrams(t.Context(), limited, server, 400)
	if err != nil {
		t.Fatal(err)
	}
	if most := 1.1 * (burst + limit*time.Since(sent).Seconds()) / datagramFrame; float64(received) > most {
		t.Errorf("got %d of 400 datagrams within a limit of 1M, want at most %.0f", received, most)
	}
	x.limitEgress(t, limited, "100M")
	all := func(ctx context.Context) error {
		const some = 100 // more than the burst of the first limit
		received, err := sendDatagrams(ctx, limited, server, some)
		if err == nil && received < some {
			err = fmt.Errorf("got %d of %d datagrams", received, some)
		}
		return err
	}
	fixture.Eventually(t, fixture.SyncTime, "the limit is 100M", all)
	x.limitEgress(t, limited, "ten")
	x.Warned(t, started, "Pod", limited.Name, config.EgressBandwidthAnnotation+"=ten", "stays limited to 100000000 bit/s")
	fixture.Eventually(t, fixture.SyncTime, "the limit is still 100M", all)
}

// limitEgress changes the annotation of a pod.
func (x *trio) limitEgress(t *testing.T, p pod, limit string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{config.EgressBandwidthAnnotation: limit}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Kube.CoreV1().Pods(x.namespace).Patch(t.Context(), p.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// sendDatagrams sends datagrams at once and returns how many arrive within a second after each other.
func sendDatagrams(ctx context.Context, from pod, server net.PacketConn, number int) (received int, err error) {
	conn, err := from.NetNS.DialContext(ctx, "udp4", server.LocalAddr().String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	for range number {
		if _, err := conn.Write(make([]byte, datagramSize)); err != nil {
			return 0, err
		}
	}
	for buffer := make([]byte, 2*datagramSize); ; {
		if err := server.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return 0, err
		}
		_, source, err := server.ReadFrom(buffer)
		if err != nil {
			return received, nil // the deadline: no more arrive
		}
		if source.String() == conn.LocalAddr().String() {
			received++
		}
	}
}
