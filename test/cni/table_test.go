package cni

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"

	"github.com/ovsdn/ovsdn/test/bareagent"
)

func versions() []string { return []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

func verbs() []string { return []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"} }

// codes are the specification's, and our own.
func codes() []uint {
	return []uint{
		0,
		types.ErrIncompatibleCNIVersion, types.ErrUnsupportedField, types.ErrUnknownContainer, types.ErrInvalidEnvironmentVariables,
		types.ErrIOFailure, types.ErrDecodingFailure, types.ErrInvalidNetworkConfig, types.ErrInvalidNetNS, types.ErrTryAgainLater,
		types.ErrPluginNotAvailable, types.ErrLimitedConnectivity,
		pods.ErrAttachmentChanged, pods.ErrMacvlanRefused, types.ErrInternal,
	}
}

// has reports whether the version has the verb.
func has(cniVersion, verb string) bool {
	switch verb {
	case "CHECK":
		return cniVersion != "0.3.1"
	case "GC", "STATUS":
		return cniVersion == "1.1.0"
	}
	return true
}

// A cell either provokes the code, or has the reason why it never occurs.
type cell struct {
	never   string
	provoke func(t *testing.T, r *rig, v string) error
}

type key struct {
	verb string
	code uint
}

func never(reason string) cell { return cell{never: reason} }

func provoke(f func(t *testing.T, r *rig, v string) error) cell { return cell{provoke: f} }

// table is what every verb answers, in the versions that have it.
func table() map[key]cell {
	t := map[key]cell{}
	for _, rows := range []map[key]cell{addRows(), delRows(), checkRows(), gcRows(), statusRows(), versionRows()} {
		for k, c := range rows {
			t[k] = c
		}
	}
	return t
}

// Every version × verb × error code has a cell, each cell that can be provoked is, and nothing remains on the node.
func TestTable(t *testing.T) {
	r := newRig(t)
	before := r.state(t)
	table := table()
	for _, v := range versions() {
		for _, verb := range verbs() {
			if !has(v, verb) {
				t.Run(fmt.Sprintf("%s %s is refused", v, verb), func(t *testing.T) {
					if _, err := r.run(t, r.callFor(verb, v, newPod(t, "web"))); code(t, err) != types.ErrIncompatibleCNIVersion {
						t.Errorf("got %v", err)
					}
				})
				continue
			}
			for _, want := range codes() {
				c, ok := table[key{verb, want}]
				if !ok || (c.never == "") == (c.provoke == nil) {
					t.Errorf("%s %s: no cell for code %d", v, verb, want)
					continue
				}
				if c.provoke == nil {
					continue
				}
				t.Run(fmt.Sprintf("%s %s %d", v, verb, want), func(t *testing.T) {
					if err := c.provoke(t, r, v); code(t, err) != want {
						t.Errorf("code %d: %v", code(t, err), err)
					}
					r.wantState(t, before)
				})
			}
		}
	}
	if want := len(verbs()) * len(codes()); len(table) != want {
		t.Errorf("the table has %d cells, there are %d", len(table), want)
	}
}

// Unsupported versions.
func TestForeignVersions(t *testing.T) {
	r := newRig(t)
	before := r.state(t)
	for v, want := range map[string]uint{
		"": 1, "0.1.0": 1, "0.2.0": 1, "0.3.0": 1, "1.2.0": 1, "2.0.0": 1, "100.0.0": 1,
		"one": types.ErrIncompatibleCNIVersion, "1.0.0.0": types.ErrIncompatibleCNIVersion, "-1.0.0": types.ErrIncompatibleCNIVersion,
	} {
		for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
			_, err := r.run(t, r.callFor(verb, v, newPod(t, "web")))
			got := code(t, err)
			if got != want && (verb == "ADD" || verb == "DEL" || got != types.ErrDecodingFailure) {
				t.Errorf("%s in version %q: code %d, want %d: %v", verb, v, got, want, err)
			}
		}
	}
	r.wantState(t, before)
}

// cnitool with the agent's own configuration, and in every version.
func TestCNITool(t *testing.T) {
	r := newRig(t)
	build(t, r.bin, "github.com/containernetworking/cni/cnitool")
	before := r.state(t)
	own, err := os.ReadFile(filepath.Join(r.conf, "10-ovsdn.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	confs := map[string]string{"the agent's own": string(own)}
	for _, v := range versions() {
		confs[v] = string(r.list(t, v, nil).Bytes)
	}
	for name, conf := range confs {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "10-ovsdn.conflist"), []byte(conf), 0o600); err != nil {
				t.Fatal(err)
			}
			p := newPod(t, "web")
			tool := func(verb string) error {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), filepath.Join(r.bin, "cnitool"), verb, bareagent.Network, p.path())
				cmd.Env = append(os.Environ(), "CNI_PATH="+r.bin, "NETCONFPATH="+dir,
					"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID="+uidOf("web"))
				out, err := cmd.CombinedOutput()
				if err != nil {
					return fmt.Errorf("cnitool %s: %w: %s", verb, err, out)
				}
				if verb == "add" {
					v := name
					if !slices.Contains(versions(), v) {
						v = "1.1.0" // the highest of both
					}
					if _, err := version.NewResult(v, out); err != nil {
						t.Errorf("%v in %s", err, out)
					}
				}
				return nil
			}
			for _, verb := range []string{"add", "check", "status", "del", "del", "gc"} {
				// libcni itself refuses a CHECK that the version does not have.
				if err := tool(verb); (err == nil) == (verb == "check" && name == "0.3.1") {
					t.Errorf("%s: %v", verb, err)
				}
			}
			r.wantState(t, before)
		})
	}
}
