// Command ovsdn-cni is the CNI plugin. It sends the container runtime's request to the node agent's socket and prints the reply.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/version"
)

func main() {
	// The runtime calls without arguments.
	if slices.Equal(os.Args[1:], []string{"--version"}) {
		fmt.Fprintln(os.Stdout, "ovsdn-cni version", version.Get())
		return
	}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    add,
		Del:    without(cniserver.CommandDel),
		Check:  without(cniserver.CommandCheck),
		GC:     without(cniserver.CommandGC),
		Status: without(cniserver.CommandStatus),
	}, cniversion.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), "CNI plugin ovsdn-cni: the pod network of ovsdn")
}

// add prints the agent's result in the version that the configuration asks for.
func add(args *skel.CmdArgs) error {
	config, result, err := call(cniserver.CommandAdd, args)
	if err != nil {
		return err
	}
	return types.PrintResult(result, config.CNIVersion)
}

// without returns the function of a verb without a result.
func without(command string) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		_, _, err := call(command, args)
		return err
	}
}

func call(command string, args *skel.CmdArgs) (*cniserver.Config, *current.Result, error) {
	config, err := cniserver.ParseConfig(args.StdinData)
	if err != nil {
		return nil, nil, err
	}
	socket := config.Socket
	if socket == "" {
		socket = cniserver.DefaultSocket
	}
	result, err := cniserver.Call(context.Background(), socket, &cniserver.Request{
		Command:     command,
		ContainerID: args.ContainerID,
		Netns:       args.Netns,
		IfName:      args.IfName,
		Args:        args.Args,
		Path:        args.Path,
		Config:      args.StdinData,
	})
	return config, result, err
}
