package ovs

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Exporter is the IPFIX exporter of a bridge's sample actions (ovs-vswitchd.conf.db(5), tables Flow_Sample_Collector_Set and IPFIX). vswitchd aggregates
// the samples of a flow, and sends one record of them.
type Exporter struct {
	CollectorSet uint32           // that of the actions
	Collectors   []netip.AddrPort // by UDP

	// A flow is exported when it is ActiveTimeout old, in whole seconds, or the oldest of MaxFlows. If one of them is 0, each sample is exported at once.
	ActiveTimeout time.Duration
	MaxFlows      uint32
}

// MaxActiveTimeout is the longest time for which vswitchd aggregates samples.
const MaxActiveTimeout = 4200 * time.Second

// Validate rejects what OVSDB or vswitchd refuses.
func (e Exporter) Validate() error {
	if len(e.Collectors) == 0 {
		return errors.New("exporter: no collectors")
	}
	for _, c := range e.Collectors {
		if !c.IsValid() || c.Port() == 0 || c.Addr().IsUnspecified() || c.Addr().IsMulticast() {
			return fmt.Errorf("exporter: %s is no address and port of a collector", c)
		}
	}
	if e.ActiveTimeout < 0 || e.ActiveTimeout > MaxActiveTimeout || e.ActiveTimeout%time.Second != 0 {
		return fmt.Errorf("exporter: the timeout %v is not 0 to %d whole seconds", e.ActiveTimeout, MaxActiveTimeout/time.Second)
	}
	return nil
}
