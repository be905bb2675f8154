// Package cniserver is the wire between the CNI plugin, which a container runtime starts for every verb, and the node
// agent, which does the work: the request and its decoder, a server and a client on a root-only unix socket, and the
// configuration file that makes the runtime start the plugin.
//
// The protocol is a line of JSON each way: a Request, then an object that holds a CNI result (ADD), nothing (the other
// verbs) or a CNI error. A connection carries one request, and lasts until it is answered: a plugin that closes it is gone.
// The plugin links this package and must start fast, so it imports no Kubernetes client and no net/http, which
// alone takes half a millisecond to start, and does not log.
package cniserver

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"
)

// DefaultSocket is where the agent listens unless it is told otherwise.
const DefaultSocket = "/run/ovsdn/cni.sock"

// MaxTimeout bounds every request, on both sides. Kubelet's own runtime request timeout has the same default.
const MaxTimeout = 2 * time.Minute

// maxRequestBytes bounds a request. The largest is GC's, with about 110 bytes an attachment.
const maxRequestBytes = 1 << 20

// The CNI verbs that reach the agent. VERSION is answered by the plugin alone.
const (
	CommandAdd    = "ADD"
	CommandDel    = "DEL"
	CommandCheck  = "CHECK"
	CommandGC     = "GC"
	CommandStatus = "STATUS"
)

// Request is one call of the plugin: its environment and its standard input.
type Request struct {
	Command     string          `json:"command"`
	ContainerID string          `json:"containerID,omitempty"`
	Netns       string          `json:"netns,omitempty"` // path
	IfName      string          `json:"ifName,omitempty"`
	Args        string          `json:"args,omitempty"` // CNI_ARGS: K=V;K=V
	Path        string          `json:"path,omitempty"`
	Config      json.RawMessage `json:"config"` // network configuration, see Config

	// TimeoutMillis is how long the plugin will wait. A duration, since clocks may be set while it waits.
	TimeoutMillis int64 `json:"timeoutMillis,omitempty"`
}

// answer is what the agent sends back: a result, which only ADD has, or an error.
type answer struct {
	Result *current.Result `json:"result,omitempty"`
	Error  *types.Error    `json:"error,omitempty"`
}

// Config is the network configuration that the plugin finds on its standard input.
type Config struct {
	types.PluginConf

	Socket string `json:"socket,omitempty"` // the agent's; empty: DefaultSocket
}

// ParseConfig parses a network configuration. Errors are CNI errors.
func ParseConfig(data []byte) (*Config, error) {
	c := new(Config)
	if err := json.Unmarshal(data, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration does not parse", err.Error())
	}
	if err := utils.ValidateNetworkName(c.Name); err != nil {
		return nil, err
	}
	return c, nil
}

// DecodeRequest reads one request and checks what concerns every verb, so that a handler sees only container
// ids and interface names that are safe in file and device names. Errors are CNI errors.
func DecodeRequest(line []byte) (*Request, error) {
	req := new(Request)
	if err := json.Unmarshal(line, req); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the request does not parse", err.Error())
	}
	if err := req.validate(); err != nil {
		return nil, err
	}
	return req, nil
}

func (r *Request) validate() error {
	if r.TimeoutMillis < 0 {
		return types.NewError(types.ErrDecodingFailure, "the request's timeout is negative", "")
	}
	if _, err := ParseConfig(r.Config); err != nil {
		return err
	}
	switch r.Command {
	case CommandGC, CommandStatus:
		return nil
	case CommandAdd, CommandCheck:
		if r.Netns == "" {
			return types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_NETNS is missing", "")
		}
	case CommandDel: // the netns may be gone
	default:
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown CNI_COMMAND %q", r.Command), "")
	}
	if err := utils.ValidateContainerID(r.ContainerID); err != nil {
		return err
	}
	if len(r.ContainerID) > maxContainerID {
		return types.NewError(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("CNI_CONTAINERID is longer than %d characters", maxContainerID), "")
	}
	if err := utils.ValidateInterfaceName(r.IfName); err != nil {
		return err
	}
	return nil
}

// maxContainerID bounds what is stored of a container id. Runtimes use 64 hex digits.
const maxContainerID = 255

// timeout returns how long the request may take.
func (r *Request) timeout() time.Duration {
	// Compared in milliseconds: an absurd number would overflow a Duration.
	if r.TimeoutMillis == 0 || r.TimeoutMillis > MaxTimeout.Milliseconds() {
		return MaxTimeout
	}
	return time.Duration(r.TimeoutMillis) * time.Millisecond
}
