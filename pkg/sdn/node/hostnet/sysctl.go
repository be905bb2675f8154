package hostnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// Sysctls reads and writes the host's sysctls.
type Sysctls struct {
	Dir sysctl.Dir
	// SavedFile is the path of the file with the previous values of sysctls that the agent changed, for Restore. It must be on a file
	// system that a reboot clears, as it resets sysctls. "" saves nothing.
	SavedFile string
}

// setting is a sysctl that must have the value.
type setting struct {
	name, value string
	atLeast     bool     // a larger number is not changed
	saved       bool     // the previous value is saved, for an uninstall; not for sysctls of tun0
	sideEffects []string // other sysctls that the kernel changes when this one is written
}

// savedSetting is the previous value of a sysctl. The keys of its JSON are persistent.
type savedSetting struct {
	Name     string `json:"name"`
	Previous string `json:"was"`
	Written  string `json:"made,omitempty"` // by the agent; "": the kernel changed it as a side effect
}

// ipv4Settings returns the sysctls that pods' traffic through tun0 requires. The kernel's Documentation/networking/ip-sysctl.rst
// describes how sysctls of an interface and of `all` are combined.
func ipv4Settings() []setting {
	return []setting{
		// The host routes between pods and other networks.
		{name: "net/ipv4/ip_forward", value: "1", saved: true, sideEffects: []string{"net/ipv4/conf/all/accept_redirects"}},
		// Loose mode: packets from tun0 may have a source that is routed by another interface. Not 0: the kernel applies the larger one of
		// this and `all`, so that 0 would not override a strict 1.
		{name: "net/ipv4/conf/" + Tun0Name + "/rp_filter", value: "2"},
		// ARP requests for pods have the gateway's address, whatever source the packet has: the bridge drops ARP from
		// tun0 with any other sender address, which could poison pods' ARP caches.
		{name: "net/ipv4/conf/" + Tun0Name + "/arp_announce", value: "2"},
		// A packet to a service enters by tun0 and leaves by tun0 to its endpoint. The kernel would send the pod an ICMP redirect to the
		// endpoint, after which the service would not work for that pod. Either of the two settings enables
		// redirects, so both are 0; other interfaces have their own setting.
		{name: "net/ipv4/conf/all/send_redirects", value: "0", saved: true},
		{name: "net/ipv4/conf/" + Tun0Name + "/send_redirects", value: "0"},
	}
}

// neighbourSettings raise the thresholds of the IPv4 neighbour table, which the host and all pods share, for the addresses of a cluster.
// 65,536 entries take about 32 MiB. Only the initial network namespace has these sysctls. The largest is written first, so that the
// thresholds are in order at any time.
func neighbourSettings() []setting {
	const dir = "net/ipv4/neigh/default/"
	return []setting{
		{name: dir + "gc_thresh3", value: "65536", atLeast: true, saved: true},
		{name: dir + "gc_thresh2", value: "32768", atLeast: true, saved: true},
		{name: dir + "gc_thresh1", value: "8192", atLeast: true, saved: true},
	}
}

// isAtLeast compares numbers. It returns false for other values.
func isAtLeast(have, want string) bool {
	h, err := strconv.Atoi(have)
	w, wantErr := strconv.Atoi(want)
	return err == nil && wantErr == nil && h >= w
}

// noIPv6 disables IPv6 on tun0, and with it router solicitations and duplicate address detection in a pod network without IPv6.
func noIPv6() setting {
	return setting{name: "net/ipv6/conf/" + Tun0Name + "/disable_ipv6", value: "1"}
}

// ensure writes the setting if it differs, and returns the change. It does not write the same value: /proc/sys may be
// read-only, and a write of ip_forward resets other sysctls.
func (s Sysctls) ensure(w setting) (change string, err error) {
	have, err := s.Dir.Get(w.name)
	if err != nil {
		return "", err
	}
	if have == w.value || w.atLeast && isAtLeast(have, w.value) {
		return "", nil
	}
	if w.saved && s.SavedFile != "" {
		if err := s.save(w, have); err != nil {
			return "", fmt.Errorf("save previous value of sysctl %s=%s: %w", w.name, have, err)
		}
	}
	if err := s.Dir.Set(w.name, w.value); err != nil {
		return "", fmt.Errorf("change sysctl %s from %s to %s: %w; make /proc/sys writable for the agent (--sysctl-dir), or set it on the host (/etc/sysctl.d)",
			w.name, have, w.value, err)
	}
	return fmt.Sprintf("sysctl %s=%s (was %s)", w.name, w.value, have), nil
}

// ensureIfExists is ensure for a setting that some kernels do not have.
func (s Sysctls) ensureIfExists(w setting) (change string, err error) {
	change, err = s.ensure(w)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return change, err
}

// save writes the current value of the sysctl, and of those that the kernel changes with it, to the file. Values in the file are not replaced.
func (s Sysctls) save(w setting, have string) error {
	saved, err := s.load()
	if err != nil {
		return err
	}
	add := func(n savedSetting) {
		if !slices.ContainsFunc(saved, func(old savedSetting) bool { return old.Name == n.Name }) {
			saved = append(saved, n)
		}
	}
	add(savedSetting{Name: w.name, Previous: have, Written: w.value})
	for _, name := range w.sideEffects {
		value, err := s.Dir.Get(name)
		if err != nil {
			return err
		}
		add(savedSetting{Name: name, Previous: value})
	}
	content, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	temp := s.SavedFile + ".tmp"
	if err := os.WriteFile(temp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, s.SavedFile)
}

func (s Sysctls) load() ([]savedSetting, error) {
	content, err := os.ReadFile(s.SavedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var saved []savedSetting
	if err := json.Unmarshal(content, &saved); err != nil {
		return nil, fmt.Errorf("%s: %w", s.SavedFile, err)
	}
	return saved, nil
}

// Restore restores the previous values of sysctls that the agent changed, and returns the changes, for logging. It does not restore one that
// another program has changed since. It continues after errors and joins them.
func (s Sysctls) Restore() (changes []string, err error) {
	saved, err := s.load()
	if err != nil {
		return nil, fmt.Errorf("read previous values of sysctls: %w", err)
	}
	var errs []error
	for _, n := range saved {
		have, err := s.Dir.Get(n.Name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if have == n.Previous || n.Written != "" && have != n.Written {
			continue
		}
		if err := s.Dir.Set(n.Name, n.Previous); err != nil {
			errs = append(errs, err)
			continue
		}
		changes = append(changes, fmt.Sprintf("sysctl %s=%s (was %s)", n.Name, n.Previous, have))
	}
	if len(errs) == 0 && s.SavedFile != "" {
		if err := os.Remove(s.SavedFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("delete previous values of sysctls: %w", err))
		}
	}
	return changes, errors.Join(errs...)
}
