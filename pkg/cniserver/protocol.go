// Package cniserver is the protocol between the CNI plugin, which a container runtime starts for every verb, and the node agent, which
// executes it: the request and its decoder, a server and a client on a root-only unix socket, and the configuration file by which
// the runtime starts the plugin.
//
// The protocol is a line of JSON each way: a Request, then an object that holds a CNI result (ADD), nothing (the other
// verbs) or a CNI error. A connection carries one request, and a plugin that closes it before the answer cancels the request.
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

// DefaultSocket is the agent's socket for the CNI plugin, if no flag sets another.
const DefaultSocket = "/run/ovsdn/cni.sock"

// MaxTimeout limits every request, on both sides. Kubelet's own runtime request timeout has the same default.
const MaxTimeout = 2 * time.Minute

// maxRequestBytes is the largest request. GC has the largest ones, with about 110 bytes for each attachment.
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

// answer is the agent's answer: a result, for ADD only, or an error.
type answer struct {
	Result *current.Result `json:"result,omitempty"`
	Error  *types.Error    `json:"error,omitempty"`
}

// Config is the network configuration on the plugin's standard input.
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

// DecodeRequest decodes and validates a request: container ids and interface names of a valid request are safe in names of files and
// devices. Errors are CNI errors.
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
	case CommandDel: // the netns may be deleted
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

// maxContainerID is the longest container id. Runtimes use 64 hex digits.
const maxContainerID = 255

// timeout returns how long the request may take.
func (r *Request) timeout() time.Duration {
	// Compare milliseconds: a very large number would overflow a Duration.
	if r.TimeoutMillis == 0 || r.TimeoutMillis > MaxTimeout.Milliseconds() {
		return MaxTimeout
	}
	return time.Duration(r.TimeoutMillis) * time.Millisecond
}
