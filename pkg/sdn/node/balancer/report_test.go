package balancer

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
)

// One Event about a limit has the number of services. The next one follows when there is another service, and after the interval. Other limits do not wait for it.
func TestReportLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: t, Balancer: &Balancer{reported: map[string]report{}, logs: newLogs()}}
		f.Balancer.events = f
		f.newLimits()
		for _, r := range f.limits {
			go r.Run(t.Context())
		}
		var address, sctp report
		address.limits[limitAddress], sctp.limits[limitSCTP] = true, true
		for i, step := range []struct {
			wait    time.Duration // before
			service string
			found   report
			events  int    // in total
			last    string // Event
		}{
			{0, "ns/b", address, 1, "ServiceLimited 1 services, such as ns/b: " + limitAddress.String()},
			{time.Minute, "ns/a", address, 1, ""}, // too soon
			{time.Minute, "ns/s", sctp, 2, "ServiceLimited 1 services, such as ns/s: " + limitSCTP.String()},
			{time.Minute, "ns/b", report{}, 2, ""},
			{time.Minute, "ns/c", address, 2, ""},
			{limitsInterval, "ns/s", sctp, 3, "ServiceLimited 2 services, such as ns/a: " + limitAddress.String()},
			{limitsInterval, "ns/s", sctp, 3, ""}, // no other service
			{0, "ns/e", address, 4, "ServiceLimited 3 services, such as ns/a: " + limitAddress.String()},
		} {
			time.Sleep(step.wait) //nolint:forbidigo // the bubble's clock
			f.report(t.Context(), step.service, step.found)
			synctest.Wait()
			if got := f.warnings(); len(got) != step.events || step.last != "" && got[len(got)-1] != step.last {
				t.Errorf("step %d: got Events %q, want %d, the last %q", i, got, step.events, step.last)
			}
		}
	})
}

// TestReport_logs: a tenant that changes Services does not fill the log; the next line has the number of those omitted.
func TestReport_logs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		b, ctx := &Balancer{reported: map[string]report{}, logs: newLogs()}, klog.NewContext(t.Context(), logger)
		for i := range 1500 {
			b.report(ctx, "ns/web", report{invalid: fmt.Sprint("field ", i)})
		}
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		b.report(ctx, "ns/web", report{invalid: "last field"})
		logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if got := strings.Count(logs, "Ignored invalid fields"); got != 1001 || !strings.Contains(logs, "omittedBefore=500") {
			t.Errorf("got %d lines, want 1001, and 500 omitted before the last; it is %q", got, logs[max(0, len(logs)-300):])
		}
	})
}

// TestReport_local: endpoints of a port that no node uses are reported.
func TestReport_local(t *testing.T) {
	b := &Balancer{nodeName: "n1"}
	for _, test := range []struct {
		local, remote int
		want          bool
	}{{256, 0, false}, {257, 0, true}, {300, 1, false}} {
		var all []endpoints.Target
		for i := range test.local + test.remote {
			addr := netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)}) //nolint:gosec // of an address
			all = append(all, endpoints.Target{Addr: netip.AddrPortFrom(addr, 8080), Local: i < test.local})
		}
		var found report
		ports := b.portEndpoints(endpoints.Selection{Ports: []endpoints.PortSelection{{Internal: endpoints.Targets{Endpoints: all}}}}, &found)
		if found.limits[limitLocal] != test.want || len(ports[0].internal) != 256 {
			t.Errorf("%d local endpoints, %d others: got %d, reported %t, want 256, %t", test.local, test.remote, len(ports[0].internal), found.limits[limitLocal], test.want)
		}
	}
}

// TestReport_problems checks that invalid fields of a service and of its slices are reported once, until they change.
func TestReport_problems(t *testing.T) {
	bad := slice("a", "web", corev1.ProtocolTCP, 0, "10.128.0.5", "172.30.0.77")
	var r report
	r.addProblems("EndpointSlice a", endpoints.NewSlice(bad, netip.MustParsePrefix("172.30.0.0/16")).Problems)
	for _, want := range []string{"EndpointSlice a: 2 invalid fields", "172.30.0.77"} {
		if !strings.Contains(r.invalid, want) {
			t.Errorf("report: got %q, want %q in it", r.invalid, want)
		}
	}
	if r.limits != [limits]bool{} {
		t.Errorf("limits of the node: got %v, want none", r.limits)
	}
}
