package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowexport"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// FlowExport is the configuration of the export of flows by IPFIX.
type FlowExport struct {
	Collectors    []string      // IP:PORT by UDP; none: flows are not exported
	Sampling      int           // one of that many packets
	ActiveTimeout time.Duration // of the aggregation of a flow's samples
	MaxFlows      uint32        // that are aggregated
	Domain        uint32        // observationDomainId; 0: the node's IPv4 address as a number
}

// The limits of the export: the probability of a sample has 16 bits, and more collectors than maxCollectors are certainly a mistake.
const (
	everyPacket   = 65535 // probability of a sample of each packet
	maxCollectors = 8
)

// validate returns all errors of the flags, also those without collectors.
func (f FlowExport) validate() error {
	var errs []error
	invalid := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(f.Collectors) > maxCollectors {
		invalid("--ipfix-collectors: %d addresses, at most %d are allowed", len(f.Collectors), maxCollectors)
	}
	for _, text := range f.Collectors {
		if _, err := parseCollector(text); err != nil {
			invalid("--ipfix-collectors: %q %w", text, err)
		}
	}
	if f.Sampling < 1 || f.Sampling > everyPacket {
		invalid("--ipfix-sampling=%d: must be from 1 (each packet) to %d", f.Sampling, everyPacket)
	}
	if f.ActiveTimeout < 0 || f.ActiveTimeout > ovs.MaxActiveTimeout || f.ActiveTimeout%time.Second != 0 {
		invalid("--ipfix-cache-timeout=%v: must be whole seconds from 0 (no cache) to %v", f.ActiveTimeout, ovs.MaxActiveTimeout)
	}
	return errors.Join(errs...)
}

// parseCollector parses the address of a collector, to which packets of UDP can be sent.
func parseCollector(text string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(text)
	switch {
	case err != nil:
		return addr, errors.New("is not an address: write IP:PORT, such as 192.0.2.10:4739")
	case addr.Port() == 0:
		return addr, errors.New("has port 0: write the collector's, such as 4739")
	case addr.Addr().IsUnspecified() || addr.Addr().IsMulticast() || addr.Addr().Zone() != "":
		return addr, errors.New("is not the address of one host")
	}
	return addr, nil
}

// exporter returns the exporter in OVSDB; nil if flows are not exported.
func (f FlowExport) exporter() *ovs.Exporter {
	if len(f.Collectors) == 0 {
		return nil
	}
	e := &ovs.Exporter{CollectorSet: pipeline.CollectorSet, ActiveTimeout: f.ActiveTimeout, MaxFlows: f.MaxFlows}
	for _, text := range f.Collectors {
		if addr, err := parseCollector(text); err == nil { // validated
			e.Collectors = append(e.Collectors, addr)
		}
	}
	return e
}

// samples returns the samples in the flows of the node with that address.
func (f FlowExport) samples(node netip.Addr) pipeline.FlowExport {
	if len(f.Collectors) == 0 {
		return pipeline.FlowExport{}
	}
	domain := f.Domain
	if domain == 0 && node.Is4() {
		addr := node.As4()
		domain = binary.BigEndian.Uint32(addr[:])
	}
	// vswitchd multiplies the counts of samples by everyPacket/Probability, rounded down: with a probability that is rounded up, 1 of 2 would count once.
	return pipeline.FlowExport{Probability: uint16(everyPacket / f.Sampling), Domain: domain} //nolint:gosec // of 16 bits
}

// newFlowExport creates the feature that adds the exporter, or removes that of a previous agent.
func (n *nodeNetwork) newFlowExport() {
	e := flowexport.New(n.agent.bridge, n.agent.FlowExport.exporter(), flowexport.DefaultCheckInterval)
	n.runs, n.onConnected = append(n.runs, e.Run), append(n.onConnected, e.Resync)
}
