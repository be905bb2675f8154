package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// testBalancedIdled: a pod and a node each send one packet to an idled service. Event NeedPods requests its pods, and when the first one is ready it answers both.
func testBalancedIdled(t *testing.T, x *trio) {
	addr := x.CreateService(t, x.namespace, "idled", servicePort{Protocol: "UDP", Port: 53, Target: fixture.UDPPort}, map[string]string{"idled": "no"})
	annotate := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, unidlingv1alpha1.IdledAtAnnotation, time.Now().UTC().Format(time.RFC3339))
	if _, err := x.Kube.CoreV1().Services(x.namespace).Patch(t.Context(), "idled", types.MergePatchType, annotate, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		fixture.Eventually(t, fixture.SyncTime, node+" sends packets to the agent", func(ctx context.Context) error {
			flows, err := x.TryOutput(ctx, node, "ovs-ofctl", "-O", "OpenFlow14", "dump-flows", "br0", "table=69,udp,nw_dst="+addr.String())
			if err == nil && !strings.Contains(flows, "goto_table:71") {
				err = fmt.Errorf("got flows %q", flows)
			}
			return err
		})
	}
	var waiting []net.Conn
	for _, from := range []end{x.a.End(), x.nodeEnd(t, x.node2)} {
		conn, err := from.NetNS.DialContext(t.Context(), "udp4", netip.AddrPortFrom(addr, 53).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("hostname")); err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, conn)
	}
	fixture.Eventually(t, fixture.SyncTime, "Event NeedPods", func(ctx context.Context) error {
		events, err := x.Kube.CoreV1().Events(x.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=idled,reason=" + eventreason.NeedPods})
		if err == nil && len(events.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	ready := []byte(`{"metadata":{"labels":{"idled":"no"}}}`)
	if _, err := x.Kube.CoreV1().Pods(x.namespace).Patch(t.Context(), x.c.Name, types.MergePatchType, ready, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, conn := range waiting {
		if err := conn.SetReadDeadline(time.Now().Add(fixture.SyncTime)); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 1<<10)
		if n, err := conn.Read(answer); err != nil || string(answer[:n]) != x.c.Name {
			t.Errorf("%s: got answer %q, %v, want one of pod %s to the first packet", conn.LocalAddr(), answer[:n], err, x.c.Name)
		}
	}
}
