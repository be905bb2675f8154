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

// Sysctls are the host's settings.
type Sysctls struct {
	Dir sysctl.Dir
	// Former is a file for what settings were before the agent changed them, on a file system that is lost when they are: with the
	// machine's restart. "" keeps nothing.
	Former string
}

// setting is a sysctl that must have the value.
type setting struct {
	name, value string
	atLeast     bool     // a larger number is right, too
	lasting     bool     // it is the host's: what it was is kept, for an uninstallation
	disturbs    []string // the kernel changes these too when it is written
}

// former is what a setting was.
type former struct {
	Name string `json:"name"`
	Was  string `json:"was"`
	Made string `json:"made,omitempty"` // what the agent made of it; "": the kernel's doing
}

// ipv4Settings are what pods' traffic through tun0 needs. For settings that are both per interface and for all, how
// the two combine is in the kernel's Documentation/networking/ip-sysctl.rst.
func ipv4Settings() []setting {
	return []setting{
		// The host routes between pods and the world.
		{name: "net/ipv4/ip_forward", value: "1", lasting: true, disturbs: []string{"net/ipv4/conf/all/accept_redirects"}},
		// Loose: what comes in by tun0 may have a source that is routed elsewhere. Not 0: in force is the larger one of
		// this and `all`, so that 0 would leave a host's strict 1 in force.
		{name: "net/ipv4/conf/" + Tun0Name + "/rp_filter", value: "2"},
		// Ask for pods' MACs with the gateway's address whatever source the packet has: the bridge drops ARP from
		// tun0 with any other sender, since pods could be told lies by it.
		{name: "net/ipv4/conf/" + Tun0Name + "/arp_announce", value: "2"},
		// A packet to a service comes in by tun0 and leaves by tun0 to its endpoint. The kernel would tell the pod to send to the
		// endpoint directly, and the service would be dead for that pod. Either of the two settings turns
		// redirects on, so both are off; other interfaces have their own and keep it.
		{name: "net/ipv4/conf/all/send_redirects", value: "0", lasting: true},
		{name: "net/ipv4/conf/" + Tun0Name + "/send_redirects", value: "0"},
	}
}

// neighbourSettings give the machine's one IPv4 neighbour table, which the host and all pods share, room for a cluster's addresses. Up to
// 65,536 entries take about 32 MiB. Only the machine's own network namespace has these settings. Written from the largest, so that the
// thresholds are in order at any time.
func neighbourSettings() []setting {
	const dir = "net/ipv4/neigh/default/"
	return []setting{
		{name: dir + "gc_thresh3", value: "65536", atLeast: true, lasting: true},
		{name: dir + "gc_thresh2", value: "32768", atLeast: true, lasting: true},
		{name: dir + "gc_thresh1", value: "8192", atLeast: true, lasting: true},
	}
}

// isAtLeast compares numbers. What is none is not.
func isAtLeast(have, want string) bool {
	h, err := strconv.Atoi(have)
	w, wantErr := strconv.Atoi(want)
	return err == nil && wantErr == nil && h >= w
}

// noIPv6 keeps router solicitations and duplicate address detection out of a pod network without IPv6.
func noIPv6() setting {
	return setting{name: "net/ipv6/conf/" + Tun0Name + "/disable_ipv6", value: "1"}
}

// ensure sets what differs, and says what it changed. A setting that is right is not written: /proc/sys may be
// read-only, and writing ip_forward resets other settings.
func (s Sysctls) ensure(w setting) (change string, err error) {
	have, err := s.Dir.Get(w.name)
	if err != nil {
		return "", err
	}
	if have == w.value || w.atLeast && isAtLeast(have, w.value) {
		return "", nil
	}
	if w.lasting && s.Former != "" {
		if err := s.keep(w, have); err != nil {
			return "", fmt.Errorf("note that sysctl %s was %s, for an uninstallation: %w", w.name, have, err)
		}
	}
	if err := s.Dir.Set(w.name, w.value); err != nil {
		return "", fmt.Errorf("sysctl %s is %s and cannot be changed to %s: make /proc/sys writable for the agent (--sysctl-dir), or set it on the host (/etc/sysctl.d): %w",
			w.name, have, w.value, err)
	}
	return fmt.Sprintf("sysctl %s=%s (was %s)", w.name, w.value, have), nil
}

// ensureIfThere is for settings of what a kernel may be built without.
func (s Sysctls) ensureIfThere(w setting) (change string, err error) {
	change, err = s.ensure(w)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return change, err
}

// keep notes what the setting was, and what the kernel is about to change with it. The first note counts.
func (s Sysctls) keep(w setting, have string) error {
	notes, err := s.notes()
	if err != nil {
		return err
	}
	add := func(n former) {
		if !slices.ContainsFunc(notes, func(old former) bool { return old.Name == n.Name }) {
			notes = append(notes, n)
		}
	}
	add(former{Name: w.name, Was: have, Made: w.value})
	for _, name := range w.disturbs {
		value, err := s.Dir.Get(name)
		if err != nil {
			return err
		}
		add(former{Name: name, Was: value})
	}
	content, err := json.Marshal(notes)
	if err != nil {
		return err
	}
	temp := s.Former + ".tmp"
	if err := os.WriteFile(temp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, s.Former)
}

func (s Sysctls) notes() ([]former, error) {
	content, err := os.ReadFile(s.Former)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var notes []former
	if err := json.Unmarshal(content, &notes); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Former, err)
	}
	return notes, nil
}

// Restore makes the host's settings what they were before the agent changed them, and returns what it changed, for logging. One that
// somebody else has changed since is theirs. It goes on past errors and joins them.
func (s Sysctls) Restore() (changes []string, err error) {
	notes, err := s.notes()
	if err != nil {
		return nil, fmt.Errorf("find out what sysctls were: %w", err)
	}
	var errs []error
	for _, n := range notes {
		have, err := s.Dir.Get(n.Name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if have == n.Was || n.Made != "" && have != n.Made {
			continue
		}
		if err := s.Dir.Set(n.Name, n.Was); err != nil {
			errs = append(errs, err)
			continue
		}
		changes = append(changes, fmt.Sprintf("sysctl %s=%s (was %s)", n.Name, n.Was, have))
	}
	if len(errs) == 0 && s.Former != "" {
		if err := os.Remove(s.Former); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("forget what sysctls were: %w", err))
		}
	}
	return changes, errors.Join(errs...)
}
