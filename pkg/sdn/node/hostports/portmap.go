package hostports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// PluginName is the name of the program of containernetworking/plugins that maps host ports.
const PluginName = "portmap"

// Backend is the packet filter for which portmap writes rules. Its values are stored.
type Backend string

// Backends.
const (
	BackendNFTables Backend = "nftables"
	BackendIPTables Backend = "iptables"        // the default of the program iptables, usually nf_tables
	BackendLegacy   Backend = "iptables-legacy" // from LegacyDir
)

// portmap returns portmap's name of the backend.
func (b Backend) portmap() string {
	if b == BackendLegacy {
		return string(BackendIPTables)
	}
	return string(b)
}

// Plugin maps and unmaps the host ports of a record.
type Plugin interface {
	// Add writes the rules. Rules that exist are written a second time.
	Add(ctx context.Context, r record) error

	// Missing returns the records of which a rule is missing, and all of a backend if a rule is missing that its records share.
	Missing(ctx context.Context, all []record) ([]record, error)

	// Del deletes the rules. None of them need exist.
	Del(ctx context.Context, r record) error

	// RemoveUnknown deletes the rules of this package whose ids are not known, and returns these ids. It calls known each time that it has listed rules.
	RemoveUnknown(ctx context.Context, known func() func(id string) bool) ([]string, error)

	// RemoveUnused removes what Del leaves, the chains that all pods share, unless another network uses them.
	RemoveUnused(ctx context.Context) error

	// Backend returns the backend for new records.
	Backend(ctx context.Context) (Backend, error)
}

// Portmap runs the program portmap.
type Portmap struct {
	Path string // the program

	// LegacyDir is a directory in which iptables has the legacy backend. Without it, that is the default backend where the host uses it.
	LegacyDir string
	Legacy    func() bool // reports whether the host's rules are in the legacy backend of iptables; required by Backend

	mu  sync.Mutex
	nft knftables.Interface // nil until it is used
}

// portmapConfig is portmap's network configuration.
type portmapConfig struct {
	CNIVersion    string          `json:"cniVersion"`
	Name          string          `json:"name"`
	Type          string          `json:"type"`
	Backend       string          `json:"backend"`
	SNAT          bool            `json:"snat"`
	RuntimeConfig runtimeConfig   `json:"runtimeConfig"`
	PrevResult    *current.Result `json:"prevResult,omitempty"`
}

type runtimeConfig struct {
	PortMappings []Mapping `json:"portMappings"`
}

// Timeouts of programs.
const (
	portmapTimeout = 30 * time.Second // it starts iptables several times for each host port
	listTimeout    = 10 * time.Second
)

// Add implements Plugin. A container's /proc/sys is read-only: portmap fails to set route_localnet, as its last step, which the agent sets itself. So the rules
// determine the result.
func (p *Portmap) Add(ctx context.Context, r record) error {
	if len(r.mappings()) == 0 {
		return nil
	}
	err := p.add(ctx, r)
	if err == nil || ctx.Err() != nil {
		return err
	}
	missing, listErr := p.Missing(ctx, []record{r})
	if listErr != nil || len(missing) > 0 {
		return errors.Join(err, listErr)
	}
	return nil
}

// Del implements Plugin.
func (p *Portmap) Del(ctx context.Context, r record) error {
	return p.del(ctx, owner{r.Backend, r.Network, r.ruleID()})
}

// Backend implements Plugin: nftables if the kernel has what portmap needs, else iptables. It changes nothing.
func (p *Portmap) Backend(ctx context.Context) (Backend, error) {
	if !isExecutable(p.Path) {
		return "", fmt.Errorf("%s is no executable program; it is in the agent's image, beside the agent", p.Path)
	}
	unknown, nftErr := supportsNFTables(ctx)
	if nftErr == nil {
		return BackendNFTables, nil
	}
	if unknown {
		return "", nftErr
	}
	backend := BackendIPTables
	if p.Legacy() {
		backend = BackendLegacy
	}
	if err := p.supportsIPTables(backend); err != nil {
		return "", fmt.Errorf("neither nftables nor iptables can translate addresses: %w; %w", nftErr, err)
	}
	return backend, nil
}

// mapping is a mapping of portmap's configuration. portmap flushes the connections of all UDP packets to a port, of all zones and addresses, for mappings whose
// protocol is "udp": other names of UDP prevent that. The agent flushes those that the mapping changes.
func (b Backend) mapping(m Mapping) Mapping {
	switch {
	case m.Protocol != protocolUDP:
	case b == BackendNFTables:
		m.Protocol = "meta l4proto udp th"
	default:
		m.Protocol = strconv.Itoa(unix.IPPROTO_UDP)
	}
	return m
}

// add runs ADD.
func (p *Portmap) add(ctx context.Context, r record) error {
	mappings := r.mappings()
	for i, m := range mappings {
		mappings[i] = r.Backend.mapping(m)
	}
	return p.run(ctx, "ADD", owner{r.Backend, r.Network, r.ruleID()}, mappings, r.ownAddresses(), "CNI_IFNAME="+r.IfName, "CNI_NETNS="+r.Netns)
}

// del runs DEL. It finds rules by the id, and reads of mappings only that there are any: those of a refused ADD may be invalid. The pod's network namespace may
// not exist any longer.
func (p *Portmap) del(ctx context.Context, o owner) error {
	return p.run(ctx, "DEL", o, []Mapping{{HostPort: 1, ContainerPort: 1, Protocol: protocolTCP}}, nil, "CNI_IFNAME=eth0")
}

// run executes a verb of portmap.
func (p *Portmap) run(ctx context.Context, verb string, o owner, mappings []Mapping, result *current.Result, env ...string) error {
	ctx, cancel := context.WithTimeout(ctx, portmapTimeout)
	defer cancel()
	config, err := json.Marshal(portmapConfig{
		CNIVersion: current.ImplementedSpecVersion, Name: o.network, Type: PluginName, Backend: o.backend.portmap(), SNAT: true,
		RuntimeConfig: runtimeConfig{mappings}, PrevResult: result,
	})
	if err != nil {
		return fmt.Errorf("encode the configuration of portmap: %w", err)
	}
	env = slices.Concat(os.Environ(), env, []string{
		"PATH=" + p.searchPath(o.backend), "CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + o.id, "CNI_PATH=" + filepath.Dir(p.Path),
	})
	runner := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}}
	if err := invoke.ExecPluginWithoutResult(ctx, p.Path, config, environment(env), runner); err != nil {
		return fmt.Errorf("portmap %s: %s", verb, err.Error()) // its code is not one of this agent
	}
	return nil
}

// environment is the environment of a plugin.
type environment []string

// AsEnv implements invoke.CNIArgs.
func (e environment) AsEnv() []string { return e }

// searchPath returns the PATH in which portmap finds the backend's iptables.
func (p *Portmap) searchPath(b Backend) string {
	path := os.Getenv("PATH")
	if b == BackendLegacy {
		path = p.LegacyDir + string(os.PathListSeparator) + path
	}
	return path
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&0o111 != 0
}
