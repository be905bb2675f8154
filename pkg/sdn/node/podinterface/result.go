package podinterface

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
)

// Result returns the result of ADD in the current CNI version. The plugin converts it to the requested one.
func (o Options) Result(pod sandbox.Pod) *current.Result {
	i := o.InterfaceConfig(pod)
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: pod.HostVeth(), Mtu: i.MTU},
			{Name: pod.IfName, Mac: i.MAC.String(), Mtu: i.MTU, Sandbox: pod.Netns},
		},
	}
	if pod.Macvlan != "" {
		result.Interfaces = append(result.Interfaces, &current.Interface{Name: sandbox.MacvlanName, Mac: pod.MacvlanMAC().String(), Sandbox: pod.Netns})
	}
	for _, addr := range i.Addrs {
		result.IPs = append(result.IPs, &current.IPConfig{
			Interface: current.Int(1), // index in Interfaces
			Address:   veth.IPNet(addr),
			Gateway:   config.Gateway(addr).AsSlice(),
		})
	}
	for _, r := range i.Routes {
		route := &types.Route{Dst: veth.IPNet(r.To), MTU: i.RouteMTU}
		if r.Via.IsValid() {
			route.GW = r.Via.AsSlice()
		}
		result.Routes = append(result.Routes, route)
	}
	return result
}

// CheckPrevResult compares the runtime's prevResult with Add's result. Runtimes must pass it since CNI 0.4.0.
func (o Options) CheckPrevResult(req *cniserver.Request, pod sandbox.Pod) error {
	config, err := cniserver.ParseConfig(req.Config)
	if err != nil {
		return err
	}
	if config.RawPrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "prevResult is missing; CHECK requires the result of ADD", "")
	}
	if hasNull(config.RawPrevResult) { // the conversion between CNI versions panics on it
		return types.NewError(types.ErrDecodingFailure, "invalid prevResult", "a list has a null element")
	}
	if err := version.ParsePrevResult(&config.PluginConf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "invalid prevResult", err.Error())
	}
	prev, err := current.NewResultFromResult(config.PrevResult)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, "invalid prevResult", err.Error())
	}
	if pod.Netns == "" { // rebuilt without an alias, or from an alias without the path
		pod.Netns = req.Netns
	}
	// Later plugins of the list may have added interfaces, addresses and routes.
	result := o.Result(pod)
	var missing []error
	for _, ip := range result.IPs {
		if !slices.ContainsFunc(prev.IPs, func(p *current.IPConfig) bool { return p.Address.String() == ip.Address.String() }) {
			missing = append(missing, fmt.Errorf("address %s is missing", &ip.Address))
		}
	}
	for _, i := range result.Interfaces {
		if !slices.ContainsFunc(prev.Interfaces, func(p *current.Interface) bool {
			return p.Name == i.Name && p.Sandbox == i.Sandbox && p.Mac == i.Mac
		}) {
			missing = append(missing, fmt.Errorf("interface %s (MAC %q, sandbox %q) is missing", i.Name, i.Mac, i.Sandbox))
		}
	}
	if len(missing) > 0 {
		return types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("prevResult differs from the result of ADD for pod %s/%s", pod.Namespace, pod.Name), errors.Join(missing...).Error())
	}
	return nil
}

// hasNull reports whether a list anywhere in the JSON value has null for an element.
func hasNull(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(value)), hasNull)
	case []any:
		return slices.Contains(value, nil) || slices.ContainsFunc(value, hasNull)
	}
	return false
}
