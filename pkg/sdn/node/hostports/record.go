package hostports

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/ovsdn/ovsdn/pkg/atomicfile"
)

// Attachment is one interface of one sandbox.
type Attachment struct {
	Sandbox string `json:"sandbox"` // container id
	IfName  string `json:"ifName"`
}

func (a Attachment) hash() string {
	sum := sha256.Sum256([]byte(a.Sandbox + "/" + a.IfName))
	return hex.EncodeToString(sum[:])
}

// ruleID is the container id by which portmap finds the rules of the attachment. Those of other plugins, which have the sandbox's, remain.
func (a Attachment) ruleID() string { return ruleIDPrefix + a.hash()[:32] }

func (a Attachment) compare(b Attachment) int {
	return cmp.Or(strings.Compare(a.Sandbox, b.Sandbox), strings.Compare(a.IfName, b.IfName))
}

// record is what ADD of an attachment with host ports was asked for: enough to repeat it, and to revert it. Its JSON is persistent.
type record struct {
	Attachment

	Netns     string    `json:"netns"` // path
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid,omitempty"`
	Network   string    `json:"network"` // name of the CNI network
	Backend   Backend   `json:"backend"`
	Mappings  []Mapping `json:"portMappings"`

	Result *current.Result `json:"result,omitempty"` // of the pod's ADD; nil until that ended
}

// isPod reports whether both are sandboxes of the same pod, or of pods with the same name.
func (r record) isPod(other record) bool {
	return r.Namespace == other.Namespace && r.Name == other.Name
}

// isAttachment reports whether both are records of the same attachment.
func (r record) isAttachment(other record) bool { return r.Attachment == other.Attachment }

// mappings returns the mappings of IPv4, the only ones that pods have, as portmap gets them.
func (r record) mappings() (all []Mapping) {
	for _, m := range r.Mappings {
		if m.addr().Is4() {
			all = append(all, m.canonical())
		}
	}
	return all
}

// addrs returns the pod's addresses.
func (r record) addrs() (addrs []netip.Addr) {
	if r.Result == nil {
		return nil
	}
	for _, ip := range r.Result.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs
}

// ownAddresses returns the result with each address as a subnet of its own: portmap's iptables backend masquerades the address' whole subnet, so all pods of
// the node, whose VNIDs and policies the node's address would bypass.
func (r record) ownAddresses() *current.Result {
	if r.Result == nil {
		return nil
	}
	result := *r.Result
	result.IPs = nil
	for _, ip := range r.Result.IPs {
		own, bits := *ip, 8*net.IPv6len
		if own.Address.IP.To4() != nil {
			bits = 8 * net.IPv4len
		}
		own.Address.Mask = net.CIDRMask(bits, bits)
		result.IPs = append(result.IPs, &own)
	}
	return &result
}

// records is a directory with a file for each attachment with host ports. It must be on a file system that a reboot clears, as it clears the rules.
type records string

const recordSuffix = ".json"

func (d records) path(a Attachment) string { return filepath.Join(string(d), a.hash()+recordSuffix) }

func (d records) write(r record) error {
	content, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode host ports: %w", err)
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("store host ports: %w", err)
	}
	if err := atomicfile.Write(d.path(r.Attachment), content, 0o600); err != nil {
		return fmt.Errorf("store host ports: %w", err)
	}
	return nil
}

// restore writes the record if its file was deleted.
func (d records) restore(r record) error {
	_, err := os.Stat(d.path(r.Attachment))
	if errors.Is(err, fs.ErrNotExist) {
		return d.write(r)
	}
	return err
}

func (d records) remove(a Attachment) error {
	if err := os.Remove(d.path(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete stored host ports: %w", err)
	}
	return nil
}

// list returns the records, ordered by attachment. It returns those that it can read with an error, too.
func (d records) list() ([]record, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list stored host ports: %w", err)
	}
	var all []record
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), recordSuffix) {
			continue // a write that a crash interrupted
		}
		path := filepath.Join(string(d), e.Name())
		content, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var r record
		if err := json.Unmarshal(content, &r); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b record) int { return a.compare(b.Attachment) })
	if err := errors.Join(errs...); err != nil {
		return all, fmt.Errorf("read stored host ports: %w", err)
	}
	return all, nil
}
