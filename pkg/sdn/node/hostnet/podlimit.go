package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

const (
	// podShare is the divisor of the host's conntrack table size that yields the limit of one pod.
	podShare = 16

	// maxPodConnections bounds the time of a new connection, during which connlimit walks the existing ones: about 4 ms, at most once in each jiffy.
	maxPodConnections = 32768
)

// PodConnections returns a function that returns the limit of one pod in the host's conntrack table, derived from nf_conntrack_max; 0: no
// limit, since the table has none. Each Sync calls it, since kube-proxy sets nf_conntrack_max when it starts.
func PodConnections(dir sysctl.Dir) func() (int, error) {
	return func() (int, error) {
		value, err := dir.Get("net/netfilter/nf_conntrack_max")
		if errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("%w: nf_conntrack is not loaded", err)
		}
		if err != nil {
			return 0, err
		}
		entries, err := strconv.Atoi(value)
		if err != nil || entries <= 0 {
			return 0, err
		}
		return min(max(entries/podShare, 1), maxPodConnections), nil
	}
}

// podLimit is the chain that drops new connections of a pod with too many entries in the host's conntrack table. Connections that are masqueraded, or
// to services, nodes and other hosts, have an entry there. The rules are unlimited and podLimitRules. Agents without this chain remove it from PREROUTING.
func podLimit(unlimited []Rule) Chain {
	return Chain{
		Table: tableMangle, Name: chainPrefix + "LIMIT", BuiltIn: "PREROUTING",
		Comment:  "ovsdn: connections of each pod",
		Rules:    unlimited,
		Optional: &Optional{Feature: FeaturePodLimit, Modules: "xt_connlimit, nf_conncount and xt_conntrack"},
	}
}

// podLimitRules limit the connections of each address that comes in through tun0; 0: no limit. connlimit starts to count when the rule is written, so
// the rule is rewritten only when the limit changes. It walks all connections of the address, so the rule matches only packets that create an entry,
// which is not confirmed yet: later packets of a UDP flow without replies are NEW, too.
func podLimitRules(limit int) []Rule {
	if limit == 0 {
		return nil
	}
	match := []string{"-i", Tun0Name, "-m", "conntrack", "--ctstate", "NEW", "!", "--ctstatus", "CONFIRMED",
		"-m", "connlimit", "--connlimit-above", strconv.Itoa(limit), "--connlimit-mask", "32", "--connlimit-saddr"}
	return []Rule{rule(match, "pod with too many connections", "DROP")}
}
