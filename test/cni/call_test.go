package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
)

// pod is a sandbox as a runtime knows it.
type pod struct {
	name  string
	id    string
	netns ns.NetNS
}

// newPod makes a sandbox whose network namespace lives as long as the test.
func newPod(t *testing.T, name string) *pod {
	t.Helper()
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Close() }) // may be closed by the test
	return &pod{name: name, id: "sandbox-of-" + name, netns: netns}
}

// path returns a path of the namespace: it has no name in the file system.
func (p *pod) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.netns.Fd()) }

func (p *pod) runtimeConf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.id, NetNS: p.path(), IfName: "eth0",
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", p.name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.id}, {"K8S_POD_UID", uidOf(p.name)},
		},
	}
}

// call is one run of the plugin, without libcni, which refuses some of the bad input itself.
type call struct {
	env   map[string]string // CNI_ is prefixed; "" leaves a variable out
	stdin string
}

// callFor is a right call of the verb for the pod.
func (r *rig) callFor(verb, cniVersion string, p *pod) call {
	rt := p.runtimeConf()
	var args []string
	for _, a := range rt.Args {
		args = append(args, a[0]+"="+a[1])
	}
	return call{
		env: map[string]string{
			"COMMAND": verb, "CONTAINERID": rt.ContainerID, "NETNS": rt.NetNS, "IFNAME": rt.IfName,
			"ARGS": strings.Join(args, ";"), "PATH": r.bin,
		},
		stdin: fmt.Sprintf(`{"cniVersion":%q,"name":"ovsdn","type":"ovsdn-cni","socket":%q}`, cniVersion, r.config.Socket),
	}
}

// with changes the call.
func (c call) with(key, value string) call {
	env := map[string]string{key: value}
	for k, v := range c.env {
		if k != key {
			env[k] = v
		}
	}
	return call{env, c.stdin}
}

func (c call) withStdin(stdin string) call { return call{c.env, stdin} }

// run runs the plugin. What it prints when it fails must be a CNI error.
func (r *rig) run(t *testing.T, c call) (stdout []byte, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(r.bin, "ovsdn-cni"))
	cmd.Env = []string{}
	for key, value := range c.env {
		if value != "" {
			cmd.Env = append(cmd.Env, "CNI_"+key+"="+value)
		}
	}
	cmd.Stdin = strings.NewReader(c.stdin)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		e := new(types.Error)
		if jsonErr := json.Unmarshal(out.Bytes(), e); jsonErr != nil || e.Code == 0 {
			t.Fatalf("the plugin printed no CNI error: %v, %q", err, out.String())
		}
		return nil, e
	}
	return out.Bytes(), nil
}
