package pods

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// Sysctls of host veths that another program changes, also by those of all interfaces, are restored by the next reconciliation.
func TestReconcile_restoresSysctls(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("a", newNetns(t))
	add(t, a, req)
	hostVeth := sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}.HostVeth()

	values := func() (all string) {
		noError(t, n.host.Do(func(ns.NetNS) error {
			for _, s := range sysctl.Table() {
				if s.Scope != sysctl.ScopeVeth {
					continue
				}
				value, err := sysctl.Dir("").Get(s.Name(hostVeth))
				if err != nil {
					return err
				}
				all += s.Key[strings.LastIndex(s.Key, "/")+1:] + "=" + value + " "
			}
			return nil
		}))
		return all
	}
	const want = "arp_ignore=8 forwarding=0 disable_ipv6=1 "
	if got := values(); got != want {
		t.Errorf("after ADD: got %s, want %s", got, want)
	}
	noError(t, n.host.Do(func(ns.NetNS) error {
		for _, change := range []string{"net/ipv4/conf/all/forwarding=0", "net/ipv4/conf/all/forwarding=1", "net/ipv6/conf/all/disable_ipv6=1", "net/ipv6/conf/all/disable_ipv6=0",
			"net/ipv4/conf/" + hostVeth + "/arp_ignore=0"} {
			name, value, _ := strings.Cut(change, "=")
			if err := sysctl.Dir("").Set(name, value); err != nil {
				return err
			}
		}
		return nil
	}))
	if got := values(); got == want {
		t.Errorf("after a change: got %s: the test has no effect", got)
	}
	noError(t, a.reconcile(t.Context(), allValid))
	if got := values(); got != want {
		t.Errorf("after the reconciliation: got %s, want %s", got, want)
	}
}

// readOnlySysctls are the links of an agent that can't write sysctls.
type readOnlySysctls struct{ Links }

func (readOnlySysctls) RestoreSysctls(_ context.Context, hostVeth string) ([]string, error) {
	return nil, fmt.Errorf("write sysctl of %s: %w", hostVeth, unix.EROFS)
}

// A sysctl of a running pod that can't be written is reported by SysctlsHealthy until it can be, and not by Healthy: the switch works.
func TestHealthy_sysctls(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	add(t, a, n.addPod("a", newNetns(t)))
	writable := a.links
	a.links = readOnlySysctls{a.links}
	noError(t, a.reconcile(t.Context(), allValid))
	noError(t, a.Healthy())
	if err := a.SysctlsHealthy(); err == nil || !strings.Contains(err.Error(), "host veth of pod") {
		t.Errorf("SysctlsHealthy with read-only sysctls: got %v, want an error with the pod", err)
	}
	if err := a.Status(t.Context()); err != nil {
		t.Errorf("STATUS: got %v, want no error", err)
	}
	a.links = writable
	noError(t, a.reconcile(t.Context(), allValid))
	noError(t, a.SysctlsHealthy())
}
