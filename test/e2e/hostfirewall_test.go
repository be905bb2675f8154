package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// hostFirewallLab is the name of the lab that this test brings up.
const hostFirewallLab = "e2e-firewall"

// TestHostFirewallChanges changes the agents of a running cluster from iptables to nftables and back. No ping between pods of two nodes is lost, at each stage pods
// reach services and hosts outside, and an uninstallation leaves neither program's rules. kube-proxy serves services, so that their packets pass the host's rules.
func TestHostFirewallChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own; TestImplementations in pkg/sdn/node/hostnet sends packets through both")
	}
	c := ownCluster(t, hostFirewallLab, lab.Shape{Nodes: 2, Mode: lab.NetworkPolicy, ServiceProxy: lab.External, Install: lab.None})
	before := c.allSettings(t)
	x := c.install(t)
	s := newProxyChange(t, x)
	for _, program := range []string{"nftables", "auto", "nftables"} {
		t.Run(program, func(t *testing.T) {
			x.losesNothing(t, func() { x.setFirewall(t, program) }, fineStreamOf(x.a, x.c))
			for _, node := range c.Nodes() {
				x.hasRulesIn(t, node, program)
			}
			s.reaches(t)
			hasSource(t, "a host outside", x.a.NetNS, x.outside.NetNS, netip.AddrPortFrom(lab.OutsideAddr(), 0), x.Addr(t, fixture.Node1))
		})
	}
	if err := c.DeletePods(t.Context(), x.namespace); err != nil {
		t.Fatal(err)
	}
	c.uninstall(t)
	c.haveSettings(t, before)
}

// setFirewall rolls agents out with the flag.
func (c *cluster) setFirewall(t *testing.T, program string) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), installTime)
	defer cancel()
	const args = "{.spec.template.spec.containers[0].args}"
	have, stderr, err := c.Kubectl(ctx, "--namespace=ovsdn-system", "get", "daemonset/ovsdn-node", "--output=jsonpath="+args)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	op, path := "add", "/spec/template/spec/containers/0/args/-"
	if at := strings.Count(have[:max(0, strings.Index(have, "--firewall="))], ","); strings.Contains(have, "--firewall=") {
		op, path = "replace", fmt.Sprintf("/spec/template/spec/containers/0/args/%d", at)
	}
	patch := fmt.Sprintf(`[{"op":%q,"path":%q,"value":"--firewall=%s"}]`, op, path, program)
	if _, stderr, err := c.Kubectl(ctx, "--namespace=ovsdn-system", "patch", "daemonset/ovsdn-node", "--type=json", "--patch="+patch); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	if err := c.WaitRollout(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("--firewall=%s on all nodes after %.1fs", program, time.Since(began).Seconds())
}

// hasRulesIn waits until the node has rules of the agent in the one program, and none in the other.
func (c *cluster) hasRulesIn(t *testing.T, node, program string) {
	t.Helper()
	fixture.Eventually(t, fixture.ProgramTime, "the rules of "+node+" are in the program of --firewall="+program, func(ctx context.Context) error {
		saved, err := c.TryOutput(ctx, node, "bash", "-c", "iptables-save; iptables-legacy-save; ipset list -name || true")
		if err != nil {
			return err
		}
		tables, err := c.TryOutput(ctx, node, "nft", "list", "tables", "ip")
		if err != nil {
			return err
		}
		want := program == "nftables"
		if got := strings.Contains(tables, "table ip ovsdn-host"); got != want {
			return fmt.Errorf("table ovsdn-host of nftables: %t, want %t", got, want)
		}
		if got := strings.Contains(saved, "OVSDN-"); got == want {
			return errors.Join(fmt.Errorf("chains or sets in iptables: %t, want %t", got, !want), errors.New(saved))
		}
		return nil
	})
}
