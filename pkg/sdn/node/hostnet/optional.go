package hostnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink/nl"
	"k8s.io/klog/v2"
)

// Skipped is an optional feature of the firewall that could not be set up.
type Skipped struct {
	Feature Feature
	Err     error
	Remedy  string // the user action for the cause
}

// modulesDisabled contains 1 if the kernel loads no modules until the next boot. A kernel without loadable modules does not have the file.
const modulesDisabled = "/proc/sys/kernel/modules_disabled"

// Causes whose remedy is not to load a module.
var (
	errForeignSet    = errors.New("another program created it")
	errForeignWriter = errors.New("another program changes the chain")
)

// remedy returns the remedy for a failure of the optional chain, and whether the kernel lacks modules.
func (o Optional) remedy(err error, loadsModules bool) (action string, lacksModules bool) {
	const badParameters = 2 // PARAMETER_PROBLEM of xtables.h: the program does not support a match or target
	failed := (*iptables.Error)(nil)
	isIPTables := errors.As(err, &failed)
	switch {
	case errors.Is(err, errForeignSet):
		return "remove the other program's set: ipset destroy " + o.Set, false
	case errors.Is(err, errForeignWriter):
		return "stop the program that writes to the chain", false
	case errors.Is(err, fs.ErrPermission):
		return "allow the agent CAP_NET_ADMIN and CAP_NET_RAW, also in the rules of SELinux and AppArmor", false
	case isIPTables && failed.ExitStatus() == badParameters:
		return "install an iptables that has the extensions of " + o.Modules, false
	case !isIPTables && !lacksSets(err) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_FIND_TYPE)):
		return "see the cause; the agent retries", false
	case !loadsModules:
		return "boot a kernel that has them; this one loads no modules", true
	}
	return "load the modules", true
}

// kernelLoadsModules reports whether modules can be loaded without booting.
func kernelLoadsModules() bool {
	value, err := os.ReadFile(modulesDisabled)
	return err == nil && strings.TrimSpace(string(value)) == "0"
}

// isNoTable reports whether the kernel lacks the table: iptables-legacy then exits with the status of a version mismatch.
func isNoTable(err error) bool {
	const versionProblem = 3 // XTF_VERSION_PROBLEM of xtables.h
	failed := (*iptables.Error)(nil)
	return errors.As(err, &failed) && failed.ExitStatus() == versionProblem
}

// skip records the failure of an optional chain, and logs each cause once.
func (f *firewallState) skip(ctx context.Context, c Chain, err error) {
	if s, isNew := f.record(c, c.Optional, err); isNew {
		klog.FromContext(ctx).Error(s.Err, "Skipped optional iptables chain", "chain", c.Name, "table", c.Table, "feature", s.Feature, "action", s.Remedy)
	}
}

// setReduced records whether the active rules of a chain lack its feature, since iptables has rejected others.
func (f *firewallState) setReduced(c Chain, active []Rule, rejected error) {
	switch {
	case c.Reduced == nil:
	case rejected != nil && !slices.ContainsFunc(active, func(r Rule) bool { return slices.Contains(r, c.Reduced.Set) }):
		f.record(c, c.Reduced, rejected)
	default:
		f.setInstalled(c)
	}
}

// record records that a feature of the chain could not be set up, and reports whether the cause is new.
func (f *firewallState) record(c Chain, o *Optional, err error) (s Skipped, isNew bool) {
	remedy, lacksModules := o.remedy(err, kernelLoadsModules())
	err = fmt.Errorf("set up iptables chain %s of table %s: %w", c.Name, c.Table, err)
	if lacksModules {
		err = fmt.Errorf("%w; the kernel needs %s", err, o.Modules)
	}
	s = Skipped{Feature: o.Feature, Err: err, Remedy: remedy}
	return s, f.store(c.Name, s)
}

// store records a missing feature of a chain, and reports whether the cause is new.
func (f *firewallState) store(chain string, s Skipped) (isNew bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	previous, known := f.skipped[chain]
	if f.skipped == nil {
		f.skipped = map[string]Skipped{}
	}
	f.skipped[chain] = s
	return !known || previous.Err.Error() != s.Err.Error()
}

// setInstalled records that an optional chain, or all of a chain, is installed.
func (f *firewallState) setInstalled(c Chain) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.skipped, c.Name)
}

// Skipped implements Firewall.
func (f *firewallState) Skipped() []Skipped {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Skipped
	for _, c := range f.rules {
		s, ok := f.skipped[c.Name]
		if !ok {
			continue
		}
		n := len(all)
		if n == 0 || all[n-1].Feature != s.Feature { // chains of a feature are adjacent
			all = append(all, s)
			continue
		}
		all[n-1].Err = errors.Join(all[n-1].Err, s.Err)
		if all[n-1].Remedy != s.Remedy {
			all[n-1].Remedy += ", and " + s.Remedy
		}
	}
	return all
}
