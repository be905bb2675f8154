package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	agentsandbox "github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/bareagent"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// agentCommand makes this program the node agent without Kubernetes: its pods, store, pipeline and CNI server, put together
// as pkg/sdn/node does. It runs as a process of its own, in the node's network namespace, as the real one does.
const agentCommand = "agent"

// podNetwork is the configuration of the compilers and the agent: a node with 1,000 addresses.
func podNetwork() pipeline.Node { return bareagent.Node(netip.MustParsePrefix("10.128.0.0/20")) }

func runAgent(ctx context.Context, args []string) error {
	var runDir, socket, ipamDir, tracesSocket string
	flags := pflag.NewFlagSet(agentCommand, pflag.ContinueOnError)
	flags.StringVar(&runDir, "run-dir", "", "Open vSwitch's")
	flags.StringVar(&socket, "socket", "", "to serve CNI on")
	flags.StringVar(&ipamDir, "ipam-dir", "", "of the address files")
	flags.StringVar(&tracesSocket, "traces-socket", "", "to trace packets between the pods on, for each request; empty: none")
	if err := flags.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	a := bareagent.Agent{Node: podNetwork(), RunDir: runDir, Socket: socket, IPAMDir: ipamDir, Pods: anyPod{}, Events: noEvents{}}
	if tracesSocket != "" {
		a.Serve = serveTraces(tracesSocket)
	}
	return a.Run(ctx)
}

// cniNode is a node without Kubernetes: a switch, an agent, and a runtime whose plugin calls it.
type cniNode struct {
	ovs     *ovstest.Switch
	socket  string
	runtime *cniRuntime
}

func (b *B) newNode(args ...string) *cniNode {
	b.Helper()
	n := &cniNode{ovs: ovstest.Start(b), socket: filepath.Join(b.TempDir(), "run", "cni.sock")}
	self, err := os.Executable()
	b.must(err)
	args = append([]string{agentCommand, "--run-dir=" + n.ovs.RunDir, "--socket=" + n.socket, "--ipam-dir=" + b.TempDir()}, args...)
	agent := b.start(n.ovs.NS, "", self, args...)
	b.awaitCNI(agent, n.socket)
	n.runtime = b.ours(n.ovs.NS, n.socket)
	return n
}

// anyPod answers from memory, as the agent's cache of its pods does: it knows every pod that sandbox.args names.
type anyPod struct{}

func (anyPod) Cached(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(podUID(name))}}
}

func (anyPod) Local() []*corev1.Pod { return nil }

func (anyPod) Get(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	return nil, fmt.Errorf("pod %s/%s: there is no API server", namespace, name)
}

func podUID(name string) string { return "uid-of-" + name }

// noEvents discards Events: a failure here fails the figure.
type noEvents struct{}

func (noEvents) WarnPod(agentsandbox.Pod, string, string) {}
func (noEvents) WarnNode(string, string)                  {}
