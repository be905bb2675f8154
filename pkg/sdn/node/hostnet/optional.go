package hostnet

import (
	"context"
	"errors"
	"fmt"

	"github.com/coreos/go-iptables/iptables"
	"k8s.io/klog/v2"
)

// Skipped is an optional feature of the firewall that could not be set up.
type Skipped struct {
	Feature Feature
	Err     error
}

// isNoTable reports whether the kernel lacks the table: iptables-legacy then exits with the status of a version mismatch.
func isNoTable(err error) bool {
	const versionProblem = 3 // XTF_VERSION_PROBLEM of xtables.h
	failed := (*iptables.Error)(nil)
	return errors.As(err, &failed) && failed.ExitStatus() == versionProblem
}

// skip records the failure of an optional chain, and logs each cause once.
func (f *Firewall) skip(ctx context.Context, c Chain, err error) {
	err = fmt.Errorf("set up iptables chain %s of table %s: %w; the kernel needs %s", c.Name, c.Table, err, c.Optional.Modules)
	f.mu.Lock()
	was := f.skipped[c.Name]
	if f.skipped == nil {
		f.skipped = map[string]error{}
	}
	f.skipped[c.Name] = err
	f.mu.Unlock()
	if was == nil || was.Error() != err.Error() {
		klog.FromContext(ctx).Error(err, "Skipped optional iptables chain", "chain", c.Name, "table", c.Table, "feature", c.Optional.Feature)
	}
}

// done records that an optional chain is installed.
func (f *Firewall) done(c Chain) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.skipped, c.Name)
}

// Skipped returns the optional features that are missing, each once. The node works without them. It is safe for concurrent use.
func (f *Firewall) Skipped() []Skipped {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Skipped
	for _, c := range f.rules {
		err := f.skipped[c.Name]
		if err == nil {
			continue
		}
		if n := len(all); n > 0 && all[n-1].Feature == c.Optional.Feature { // chains of a feature are neighbours
			all[n-1].Err = errors.Join(all[n-1].Err, err)
			continue
		}
		all = append(all, Skipped{c.Optional.Feature, err})
	}
	return all
}
