package egresspolicy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/dnsresolver"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Intervals between two reports about a policy: names may change every few seconds, on each node.
const (
	errorInterval   = 30 * time.Second // if a name fails that did not, or the reverse
	addressInterval = 10 * time.Minute // if only addresses have changed, or other nodes report the policy
)

// firstReportSpread is the time, for each node of the cluster, over which the first reports about a policy are spread: all nodes see it at once, and each
// report is an event of the whole policy for all of them.
const firstReportSpread = 5 * time.Millisecond

// maxError bounds the text of an error in the status, in bytes.
const maxError = 256

// reporter writes what this node knows of the DNS names of policies to their status. Its loop has the keys of namespaces; the fields belong to its only worker.
type reporter struct {
	p        *Policies
	loop     *reconcile.Loop
	reported map[cache.ObjectName]report
}

// report is the last report about a policy.
type report struct {
	uid     types.UID
	node    egressstatus.Node
	at      time.Time
	omitted bool // other nodes report the policy
}

func newReporter(p *Policies) *reporter {
	r := &reporter{p: p, reported: map[cache.ObjectName]report{}}
	r.loop = reconcile.New("egress-policy-status", r.reconcile)
	return r
}

// reconcile reports the policies of a namespace, and removes the reports about policies without names and of namespaces without pods here.
func (r *reporter) reconcile(ctx context.Context, namespace string) error {
	r.p.mu.Lock()
	attached := r.p.namespaces[namespace] != nil
	r.p.mu.Unlock()
	current := map[cache.ObjectName]bool{}
	var errs []error
	if attached {
		for _, o := range r.p.objects(namespace) {
			key := cache.ObjectName{Namespace: namespace, Name: o.Name}
			node, pending := r.summary(o)
			if current[key] = len(node.Names) > 0; current[key] && !pending {
				errs = append(errs, r.update(ctx, key, o.UID, node))
			}
		}
	}
	for key, last := range r.reported {
		if key.Namespace != namespace || current[key] {
			continue
		}
		if !last.omitted {
			if err := r.patch(ctx, key, nil); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		delete(r.reported, key)
	}
	return errors.Join(errs...)
}

// summary returns what this node knows of the names of a policy, and whether a query for one of them has not ended.
func (r *reporter) summary(o *networkv1.EgressNetworkPolicy) (node egressstatus.Node, pending bool) {
	p, err := config.ParseEgressNetworkPolicy(o)
	if err != nil {
		return node, false
	}
	for _, name := range config.EgressNames(p.Rules) {
		answer := r.p.resolver.Answer(name)
		pending = pending || !answer.Known && answer.Err == nil
		n := nameStatus(name, answer)
		if node.Names = append(node.Names, n); node.Error == "" && n.Error != "" {
			node.Error = shorten(name + ": " + n.Error)
		}
		if len(node.Names) == config.MaxEgressNames {
			break
		}
	}
	return node, pending
}

// UnresolvedNames returns the DNS names of a namespace's rules that have no address, each with the error of the last query, and the number of those beyond most.
func (p *Policies) UnresolvedNames(namespace string, most int) (names []string, more int) {
	p.mu.Lock()
	n := p.namespaces[namespace]
	var all []string
	if n != nil {
		all = config.EgressNames(n.rules)
	}
	p.mu.Unlock()
	for _, name := range all {
		answer := p.resolver.Answer(name)
		if len(answer.Addrs) > 0 {
			continue
		}
		if len(names) == most {
			more++
			continue
		}
		if answer.Err != nil {
			name += fmt.Sprintf(" (%s)", shorten(reconcile.OneLine(answer.Err)))
		}
		names = append(names, name)
	}
	return names, more
}

func nameStatus(name string, a dnsresolver.Answer) egressstatus.Name {
	n := egressstatus.Name{Name: name, Count: len(a.Addrs)}
	for _, addr := range a.Addrs[:min(len(a.Addrs), egressstatus.MaxAddresses)] {
		n.Addresses = append(n.Addresses, addr.String())
	}
	switch {
	case a.Err != nil:
		n.Error = shorten(reconcile.OneLine(a.Err))
		n.Since = &metav1.Time{Time: a.Since.Truncate(time.Second)}
	case a.Excess:
		n.Error = "the name has more addresses than the budget; the rules have a part of them"
	}
	return n
}

func shorten(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxError)], "") }

// update reports the policy if it differs from the last report, or schedules that.
func (r *reporter) update(ctx context.Context, key cache.ObjectName, uid types.UID, node egressstatus.Node) error {
	last, known := r.reported[key]
	if !known || last.uid != uid {
		last = firstReport(uid, r.p.nodes.len())
		r.reported[key] = last
	}
	if reflect.DeepEqual(last.node, node) && !last.omitted {
		return nil
	}
	interval := addressInterval
	if !last.omitted && failing(last.node) != failing(node) {
		interval = errorInterval
	}
	if pause := time.Until(last.at.Add(interval)); pause > 0 {
		r.loop.AddAfter(key.Namespace, wait.Jitter(pause, 0.2))
		return nil
	}
	status, err := r.p.options.Status.Get(ctx, key.Namespace, key.Name)
	if err != nil {
		return ignoreNotFound(err)
	}
	now := report{uid: uid, node: node, at: time.Now()}
	if _, reports := status.Nodes[r.p.options.NodeName]; !reports && len(status.Nodes) >= egressstatus.MaxNodes {
		now.omitted = true
		r.loop.AddAfter(key.Namespace, wait.Jitter(addressInterval, 1))
	} else if err := r.patch(ctx, key, &node); err != nil {
		return err
	}
	r.reported[key] = now
	return nil
}

// firstReport returns a report that delays the first one about a policy, as one that other nodes report.
func firstReport(uid types.UID, nodes int) report {
	delay := rand.N(firstReportSpread * time.Duration(nodes+1)) //nolint:gosec // jitter
	return report{uid: uid, omitted: true, at: time.Now().Add(delay - addressInterval)}
}

// failing returns the names that fail.
func failing(node egressstatus.Node) string {
	var names []string
	for _, n := range node.Names {
		if n.Error != "" {
			names = append(names, n.Name)
		}
	}
	return strings.Join(names, " ")
}

func (r *reporter) patch(ctx context.Context, key cache.ObjectName, node *egressstatus.Node) error {
	_, err := r.p.options.Status.Patch(ctx, key.Namespace, key.Name, egressstatus.Status{Nodes: map[string]*egressstatus.Node{r.p.options.NodeName: node}})
	return ignoreNotFound(err)
}

// ignoreNotFound is for policies that were deleted, and for a CRD of an earlier version.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
