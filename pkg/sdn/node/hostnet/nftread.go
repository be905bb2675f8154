package hostnet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/nftables"
)

// nftChain is a chain as the kernel has it.
type nftChain struct {
	Name  string    `json:"name"`
	Table string    `json:"table"`
	Hook  string    `json:"hook"` // of a base chain
	rules []nftRule // in their order
}

// nftRule is a rule as the kernel has it.
type nftRule struct {
	Chain   string            `json:"chain"`
	Handle  int               `json:"handle"`
	Comment string            `json:"comment"`
	Expr    []json.RawMessage `json:"expr"`
}

// nftObjects is what nft prints.
type nftObjects struct {
	Objects []struct {
		Chain *nftChain `json:"chain"`
		Rule  *nftRule  `json:"rule"`
	} `json:"nftables"`
}

// listNFT runs `nft list` and returns the chains by name, with their rules but without the elements of sets. If what is listed does not exist, it returns none.
func listNFT(ctx context.Context, args ...string) (map[string]*nftChain, error) {
	var stderr bytes.Buffer
	command := exec.CommandContext(ctx, nftProgram, append([]string{"-t", "-j", "list"}, args...)...) //nolint:gosec // the names are constants or the kernel's
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("run nft list %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	var all nftObjects
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("parse what nft list %s prints: %w", strings.Join(args, " "), err)
	}
	chains := map[string]*nftChain{}
	for _, o := range all.Objects {
		switch {
		case o.Chain != nil:
			chains[o.Chain.Name] = o.Chain
		case o.Rule != nil && chains[o.Rule.Chain] != nil:
			chains[o.Rule.Chain].rules = append(chains[o.Rule.Chain].rules, *o.Rule)
		}
	}
	return chains, nil
}

// listOwnTable returns the chains of the agent's table, none if it does not exist.
func listOwnTable(ctx context.Context) (map[string]*nftChain, error) {
	exists, err := nftables.HasTable(nftTableName)
	if err != nil || !exists {
		return nil, err
	}
	chains, err := listNFT(ctx, "table", "ip", nftTableName)
	if err == nil {
		return chains, nil
	}
	if exists, existsErr := nftables.HasTable(nftTableName); existsErr == nil && !exists { // deleted in the meantime
		return nil, nil
	}
	return nil, err
}

// packets returns the packets that the rule has counted.
func (r nftRule) packets() uint64 {
	for _, e := range r.Expr {
		var counting struct {
			Counter *struct{ Packets uint64 }
		}
		if json.Unmarshal(e, &counting) == nil && counting.Counter != nil {
			return counting.Counter.Packets
		}
	}
	return 0
}

// jump returns the chain to which the rule jumps; "": none.
func (r nftRule) jump() string {
	for _, e := range r.Expr {
		var jumping struct {
			Jump *struct{ Target string }
		}
		if json.Unmarshal(e, &jumping) == nil && jumping.Jump != nil {
			return jumping.Jump.Target
		}
	}
	return ""
}

// mentions reports whether an expression of the rule has the interface.
func (r nftRule) mentions(device string) bool {
	for _, e := range r.Expr {
		if bytes.Contains(e, []byte(`"`+device+`"`)) {
			return true
		}
	}
	return false
}

// isNoNFT reports that nft is not installed.
func isNoNFT(err error) bool { return errors.Is(err, exec.ErrNotFound) }
