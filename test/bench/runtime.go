package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// sandbox is a pod to be: its network namespace has been made, its network not.
type sandbox struct {
	netns     ns.NetNS
	id        string // a new one for each ADD, as a runtime gives them
	namespace string
	name, uid string // the pod's
}

func (b *B) sandboxes(n int) []*sandbox {
	b.Helper()
	all := make([]*sandbox, n)
	for i := range all {
		name := fmt.Sprintf("pod%d", i)
		all[i] = &sandbox{netns: b.netns(), namespace: podNamespace, name: name, uid: podUID(name)}
	}
	return all
}

// renew gives the sandbox a new id.
func (s *sandbox) renew() {
	var id [32]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	s.id = hex.EncodeToString(id[:])
}

// cniRuntime does what a container runtime does: it runs the plugins of a network configuration by libcni, on its host.
type cniRuntime struct {
	host ns.NetNS
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// newRuntime returns a runtime that finds plugins in the directory.
func (b *B) newRuntime(host ns.NetNS, plugins string, list *libcni.NetworkConfigList) *cniRuntime {
	return &cniRuntime{host: host, cni: libcni.NewCNIConfigWithCacheDir([]string{plugins}, b.TempDir(), nil), list: list}
}

func (r *cniRuntime) conf(s *sandbox) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: s.id,
		NetNS:       pathOf(s.netns),
		IfName:      "eth0",
		// As containerd and CRI-O pass it.
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", s.namespace}, {"K8S_POD_NAME", s.name},
			{"K8S_POD_INFRA_CONTAINER_ID", s.id}, {"K8S_POD_UID", s.uid},
		},
	}
}

const podNamespace = "bench"

func (r *cniRuntime) add(ctx context.Context, s *sandbox) (took time.Duration, err error) {
	s.renew()
	doErr := r.host.Do(func(ns.NetNS) error {
		took, err = timed(func() error {
			_, err := r.cni.AddNetworkList(ctx, r.list, r.conf(s))
			return err
		})
		return nil
	})
	return took, errors.Join(doErr, err)
}

func (r *cniRuntime) del(ctx context.Context, s *sandbox) (took time.Duration, err error) {
	doErr := r.host.Do(func(ns.NetNS) error {
		took, err = timed(func() error { return r.cni.DelNetworkList(ctx, r.list, r.conf(s)) })
		return nil
	})
	return took, errors.Join(doErr, err)
}

// status runs the plugin with nothing to do: what is left is its start, and its call of the agent.
func (r *cniRuntime) status(ctx context.Context) error {
	return r.host.Do(func(ns.NetNS) error { return r.cni.GetStatusNetworkList(ctx, r.list) })
}

// ours returns a runtime whose plugin is ours, with an agent on that socket.
func (b *B) ours(host ns.NetNS, socket string) *cniRuntime {
	b.Helper()
	dir := b.TempDir()
	_, err := cniserver.WriteConfig(dir, socket)
	b.must(err)
	list, err := libcni.NetworkConfFromFile(filepath.Join(dir, cniserver.ConfigName))
	b.must(err)
	return b.newRuntime(host, filepath.Dir(b.program("ovsdn-cni")), list)
}

// plainBridge returns a runtime whose plugins are bridge and host-local, on a host with nothing else: a Linux bridge, no
// masquerading, no switch, no flows.
func (b *B) plainBridge() *cniRuntime {
	b.Helper()
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{
		"cniVersion": "1.0.0", "name": "plain",
		"plugins": [{
			"type": "bridge", "bridge": "cni0", "isGateway": true,
			"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.0.0/20"}]], "routes": [{"dst": "0.0.0.0/0"}]}
		}]}`, b.TempDir()))
	b.must(err)
	return b.newRuntime(b.netns(), b.plugins(), list)
}

// plugins builds the plugins of the module test/bench/plugins and returns their directory. Go's build cache makes
// that quick but for the first time.
func (b *B) plugins() string {
	b.Helper()
	cache, err := os.UserCacheDir()
	b.must(err)
	dir := filepath.Join(cache, "ovsdn-bench", "plugins")
	b.must(os.MkdirAll(dir, 0o755))
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-o", dir+"/", "tool")
	build.Dir = filepath.Join(b.root(), "test", "bench", "plugins")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build the plugins to compare with: %v\n%s", err, out)
	}
	return dir
}

// askStatus asks what listens on the socket, as the plugin does.
func askStatus(ctx context.Context, socket string) error {
	_, err := cniserver.Call(ctx, socket, &cniserver.Request{
		Command: cniserver.CommandStatus, Config: []byte(`{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni"}`),
	})
	return err
}

// awaitCNI waits until the agent on the socket answers.
func (b *B) awaitCNI(agent *process, socket string) {
	b.Helper()
	const patience = 2 * time.Minute
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		err := askStatus(ctx, socket)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-agent.done:
			b.Fatalf("the agent has ended:\n%s", agent.lastWords())
		case <-ctx.Done():
			b.Fatalf("%v\n%s", err, agent.lastWords())
		}
	}
}
