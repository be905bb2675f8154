package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is a mounted cgroup tree. With cgroup v1 there are several.
type hierarchy struct {
	path    string // where it is mounted
	fstype  string // cgroup or cgroup2
	options string // controllers or name, for cgroup
}

// hierarchies lists what is mounted here, from the kernel's own table.
func hierarchies() ([]hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list the cgroup hierarchies: %w", err)
	}
	defer f.Close()
	var found []hierarchy
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		h, ok := parseHierarchy(lines.Text())
		if ok && !seen[h.path] {
			seen[h.path] = true
			found = append(found, h)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list the cgroup hierarchies: %w", err)
	}
	if len(found) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted below /sys/fs/cgroup: the kubelet needs one")
	}
	return found, nil
}

// parseHierarchy reads a line of mountinfo, see proc(5): "36 35 98:0 /root /mount options … - fstype source options".
func parseHierarchy(line string) (hierarchy, bool) {
	mount, super, ok := strings.Cut(line, " - ")
	if !ok {
		return hierarchy{}, false
	}
	m, s := strings.Fields(mount), strings.Fields(super)
	if len(m) < 5 || len(s) < 3 || (s[0] != "cgroup" && s[0] != "cgroup2") {
		return hierarchy{}, false
	}
	var options []string
	for option := range strings.SplitSeq(s[2], ",") {
		// The rest is the hierarchy's name.
		if option != "rw" && option != "ro" && option != "xattr" && option != "nsdelegate" && !strings.HasPrefix(option, "release_agent=") {
			options = append(options, option)
		}
	}
	switch {
	case s[0] == "cgroup2":
		options = nil
	case slices.ContainsFunc(options, func(option string) bool { return strings.HasPrefix(option, "name=") }):
		// A hierarchy with a name has no controllers, and mount requires an option for that.
		options = append([]string{"none"}, options...)
	}
	return hierarchy{path: m[4], fstype: s[0], options: strings.Join(options, ",")}, true
}

// controllers of a cgroup v2 hierarchy, or none.
func (h hierarchy) controllers() []string {
	if h.fstype != "cgroup2" {
		return nil
	}
	content, err := os.ReadFile(filepath.Join(h.path, "cgroup.controllers"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(content))
}

// joinCgroup makes the group in every hierarchy and puts this process into it.
func joinCgroup(group string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		err := h.makeGroup(group)
		if errors.Is(err, fs.ErrNotExist) {
			// Another lab's end may just have removed the empty parent.
			err = h.makeGroup(group)
		}
		if err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
		procs := filepath.Join(h.path, group, "cgroup.procs")
		if err := os.WriteFile(procs, []byte("0"), 0); err != nil {
			return fmt.Errorf("cgroup: enter %s: %w", procs, err)
		}
	}
	return nil
}

func (h hierarchy) makeGroup(group string) error {
	path := h.path
	for part := range strings.SplitSeq(group, "/") {
		if err := h.delegate(path); err != nil {
			return err
		}
		parent := path
		path = filepath.Join(path, part)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if h.fstype == "cgroup" {
			if err := inheritCPUs(parent, path); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate lets the children of a cgroup v2 group use all its controllers.
func (h hierarchy) delegate(path string) error {
	for _, controller := range h.controllers() {
		file := filepath.Join(path, "cgroup.subtree_control")
		if err := os.WriteFile(file, []byte("+"+controller), 0); err != nil {
			return fmt.Errorf("%s: enable %s: %w", file, controller, err)
		}
	}
	return nil
}

// inheritCPUs fills the cpuset of a new cgroup v1 group, which is empty and takes no process until then.
func inheritCPUs(parent, path string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		content, err := os.ReadFile(filepath.Join(parent, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(path, name), content, 0); err != nil {
			return err
		}
	}
	if clone := filepath.Join(path, "cgroup.clone_children"); exists(clone) {
		return os.WriteFile(clone, []byte("1"), 0)
	}
	return nil
}

// leaveRoot moves PID 1 into a child of the machine's root group. cgroup v2 gives controllers only to the children
// of groups without processes.
func leaveRoot(root string) error {
	h := hierarchy{path: root, fstype: "cgroup2"}
	controllers := h.controllers()
	if len(controllers) == 0 {
		return nil
	}
	leaf := filepath.Join(root, "init")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	return h.delegate(root)
}

// killInterval is between two looks at a group whose processes die.
const killInterval = 10 * time.Millisecond

// RemoveCgroup kills all processes of the group and of those below it, and removes the groups.
// A missing group is no error.
func RemoveCgroup(ctx context.Context, group string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(killInterval)
	defer ticker.Stop()
	for {
		var failures []error
		for _, h := range all {
			if err := removeTree(filepath.Join(h.path, group)); err != nil {
				failures = append(failures, err)
			}
		}
		if len(failures) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove the cgroup %s: %w (%w)", group, errors.Join(failures...), ctx.Err())
		case <-ticker.C:
		}
	}
}

// Cgroups returns the names of the groups directly below a group. A missing group has none.
func Cgroups(group string) ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, h := range all {
		entries, err := os.ReadDir(filepath.Join(h.path, group))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list the cgroups below %s: %w", group, err)
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

// RemoveEmptyCgroup removes a group that has neither processes nor children, and leaves any other.
func RemoveEmptyCgroup(group string) {
	all, err := hierarchies()
	if err != nil {
		return
	}
	for _, h := range all {
		_ = unix.Rmdir(filepath.Join(h.path, group))
	}
}

// removeTree kills and removes once. It fails while processes are still dying.
func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	content, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for field := range strings.FieldsSeq(string(content)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return err
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	// Not os.Remove, which would try to unlink first.
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
