package egressassignment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

const (
	// writeTimeout bounds the API calls of one plan, so that an unresponsive API server does not block the loop.
	writeTimeout = 10 * time.Second

	// maxWrites bounds the writes in progress.
	maxWrites = 8
)

// assign plans, writes what differs, and reports problems.
func (c *Controller) assign(ctx context.Context) error {
	wanted := c.wanted()
	planned := plan(c.automatic(), wanted, c.placed)
	err := c.write(ctx, planned)
	c.report(wanted)
	c.count()
	return err
}

// write writes the HostSubnets in two passes: the first removes IPs from nodes, so that the second adds none that another node still has.
func (c *Controller) write(ctx context.Context, planned map[string][]netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	first, _ := c.differing(planned)
	err := c.writeAll(ctx, first)
	_, additions := c.differing(planned)
	return errors.Join(err, c.writeAll(ctx, additions))
}

// differing returns the HostSubnets to write: those that get other annotations or lose IPs, and those that only get IPs.
func (c *Controller) differing(planned map[string][]netip.Addr) (first, additions []*networkv1.HostSubnet) {
	for _, name := range slices.Sorted(maps.Keys(c.hosts)) {
		h := c.hosts[name]
		if config.IsProposed(h.object) {
			continue // ovsdn-controller is about to confirm or to delete it
		}
		want := h.object.DeepCopy()
		c.annotate(h, want)
		if h.isAutomatic() {
			c.setIPs(want, planned[name])
		}
		loses := slices.ContainsFunc(h.object.EgressIPs, func(ip networkv1.HostSubnetEgressIP) bool { return !slices.Contains(want.EgressIPs, ip) })
		switch {
		case sameHostSubnet(h.object, want):
		case loses || !maps.Equal(h.object.Annotations, want.Annotations):
			first = append(first, want)
		default:
			additions = append(additions, want)
		}
	}
	return first, additions
}

// annotate sets the annotations about the reachability of a node.
func (c *Controller) annotate(h *hostSubnet, want *networkv1.HostSubnet) {
	state := c.prober.State(want.Name)
	set := func(key, value string, isSet bool) {
		_, is := want.Annotations[key]
		switch {
		case !isSet:
			delete(want.Annotations, key)
		case !is:
			metav1.SetMetaDataAnnotation(&want.ObjectMeta, key, value)
		}
	}
	set(config.EgressUnreachableAnnotation, time.Now().UTC().Format(time.RFC3339), h.isProbed() && state.Unreachable)
	set(config.EgressProbedAnnotation, "true", h.isProbed() && state.Answered)
}

// setIPs sets the planned IPs, without those that other nodes have.
func (c *Controller) setIPs(want *networkv1.HostSubnet, planned []netip.Addr) {
	ips := make([]networkv1.HostSubnetEgressIP, 0, len(planned))
	for _, a := range planned {
		if !slices.ContainsFunc(c.table.IP(a).Nodes, func(node string) bool { return node != want.Name }) {
			ips = append(ips, networkv1.HostSubnetEgressIP(a.String()))
		}
	}
	if !slices.Equal(slices.SortedFunc(slices.Values(ips), cmp.Compare), slices.SortedFunc(slices.Values(want.EgressIPs), cmp.Compare)) {
		want.EgressIPs = ips
	}
}

// writeAll writes HostSubnets, each unless it has changed since it was read.
func (c *Controller) writeAll(ctx context.Context, all []*networkv1.HostSubnet) error {
	var mu sync.Mutex
	var errs []error
	var results []*networkv1.HostSubnet
	var writes errgroup.Group
	writes.SetLimit(maxWrites)
	for _, want := range all {
		writes.Go(func() error {
			o, err := c.Network.NetworkV1().HostSubnets().Update(ctx, want, metav1.UpdateOptions{})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				results = append(results, o)
			case !apierrors.IsNotFound(err): // it was deleted
				errs = append(errs, fmt.Errorf("update HostSubnet %s: %w", want.Name, err))
			}
			return nil
		})
	}
	_ = writes.Wait() // returns no error
	for _, o := range results {
		c.wrote(ctx, o)
	}
	return errors.Join(errs...)
}

// wrote uses a version that was written, before the cache has it.
func (c *Controller) wrote(ctx context.Context, o *networkv1.HostSubnet) {
	before := c.hosts[o.Name].object
	w := c.written[o.Name]
	if w == nil {
		w = &written{}
		c.written[o.Name] = w
	}
	w.object, w.superseded = o, append(w.superseded, before.ResourceVersion)
	_, isMarked := o.Annotations[config.EgressUnreachableAnnotation]
	if _, wasMarked := before.Annotations[config.EgressUnreachableAnnotation]; isMarked && !wasMarked {
		c.failovers.Add(1)
	}
	c.useHostSubnet(o)
	klog.FromContext(ctx).Info("Updated egress IPs", "node", o.Name, "egressIPs", o.EgressIPs, "previousEgressIPs", before.EgressIPs, "unreachable", isMarked)
}
