package hostports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

const (
	// checkPeriod is the interval of checks of the rules.
	checkPeriod = 10 * time.Second

	// maxCheckPeriod is the interval while another program deletes the rules again and again.
	maxCheckPeriod = 5 * time.Minute

	// maxNames bounds the names in one Event.
	maxNames = 10
)

// Run writes missing rules again, deletes those of sandboxes that do not exist any longer, and reports conflicts, until the context ends.
func (p *Ports) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("part", "host ports"))
	r := reconciler{Ports: p}
	for delay := time.Duration(0); pause.For(ctx, delay); delay = p.period {
		r.round(ctx)
	}
}

// reconciler has what previous rounds reported.
type reconciler struct {
	*Ports
	restoreAt    time.Time // time of the next restoration
	restoreDelay time.Duration
	allRecorded  bool // all rules have a record
	failure      string
	conflicting  map[string]bool // of the previous round; true: reported
}

func (r *reconciler) round(ctx context.Context) {
	logger := klog.FromContext(ctx)
	var errs []error
	if r.recordedBackend() == "" {
		_, err := r.findBackend(ctx)
		errs = append(errs, err)
	}
	errs = append(errs, r.releaseDetached(ctx), r.removeUnknown(ctx))
	if now := time.Now(); !now.Before(r.restoreAt) {
		restored, err := r.restore(ctx)
		errs = append(errs, err)
		r.restoreDelay = min(2*r.restoreDelay, maxCheckPeriod)
		if len(restored) == 0 {
			r.restoreDelay = r.period
		} else { // another program may delete them again: back off
			r.restoreDelay = max(r.restoreDelay, r.period)
			logger.Info("Restored host ports", "pods", restored, "nextCheck", r.restoreDelay)
			r.WarnNode(eventreason.HostPortsRestored, fmt.Sprintf("rules of the host ports of %s were deleted while the agent ran, or before it started, and are restored; "+
				"find the program that flushes the firewall", names(restored, ", ")))
		}
		r.restoreAt = now.Add(r.restoreDelay)
	}
	errs = append(errs, r.reportConflicts(ctx))
	if ctx.Err() != nil {
		return
	}
	failure := ""
	if err := errors.Join(errs...); err != nil {
		logger.Error(err, "Failed to reconcile host ports", "retryAfter", r.period)
		if failure = err.Error(); failure != r.failure {
			r.WarnNode(eventreason.HostPortsFailed, fmt.Sprintf("host ports of pods on this node do not work: %v; the agent tries again", err))
		}
	}
	r.failure = failure
}

// names joins the first names.
func names(all []string, separator string) string {
	if len(all) > maxNames {
		return fmt.Sprintf("%s%sand %d more", strings.Join(all[:maxNames], separator), separator, len(all)-maxNames)
	}
	return strings.Join(all, separator)
}

// settled returns the claims whose rules should exist, with their records.
func (p *Ports) settled() (claims []*claim, all []record) {
	for _, c := range p.claims() {
		if r := p.recordOf(c); !p.isAdding(c) && r.Result != nil {
			claims, all = append(claims, c), append(all, r)
		}
	}
	return claims, all
}

// restore returns the pods whose rules were missing, and are written again. It continues after errors and joins them.
func (p *Ports) restore(ctx context.Context) (restored []string, err error) {
	claims, all := p.settled()
	p.routeLoopback(ctx)
	var errs []error
	for i, c := range claims {
		errs = append(errs, p.locked(ctx, c, func() error { return p.records.restore(all[i]) }))
	}
	lost, err := p.Plugin.Missing(ctx, all)
	if err == nil && len(lost) > 0 {
		errs = append(errs, p.syncFirewall(ctx)) // a flush may have deleted both
	}
	failed := map[Attachment]bool{}
	for missing := lost; err == nil && len(missing) > 0; {
		r := missing[0]
		c := claims[slices.IndexFunc(all, r.isAttachment)]
		if err := p.repair(ctx, c); err != nil {
			failed[r.Attachment] = true
			errs = append(errs, fmt.Errorf("pod %s/%s: %w", r.Namespace, r.Name, err))
		}
		first := len(missing) == len(lost)
		if missing = missing[1:]; first && len(missing) > 0 { // the repair of one pod restores the rules that all share
			missing, err = p.Plugin.Missing(ctx, missing)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	for _, r := range lost {
		if !failed[r.Attachment] {
			restored = append(restored, r.Namespace+"/"+r.Name)
		}
	}
	return restored, errors.Join(errs...)
}

// locked calls do unless the claim was released.
func (p *Ports) locked(ctx context.Context, c *claim, do func() error) error {
	unlock, ok, err := p.lock(ctx, c)
	if err != nil || !ok {
		return err
	}
	defer unlock()
	return do()
}

// repair writes the rules of a claim again. ADD alone would write the remaining rules a second time.
func (p *Ports) repair(ctx context.Context, c *claim) error {
	return p.locked(ctx, c, func() error {
		r := p.recordOf(c)
		if err := p.Plugin.Del(ctx, r); err != nil {
			return err
		}
		return p.writeRules(ctx, r)
	})
}

// releaseDetached deletes the rules of sandboxes that do not exist any longer, and which the pod manager does not know.
func (p *Ports) releaseDetached(ctx context.Context) error {
	claims := p.claims()
	attached := p.Attached()
	var errs []error
	for _, c := range claims {
		if attached[c.attachment] || p.isAdding(c) {
			continue
		}
		r := p.recordOf(c)
		if err := p.release(ctx, c, func() bool { return p.isDetached(c) }); err != nil {
			errs = append(errs, fmt.Errorf("delete host ports of detached pod %s/%s: %w", r.Namespace, r.Name, err))
		} else if p.get(c.attachment) != c {
			klog.FromContext(ctx).Info("Deleted host ports of a detached pod", "pod", klog.KRef(r.Namespace, r.Name), "sandbox", r.Sandbox)
		}
	}
	return errors.Join(errs...)
}

// reportConflicts reports each conflict that two rounds found: programs open UDP sockets at random ports for a moment.
func (r *reconciler) reportConflicts(ctx context.Context) error {
	_, all := r.settled()
	found, err := r.conflicts(ctx, all)
	if err != nil {
		return err
	}
	conflicting, fresh := map[string]bool{}, []string(nil)
	for _, text := range found {
		reported, again := r.conflicting[text]
		if again && !reported {
			fresh = append(fresh, text)
		}
		conflicting[text] = again
	}
	r.conflicting = conflicting
	if len(fresh) > 0 {
		r.WarnNode(eventreason.HostPortConflict, fmt.Sprintf("%s: packets from other hosts reach the pod; delete one of the two", names(fresh, "; ")))
	}
	return nil
}
