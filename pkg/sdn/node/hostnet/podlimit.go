package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

const (
	// podShare is the part of the host's conntrack table that the connections of one pod may take.
	podShare = 16

	// maxPodConnections bounds the time that a new connection takes while connlimit walks those that exist: about 4 ms, at most once in each jiffy.
	maxPodConnections = 32768
)

// PodConnections returns a function that derives from nf_conntrack_max how many entries of the host's conntrack table one pod may take; 0: no
// limit, since the table has none. It is called in each Sync, since kube-proxy sets nf_conntrack_max when it starts.
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

// podLimit is the chain that drops new connections of a pod that has its share of the host's conntrack table: what is masqueraded, or goes to
// services, nodes and other hosts, has an entry there. The rules are podLimitRules. Agents without this chain remove it from PREROUTING.
func podLimit() Chain {
	return Chain{
		Table: tableMangle, Name: chainPrefix + "LIMIT", BuiltIn: "PREROUTING",
		Comment:  "ovsdn: connections of each pod",
		Optional: &Optional{Feature: FeaturePodLimit, Modules: "xt_connlimit, nf_conncount and xt_conntrack"},
	}
}

// podLimitRules limit the connections of each address behind tun0; 0: no limit. connlimit starts to count when the rule is written, so
// the rule is rewritten only when the limit changes. It walks all connections of the address, so only packets that create an entry, which is not confirmed
// yet, get there: the others of a UDP flow without replies are NEW, too.
func podLimitRules(limit int) []Rule {
	if limit == 0 {
		return nil
	}
	match := []string{"-i", Tun0Name, "-m", "conntrack", "--ctstate", "NEW", "!", "--ctstatus", "CONFIRMED",
		"-m", "connlimit", "--connlimit-above", strconv.Itoa(limit), "--connlimit-mask", "32", "--connlimit-saddr"}
	return []Rule{rule(match, "pod with too many connections", "DROP")}
}
