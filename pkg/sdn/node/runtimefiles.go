package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// runtimeFiles keeps the agent's part of the container runtime's directories: the plugin's program, and the configuration by which
// the runtime knows that there is a network. It touches no other file there.
//
// A directory that can't be written to is a fault of the node, but none that pods suffer from which are there: the rest of the agent goes on.
type runtimeFiles struct {
	plugin          *cniserver.Plugin // nil: somebody else installs it
	confDir, socket string
	warn            func(reason string, err error)
	report          func(eventType, reason, message string)
	synced          bool // sync has succeeded before

	mu    sync.Mutex
	fault error

	first      string    // another network's configuration that goes before ours, as last told
	firstAgain time.Time // when it is told next
}

// remindOfFirst is how often that is repeated: Events are kept for an hour.
const remindOfFirst = 20 * time.Minute

func (a *agent) newRuntimeFiles() *runtimeFiles {
	f := &runtimeFiles{confDir: a.CNIConfDir, socket: a.CNISocket, warn: a.reporter.warn, report: a.reporter.onNode}
	if a.CNIBinDir != "" {
		f.plugin = &cniserver.Plugin{Source: a.CNIPlugin, Dir: a.CNIBinDir}
	}
	return f
}

// filesRetry is how soon files are looked at again that are not right: the node starts no pods until then.
const filesRetry = 2 * time.Second

// run keeps the files until the context ends.
func (f *runtimeFiles) run(ctx context.Context) {
	for {
		next := hostCheck
		if f.healthy() != nil {
			next = filesRetry
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			f.sync(ctx)
		}
	}
}

// sync writes the files that are missing or differ. It reports on the Node which these were, and a failure when it is a new one.
func (f *runtimeFiles) sync(ctx context.Context) {
	written, err := f.write(ctx)
	f.reportWritten(written)
	f.synced = f.synced || err == nil
	f.mu.Lock()
	was := f.fault
	f.fault = err
	f.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		f.warn(reasonFailed, err)
	}
	f.compete()
}

// write writes the files that are missing or differ, and returns their paths. The plugin comes first: the runtime must never find a
// configuration without it.
func (f *runtimeFiles) write(ctx context.Context) (written []string, err error) {
	if f.plugin != nil {
		change, err := f.plugin.Install()
		if err != nil {
			return nil, fmt.Errorf("%w: the directory must be writable for the agent (--cni-bin-dir)", err)
		}
		if change != "" {
			klog.FromContext(ctx).Info("Installed the CNI plugin", "change", change)
			written = append(written, filepath.Join(f.plugin.Dir, cniserver.PluginName))
		}
	}
	config, err := cniserver.WriteConfig(f.confDir, f.socket)
	if err != nil {
		return written, fmt.Errorf("%w: the directory must be writable for the agent (--cni-conf-dir)", err)
	}
	if config {
		klog.FromContext(ctx).Info("Wrote the CNI configuration", "dir", f.confDir)
		written = append(written, filepath.Join(f.confDir, cniserver.ConfigName))
	}
	return written, nil
}

// reportWritten reports the files that were written. That is normal until sync has succeeded once: the agent may be the first on the node, or of
// another version.
func (f *runtimeFiles) reportWritten(written []string) {
	if len(written) == 0 {
		return
	}
	files := strings.Join(written, " and ")
	if !f.synced {
		f.report(corev1.EventTypeNormal, reasonFilesWritten, fmt.Sprintf("wrote %s, missing or of another version when the agent started", files))
		return
	}
	f.report(corev1.EventTypeWarning, reasonFilesWritten,
		fmt.Sprintf("wrote %s again, deleted or changed while the agent ran; pods could not start in the meantime; find the program that does it", files))
}

// compete tells of another network's configuration that the runtime takes in place of ours: it takes the first.
func (f *runtimeFiles) compete() {
	first := firstConfig(f.confDir)
	if first == cniserver.ConfigName {
		first = ""
	}
	if first != "" && (first != f.first || time.Now().After(f.firstAgain)) {
		f.warn(reasonNotFirst, fmt.Errorf("%s comes before %s in %s: pods that start here get that network, not this one; remove the file if it is of no use any more",
			first, cniserver.ConfigName, f.confDir))
		f.firstAgain = time.Now().Add(remindOfFirst)
	}
	f.first = first
}

// firstConfig returns the name of the configuration that runtimes take, "" if there is none.
func firstConfig(dir string) string {
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil || len(files) == 0 {
		return "" // what can't be read is told of by who writes
	}
	return filepath.Base(slices.Min(files))
}

// healthy returns why the files are not right, nil if they are.
func (f *runtimeFiles) healthy() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault
}

// remove takes the files away, the configuration first: no pod is to start any more.
func (f *runtimeFiles) remove() error {
	err := cniserver.RemoveConfig(f.confDir)
	if f.plugin != nil {
		err = errors.Join(err, cniserver.RemovePlugin(f.plugin.Dir))
	}
	return err
}
