package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// runtimeFiles installs the CNI plugin and the CNI configuration in the container runtime's directories, and restores them. It changes no other files.
//
// A failed write makes the node unhealthy, but does not stop the agent: existing pods are not affected.
type runtimeFiles struct {
	plugin          *cniserver.Plugin // nil: not installed by the agent
	confDir, socket string
	warn            func(reason string, err error)
	report          func(eventType, reason, message string)
	synced          bool // sync has succeeded before
	last            reconcile.LastError

	first        string    // the last reported configuration of another network that precedes this one
	nextReminder time.Time // when it is reported again
}

// firstConfigReminder is the interval of repeated reports of another network's configuration: the API server deletes Events after an hour.
const firstConfigReminder = 20 * time.Minute

func (a *agent) newRuntimeFiles() *runtimeFiles {
	f := &runtimeFiles{confDir: a.CNIConfDir, socket: a.CNISocket, warn: a.reporter.Warn, report: a.reporter.Event}
	if a.CNIBinDir != "" {
		f.plugin = &cniserver.Plugin{Source: a.CNIPlugin, Dir: a.CNIBinDir}
	}
	return f
}

// filesRetry is the delay after a failed write: the node starts no pods until it succeeds.
const filesRetry = 2 * time.Second

// run restores the files until the context ends.
func (f *runtimeFiles) run(ctx context.Context) {
	for {
		next := hostCheck
		if f.healthy() != nil {
			next = filesRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
			f.sync(ctx)
		}
	}
}

// sync writes the files that are missing or differ. It reports them on the Node, and also an error that differs from the previous one.
func (f *runtimeFiles) sync(ctx context.Context) {
	written, err := f.write(ctx)
	f.reportWritten(written)
	f.synced = f.synced || err == nil
	if f.last.Set(err) {
		f.warn(eventreason.NetworkSetupFailed, err)
	}
	f.reportFirstConfig()
}

// write writes the files that are missing or differ, and returns their paths. It writes the plugin first: the runtime must never find a
// configuration without the plugin.
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
		f.report(corev1.EventTypeNormal, eventreason.CNIFilesWritten, fmt.Sprintf("wrote %s, missing or of another version when the agent started", files))
		return
	}
	f.report(corev1.EventTypeWarning, eventreason.CNIFilesWritten,
		fmt.Sprintf("wrote %s again, deleted or changed while the agent ran; pods could not start in the meantime; find the program that does it", files))
}

// reportFirstConfig reports another network's configuration that sorts before this one: the runtime uses the first.
func (f *runtimeFiles) reportFirstConfig() {
	first := firstConfig(f.confDir)
	if first == cniserver.ConfigName {
		first = ""
	}
	if first != "" && (first != f.first || time.Now().After(f.nextReminder)) {
		f.warn(eventreason.OtherNetworkFirst, fmt.Errorf("%s comes before %s in %s: new pods on this node get that network, not this one; delete the file if it is no longer needed",
			first, cniserver.ConfigName, f.confDir))
		f.nextReminder = time.Now().Add(firstConfigReminder)
	}
	f.first = first
}

// firstConfig returns the name of the configuration that runtimes use, "" if there is none.
func firstConfig(dir string) string {
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil || len(files) == 0 {
		return "" // write reports a directory that can't be read
	}
	return filepath.Base(slices.Min(files))
}

// healthy returns the error of the last write, nil if it succeeded.
func (f *runtimeFiles) healthy() error { return f.last.Get() }

// remove deletes the files, the configuration first, so that no more pods start.
func (f *runtimeFiles) remove() error {
	err := cniserver.RemoveConfig(f.confDir)
	if f.plugin != nil {
		err = errors.Join(err, cniserver.RemovePlugin(f.plugin.Dir))
	}
	return err
}
