package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/test/bareagent"
	"github.com/ovsdn/ovsdn/test/lab/components"
)

// kubeProxy is a host of its own for kube-proxy of the lab's Kubernetes, in mode nftables.
type kubeProxy struct {
	b       *B
	host    ns.NetNS
	program string // which has all programs of Kubernetes
	config  string
}

// newKubeProxy does not start it. The API server that runs has already built the program.
func (n *startNode) newKubeProxy() *kubeProxy {
	b := n.b
	b.Helper()
	set, err := components.Build(b.Context(), components.Options{SourceDir: b.root(), Progress: b.progress})
	b.must(err)
	p := &kubeProxy{b: b, host: b.netns(), program: set.Kube, config: filepath.Join(b.TempDir(), "kube-proxy.yaml")}
	b.must(p.host.Do(func(ns.NetNS) error { return makeUnderlay() }))
	b.forward(p.host, n.server)
	b.must(os.WriteFile(p.config, []byte(components.KubeProxyYAML(bareagent.NodeName, netip.MustParsePrefix("10.128.0.0/14"), n.kubeconfig)), 0o600))
	return p
}

// start returns when the rules have the service. kube-proxy writes all that it finds at its start in one transaction of nftables.
func (p *kubeProxy) start(svc *corev1.Service) *process {
	p.b.Helper()
	running := p.b.start(p.host, "", p.program, "kube-proxy", "--config="+p.config)
	ctx, cancel := context.WithTimeout(p.b.Context(), patience)
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		select {
		case <-running.done:
			return false, errors.New("kube-proxy has ended")
		default:
			return p.has(ctx, svc)
		}
	})
	if err != nil {
		p.b.Fatalf("%v\n%s", err, running.lastWords())
	}
	return running
}

// has reports whether the rules have the service.
func (p *kubeProxy) has(ctx context.Context, svc *corev1.Service) (bool, error) {
	_, err := p.nft(ctx, "get", "element", "ip", "kube-proxy", "service-ips", fmt.Sprintf("{ %s . tcp . %d }", svc.Spec.ClusterIP, svc.Spec.Ports[0].Port))
	if errors.As(err, new(*exec.ExitError)) {
		return false, nil // no such element, or no table
	}
	return err == nil, err
}

// services returns the number of services in the rules.
func (p *kubeProxy) services() int {
	p.b.Helper()
	list, err := p.nft(p.b.Context(), "list", "map", "ip", "kube-proxy", "service-ips")
	p.b.must(err)
	return strings.Count(list, ": goto ")
}

// reset removes all rules.
func (p *kubeProxy) reset() {
	p.b.Helper()
	_, err := p.nft(p.b.Context(), "flush", "ruleset")
	p.b.must(err)
}

func (p *kubeProxy) nft(ctx context.Context, args ...string) (string, error) {
	var out []byte
	err := p.host.Do(func(ns.NetNS) (err error) {
		out, err = exec.CommandContext(ctx, "nft", args...).Output()
		return err
	})
	return string(out), err
}
