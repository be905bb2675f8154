// Package cnifiles writes the files by which the container runtime reaches the agent: the CNI plugin, its configuration and the agent's socket. It writes them
// again after another program has deleted or changed them, and reports that.
package cnifiles

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
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Files installs the CNI plugin and the CNI configuration in the container runtime's directories, and restores them. It changes no other files.
//
// A failed write makes the node unhealthy, but does not stop the agent: existing pods are not affected.
type Files struct {
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

// Options are the paths of the files.
type Options struct {
	ConfDir string // the container runtime's directory of CNI configurations
	BinDir  string // the container runtime's directory of CNI plugins; empty: the agent does not install the plugin
	Plugin  string // path of the plugin's executable to install
	Socket  string // path of the socket for requests of the CNI plugin
}

// New returns files that Sync writes. It reports errors by warn, and files that it wrote by report; Remove calls neither.
func New(o Options, warn func(reason string, err error), report func(eventType, reason, message string)) *Files {
	f := &Files{confDir: o.ConfDir, socket: o.Socket, warn: warn, report: report}
	if o.BinDir != "" {
		f.plugin = &cniserver.Plugin{Source: o.Plugin, Dir: o.BinDir}
	}
	return f
}

// checkInterval is the interval of checks of the files, whose changes cause no event.
const checkInterval = 10 * time.Second

// retryInterval is the delay after a failed write: the node starts no pods until it succeeds.
const retryInterval = 2 * time.Second

// Run restores the files until the context ends.
func (f *Files) Run(ctx context.Context) {
	for {
		next := checkInterval
		if f.Healthy() != nil {
			next = retryInterval
		}
		if !pause.For(ctx, next) {
			return
		}
		f.Sync(ctx)
	}
}

// Sync writes the files that are missing or differ. It reports them on the Node, and also an error that differs from the previous one.
func (f *Files) Sync(ctx context.Context) {
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
func (f *Files) write(ctx context.Context) (written []string, err error) {
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
func (f *Files) reportWritten(written []string) {
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
func (f *Files) reportFirstConfig() {
	first := FirstConfig(f.confDir)
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

// FirstConfig returns the name of the configuration that runtimes use, "" if there is none.
func FirstConfig(dir string) string {
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil || len(files) == 0 {
		return "" // write reports a directory that can't be read
	}
	return filepath.Base(slices.Min(files))
}

// Healthy returns the error of the last write, nil if it succeeded.
func (f *Files) Healthy() error { return f.last.Get() }

// Remove deletes the files, the configuration first, so that no more pods start.
func (f *Files) Remove() error {
	err := cniserver.RemoveConfig(f.confDir)
	if f.plugin != nil {
		err = errors.Join(err, cniserver.RemovePlugin(f.plugin.Dir))
	}
	return err
}
