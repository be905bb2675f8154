package hostnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/atomicfile"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// Sysctls reads and writes the host's sysctls.
type Sysctls struct {
	Dir sysctl.Dir
	// SavedFile is the path of the file with the previous values of sysctls that the agent changed, for Restore. It must be on a file
	// system that a reboot clears, as it resets sysctls. "" saves nothing.
	SavedFile string
}

// savedSetting is the previous value of a sysctl. The keys of its JSON are persistent.
type savedSetting struct {
	Name     string `json:"name"`
	Previous string `json:"was"`
	Written  string `json:"made,omitempty"` // by the agent; "": the kernel changed it as a side effect
}

// ensure writes the setting of an interface if it differs, and returns the change. It saves the previous value of one that an uninstallation restores.
func (s Sysctls) ensure(w sysctl.Setting, device string) (change string, err error) {
	if !w.Saved || s.SavedFile == "" {
		return s.Dir.Ensure(w, device, nil)
	}
	return s.Dir.Ensure(w, device, func(previous string) error {
		if err := s.save(w, w.Name(device), previous); err != nil {
			return fmt.Errorf("save previous value of sysctl %s=%s: %w", w.Name(device), previous, err)
		}
		return nil
	})
}

// save writes the current value of the sysctl, and of those that the kernel changes with it, to the file. Values in the file are not replaced.
func (s Sysctls) save(w sysctl.Setting, name, have string) error {
	saved, err := s.load()
	if err != nil {
		return err
	}
	add := func(n savedSetting) {
		if !slices.ContainsFunc(saved, func(old savedSetting) bool { return old.Name == n.Name }) {
			saved = append(saved, n)
		}
	}
	add(savedSetting{Name: name, Previous: have, Written: w.Value})
	for _, name := range w.SideEffects {
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
	return atomicfile.Write(s.SavedFile, content, 0o600)
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
		if errors.Is(err, fs.ErrNotExist) {
			continue // its interface was deleted
		}
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
