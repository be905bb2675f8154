package hostports

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/containernetworking/plugins/pkg/utils"
	"sigs.k8s.io/knftables"
)

// Missing implements Plugin. It lists the rules of a backend once: portmap's CHECK lists them for each pod, and omits the rules that lead to the pods'.
func (p *Portmap) Missing(ctx context.Context, all []record) ([]record, error) {
	byBackend := map[Backend][]record{}
	for _, r := range all {
		if len(r.mappings()) > 0 {
			byBackend[r.Backend] = append(byBackend[r.Backend], r)
		}
	}
	var missing []record
	var errs []error
	for _, b := range []Backend{BackendNFTables, BackendIPTables, BackendLegacy} {
		if len(byBackend[b]) == 0 {
			continue
		}
		has, err := p.list(ctx, b)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, r := range byBackend[b] {
			if !has.shared || !has.complete(r) {
				missing = append(missing, r)
			}
		}
	}
	return missing, errors.Join(errs...)
}

// ruleset is portmap's rules of a backend.
type ruleset struct {
	shared   bool              // has the rules that lead to the records'
	complete func(record) bool // has the record's rules
}

func (p *Portmap) list(ctx context.Context, b Backend) (ruleset, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if b == BackendNFTables {
		return p.listNFTables(ctx)
	}
	return p.listIPTables(b)
}

// nftables returns the table. Its creation starts nft, without a context.
func (p *Portmap) nftables() (knftables.Interface, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nft == nil {
		nft, err := knftables.New(knftables.IPv4Family, nftTable)
		if err != nil {
			return nil, fmt.Errorf("find nftables: %w", err)
		}
		p.nft = nft
	}
	return p.nft, nil
}

// masqueraded is the number of rules by which portmap's nftables backend masquerades a pod's own packets and those of the loopback.
const masqueraded = 2

func (p *Portmap) listNFTables(ctx context.Context) (ruleset, error) {
	nft, err := p.nftables()
	if err != nil {
		return ruleset{}, err
	}
	rules, err := nft.ListRules(ctx, "")
	if err != nil && !knftables.IsNotFound(err) {
		return ruleset{}, fmt.Errorf("list table ip %s: %w", nftTable, err)
	}
	type key struct{ chain, id string }
	count, shared := map[key]int{}, map[string]int{}
	for _, r := range rules {
		shared[r.Chain]++
		if r.Comment != nil {
			count[key{r.Chain, *r.Comment}]++
		}
	}
	return ruleset{
		shared: shared["prerouting"] > 0 && shared["output"] > 0 && shared["hostports_all"] > 1,
		complete: func(r record) bool {
			return count[key{nftPorts, r.ruleID()}] >= len(r.mappings()) && count[key{"masquerading", r.ruleID()}] >= masqueraded
		},
	}, nil
}

// rulesOfPort is the number of rules of each host port in a chain of portmap's iptables backend: two that mark packets to masquerade, one that translates.
const rulesOfPort = 3

func (p *Portmap) listIPTables(b Backend) (ruleset, error) {
	type jump struct{ chain, target string }
	count, jumps := map[string]int{}, map[jump]int{}
	err := p.eachNATRule(b, func(chain string, words []string) {
		count[chain]++
		jumps[jump{chain, words[len(words)-1]}]++
	})
	if err != nil {
		return ruleset{}, err
	}
	return ruleset{
		shared: jumps[jump{"PREROUTING", portsChain}] > 0 && jumps[jump{"OUTPUT", portsChain}] > 0 && jumps[jump{"POSTROUTING", masqChain}] > 0 &&
			count[masqChain] > 0 && count[markChain] > 0,
		complete: func(r record) bool {
			return count[chainOf(r)] >= rulesOfPort*len(r.mappings()) && jumps[jump{portsChain, chainOf(r)}] >= len(portLists(r))
		},
	}, nil
}

// chainOf returns the chain of the record's rules.
func chainOf(r record) string {
	return utils.MustFormatChainNameWithPrefix(r.Network, r.ruleID(), "DN-")
}

// portLists returns the lists of ports, of at most 15 and one protocol, for each of which portmap has a jump to the pod's chain.
func portLists(r record) map[string]bool {
	const multiport = 15
	byProtocol := map[string][]string{}
	for _, m := range r.mappings() {
		byProtocol[m.Protocol] = append(byProtocol[m.Protocol], strconv.Itoa(m.HostPort))
	}
	lists := map[string]bool{}
	for protocol, ports := range byProtocol {
		for len(ports) > 0 {
			n := min(multiport, len(ports))
			lists[protocol+" "+strings.Join(ports[:n], ",")] = true
			ports = ports[n:]
		}
	}
	return lists
}
