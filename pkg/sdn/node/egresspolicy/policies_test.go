package egresspolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/tier"
)

const denyAll1 = "priority=100,reg10=0x1,actions=drop"

// number returns the number that the flows of the namespace's pods load.
func (a *agent) number(namespace string) pipeline.EgressFirewallID {
	id, _ := flowstore.Get[pipeline.EgressFirewallID](a.st, inputs.EgressFirewall(namespace))
	return id
}

func TestPolicies(t *testing.T) {
	c := newCluster(t)
	c.policies.Add(egressPolicy("tenant/default", "Allow 192.0.2.0/24", "Deny 0.0.0.0/0"))
	c.policies.Add(egressPolicy("elsewhere/default", "Deny 0.0.0.0/0"))
	a, _ := c.start(t, "tenant/5", "other/6")
	a.want(denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=pass")
	if a.number("tenant") != 1 || a.number("other") != 0 {
		t.Errorf("got numbers %d and %d, want 1 and 0", a.number("tenant"), a.number("other"))
	}

	// A change is one bundle of one flow.
	bundles, changes := c.bridge.Bundles(), c.bridge.Changes()
	c.policies.Modify(egressPolicy("tenant/default", "Allow 192.0.2.0/24", "Allow 198.51.100.0/24", "Deny 0.0.0.0/0"))
	a.want(denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=pass", "priority=124,reg10=0x1,nw_dst=198.51.100.0/24,actions=pass")
	if c.bridge.Bundles() != bundles+1 || c.bridge.Changes() != changes+1 {
		t.Errorf("got %d bundles with %d changes, want 1 with 1", c.bridge.Bundles()-bundles, c.bridge.Changes()-changes)
	}

	c.policies.Add(egressPolicy("other/default", "Deny 0.0.0.0/32"))
	a.want(denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=pass", "priority=124,reg10=0x1,nw_dst=198.51.100.0/24,actions=pass", "priority=100,reg10=0x2,actions=drop")
	// The first of several policies decides.
	c.policies.Add(egressPolicy("other/a", "Allow 203.0.113.0/24"))
	c.policies.Delete(egressPolicy("tenant/default"))
	a.want("priority=100,reg10=0x2,actions=drop", "priority=124,reg10=0x2,nw_dst=203.0.113.0/24,actions=pass")
	if a.number("tenant") != 0 || a.number("other") != 2 {
		t.Errorf("got numbers %d and %d, want 0 and 2", a.number("tenant"), a.number("other"))
	}

	// A pod that starts has the firewall of its namespace when Attach is done, and the last one that is removed takes it along.
	if err := a.attach("elsewhere/7")(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.want("priority=100,reg10=0x2,actions=drop", "priority=124,reg10=0x2,nw_dst=203.0.113.0/24,actions=pass", "priority=100,reg10=0x3,actions=drop")
	for _, pod := range []string{"elsewhere/7", "other/6", "unknown/9"} {
		if err := a.Detach(owner(pod))(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	a.want()
}

// Writes to the status of a policy, of which each node makes some, do not read its rules again.
func TestPolicies_statusWritten(t *testing.T) {
	c := newCluster(t)
	c.policies.Add(egressPolicy("tenant/default", "Deny 0.0.0.0/0"))
	a, _ := c.start(t, "tenant/5", "other/6")
	a.want(denyAll1)
	unread := []generation{{UID: "not read again"}}
	a.Policies.mu.Lock()
	tenant := a.namespaces["tenant"]
	read := tenant.version
	tenant.version = unread
	a.Policies.mu.Unlock()
	c.policies.Modify(egressPolicy("tenant/default", "Deny 0.0.0.0/0")) // the same generation
	c.policies.Add(egressPolicy("other/default", "Deny 0.0.0.0/0"))     // is handled after it
	a.want(denyAll1, "priority=100,reg10=0x2,actions=drop")
	a.Policies.mu.Lock()
	defer a.Policies.mu.Unlock()
	if current := versionOf(a.objects("tenant")); !slices.Equal(tenant.version, unread) || !slices.Equal(current, read) {
		t.Errorf("got version %v read, and %v cached, want %v and %v", tenant.version, current, unread, read)
	}
}

// Invalid policies retain the last valid rules, also over a restart. Where there are none, all packets are denied.
func TestPolicies_invalid(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.policies.Add(egressPolicy("tenant/default", "Allow 192.0.2.0/24", "Deny 192.0.0.0/16", "Allow 0.0.0.0/0"))
	a, stop := c.start(t, "tenant/5")
	valid := []string{"priority=100,reg10=0x1,actions=pass", "priority=116,reg10=0x1,nw_dst=192.0.0.0/16,actions=drop", "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=pass"}
	a.want(valid...)
	c.policies.Modify(egressPolicy("tenant/default", "Allow 192.0.2.0/24", "Deny *.example.com"))
	c.policies.Add(egressPolicy("other/default", "Allow 192.0.2.0"))
	if err := a.attach("other/6")(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := append([]string{"priority=100,reg10=0x2,actions=drop"}, valid...)
	a.want(all...)
	// The namespace's pod is replaced.
	if err := a.Detach(owner("tenant/5"))(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.attach("tenant/5")(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.want(all...)
	stop()

	changes := c.bridge.Changes()
	a, _ = c.start(t, "other/6", "tenant/5")
	if err := a.st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "n"}, pipeline.State{}).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.want(all...)
	if c.bridge.Changes() != changes {
		t.Errorf("got %d changes by the restart, want none", c.bridge.Changes()-changes)
	}
	c.policies.Modify(egressPolicy("tenant/default", "Deny 198.51.100.0/24"))
	a.want("priority=100,reg10=0x2,actions=drop", "priority=100,reg10=0x1,actions=pass", "priority=124,reg10=0x1,nw_dst=198.51.100.0/24,actions=drop")
	c.policies.Delete(egressPolicy("tenant/default"))
	c.policies.Delete(egressPolicy("other/default"))
	a.want()
}

// DNS opens hosts outside only, a name without an answer allows nothing, and one that is denied without an answer denies all.
func TestPolicies_names(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	node := &networkv1.HostSubnet{Host: "node2", HostIP: "172.31.0.12"}
	node.Name = "node2"
	c.hostSubnets.Add(node)
	c.resolve("www.example.com", "192.0.2.1", "192.0.2.2", "10.128.0.7", "172.30.0.1", "172.31.0.12", "169.254.169.254", "127.0.0.1", "224.0.0.1", "0.0.0.0", "255.255.255.255")
	c.resolve("none.example.com")
	c.policies.Add(egressPolicy("tenant/default", "Allow WWW.example.com.", "Allow silent.example.com", "Deny none.example.com", "Deny 0.0.0.0/0"))
	a, _ := c.start(t, "tenant/5")
	one, two := "priority=132,reg10=0x1,nw_dst=192.0.2.1,actions=pass", "priority=132,reg10=0x1,nw_dst=192.0.2.2,actions=pass"
	a.want(denyAll1, one, two)
	if names, more := a.UnresolvedNames("tenant", 1); len(names) != 1 || names[0] != "none.example.com" || more != 1 {
		t.Errorf("got unresolved names %q and %d more, want none.example.com and 1", names, more)
	}
	if names, more := a.UnresolvedNames("tenant", 5); len(names) != 2 || !strings.HasPrefix(names[1], "silent.example.com") || more != 0 {
		t.Errorf("got unresolved names %q and %d more, want none.example.com and silent.example.com", names, more)
	}
	if names, more := a.UnresolvedNames("other", 5); len(names) != 0 || more != 0 {
		t.Errorf("got unresolved names %q and %d more of a namespace without pods", names, more)
	}

	c.policies.Modify(egressPolicy("tenant/default", "Allow www.example.com", "Deny silent.example.com", "Allow 198.51.100.0/24"))
	a.want(denyAll1, one, two, "priority=124,reg10=0x1,nw_dst=198.51.100.0/24,actions=drop")
	c.resolve("silent.example.com", "198.51.100.7")
	a.want(one, two, "priority=100,reg10=0x1,actions=pass", "priority=124,reg10=0x1,nw_dst=198.51.100.0/24,actions=pass", "priority=132,reg10=0x1,nw_dst=198.51.100.7,actions=drop")
	c.policies.Modify(egressPolicy("tenant/default", "Deny 0.0.0.0/0"))
	a.want(denyAll1)
	if got := a.resolver.Answer("www.example.com"); got.Known {
		t.Errorf("got %v of a name that no rule has", got)
	}
}

// A pod of another namespace takes over the sandbox's owner.
func TestPolicies_ownerChangesNamespace(t *testing.T) {
	c := newCluster(t)
	c.policies.Add(egressPolicy("tenant/default", "Deny 0.0.0.0/0"))
	a, _ := c.start(t, "tenant/5")
	a.want(denyAll1)
	a.Policies.attach(t.Context(), owner("tenant/5"), "other", []netip.Addr{netip.MustParseAddr("10.128.0.5")})
	a.want()
}

// Rules of a namespace without pods here are retained only while its policies are invalid, and with their names, not with addresses.
func TestPolicies_invalidWithoutPods(t *testing.T) {
	tier.Parallel(t)
	const invalid = "Deny *.example.com"
	c := newCluster(t)
	c.resolve("www.example.com", "192.0.2.1")
	c.policies.Add(egressPolicy("tenant/default", "Allow www.example.com", "Deny 0.0.0.0/0"))
	c.policies.Add(egressPolicy("again/default", "Allow 192.0.2.0/24", "Deny 0.0.0.0/0"))
	c.policies.Add(egressPolicy("events/default", "Deny 0.0.0.0/0"))
	a, _ := c.start(t, "events/5", "tenant/6", "again/7")
	const tenant, again = "priority=100,reg10=0x2,actions=drop", "priority=100,reg10=0x3,actions=drop"
	const allowTenant, allowAgain = "priority=132,reg10=0x2,nw_dst=192.0.2.1,actions=pass", "priority=124,reg10=0x3,nw_dst=192.0.2.0/24,actions=pass"
	a.want(denyAll1, tenant, again, allowTenant, allowAgain)
	events := 0
	handled := func(want ...string) { // all events so far
		t.Helper()
		events++
		c.policies.Modify(egressPolicy("events/default", fmt.Sprintf("Allow 198.51.100.%d/32", events), "Deny 0.0.0.0/0"))
		a.want(append(want, denyAll1, fmt.Sprintf("priority=132,reg10=0x1,nw_dst=198.51.100.%d,actions=pass", events))...)
	}
	c.policies.Modify(egressPolicy("tenant/default", invalid))
	c.policies.Modify(egressPolicy("again/default", invalid))
	handled(tenant, again, allowTenant, allowAgain)
	for _, pod := range []string{"tenant/6", "again/7"} {
		if err := a.Detach(owner(pod))(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.policies.Delete(egressPolicy("again/default")) // with its namespace
	handled()
	c.policies.Add(egressPolicy("again/default", invalid))
	c.resolve("www.example.com", "192.0.2.2")
	handled()
	for _, pod := range []string{"tenant/6", "again/7"} {
		if err := a.attach(pod)(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	handled(tenant, "priority=132,reg10=0x2,nw_dst=192.0.2.2,actions=pass", "priority=100,reg10=0x4,actions=drop")
}

// A restarted agent retains the rules of the previous one only for namespaces whose policies are invalid.
func TestPolicies_recovered(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.policies.Add(egressPolicy("tenant/default", "Allow 192.0.2.0/24", "Deny 0.0.0.0/0"))
	c.policies.Add(egressPolicy("other/default", "Deny 0.0.0.0/0"))
	a, stop := c.start(t, "tenant/5", "other/6")
	a.want(denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=pass", "priority=100,reg10=0x2,actions=drop")
	stop()
	a, _ = c.start(t, "other/6") // without the pod of tenant
	a.want("priority=100,reg10=0x2,actions=drop")
	c.policies.Modify(egressPolicy("tenant/default", "Allow 192.0.2.0"))
	c.policies.Modify(egressPolicy("other/default", "Deny 198.51.100.0/24"))
	other := []string{"priority=100,reg10=0x2,actions=pass", "priority=124,reg10=0x2,nw_dst=198.51.100.0/24,actions=drop"}
	a.want(other...)
	if err := a.attach("tenant/5")(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.want(append(other, fmt.Sprintf("priority=100,reg10=%#x,actions=drop", uint32(a.number("tenant"))))...)
}

// A name does not open the address of a node that joins the cluster.
func TestPolicies_nodeJoins(t *testing.T) {
	c := newCluster(t)
	c.resolve("www.example.com", "192.0.2.1")
	c.policies.Add(egressPolicy("tenant/default", "Allow www.example.com", "Deny 0.0.0.0/0"))
	a, _ := c.start(t, "tenant/5")
	allowed := "priority=132,reg10=0x1,nw_dst=192.0.2.1,actions=pass"
	a.want(denyAll1, allowed)
	node := &networkv1.HostSubnet{Host: "node2", HostIP: "192.0.2.1"}
	node.Name = "node2"
	c.hostSubnets.Add(node)
	a.want(denyAll1)
	c.hostSubnets.Delete(node)
	a.want(denyAll1, allowed)
}

// Answers of DNS wait for the pause of their namespace; changes of policies do not.
func TestPolicies_pause(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.resolve("www.example.com", "192.0.2.1")
	for _, namespace := range []string{"busy", "tenant"} {
		c.policies.Add(egressPolicy(namespace+"/default", "Allow www.example.com", "Deny 0.0.0.0/0"))
	}
	a, _ := c.start(t, "busy/5", "tenant/6")
	const denyBusy, denyTenant = denyAll1, "priority=100,reg10=0x2,actions=drop"
	allowed := func(id, last int) string {
		return fmt.Sprintf("priority=132,reg10=%#x,nw_dst=192.0.2.%d,actions=pass", id, last)
	}
	a.want(denyBusy, denyTenant, allowed(1, 1), allowed(2, 1))
	a.Policies.mu.Lock()
	a.namespaces["busy"].next = time.Now().Add(time.Hour)
	a.Policies.mu.Unlock()
	c.resolve("www.example.com", "192.0.2.1", "192.0.2.2")
	a.want(denyBusy, denyTenant, allowed(1, 1), allowed(2, 1), allowed(2, 2))
	a.pause("tenant", time.Now().Add(-time.Hour))
	a.Policies.mu.Lock()
	if pause := time.Until(a.namespaces["tenant"].next); pause > maxUpdatePause || pause < maxUpdatePause/2 {
		t.Errorf("got a pause of %v, want %v", pause, maxUpdatePause)
	}
	a.Policies.mu.Unlock()
	c.policies.Modify(egressPolicy("busy/default", "Allow www.example.com", "Deny 0.0.0.0/1"))
	a.want("priority=100,reg10=0x1,actions=pass", "priority=101,reg10=0x1,nw_dst=0.0.0.0/1,actions=drop", denyTenant,
		allowed(1, 1), allowed(1, 2), allowed(2, 1), allowed(2, 2))
}
