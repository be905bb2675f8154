// kube is etcd and every Kubernetes program that a cluster needs, in one binary: they share nearly all of their
// code, so linking them once saves minutes of build and most of the disk. It runs the program that it is called as
// (a symlink's name), or that its first argument names.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const usage = `usage: kube PROGRAM [ARGS...]
PROGRAM is one of etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl`

func main() {
	os.Exit(run())
}

func run() int {
	name := filepath.Base(os.Args[0])
	if name == "kube" {
		if len(os.Args) < 2 {
			fmt.Fprintln(os.Stderr, usage)
			return 2
		}
		// The programs read os.Args themselves, so each must find its own name in front.
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return 0
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err) // prints the error as kubectl does, and exits
		}
		return 0
	}
	command := daemon(name)
	if command == nil {
		fmt.Fprintf(os.Stderr, "kube: no program %q\n%s\n", name, usage)
		return 2
	}
	return cli.Run(command)
}

func daemon(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "kube-proxy":
		return proxy.NewProxyCommand()
	}
	return nil
}
