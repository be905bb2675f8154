package native

import (
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// The rows of the Open_vSwitch database that this package uses, with the monitored columns. Columns with counters are not monitored:
// vswitchd writes those of every row every few seconds.
//
// libovsdb clones and compares rows through JSON and reflection unless they implement it. A row in its cache is replaced and never
// changed, so that a clone may share pointers and maps; the array of a set is reused by the cache.

const (
	tableRoot      = "Open_vSwitch"
	tableBridge    = "Bridge"
	tablePort      = "Port"
	tableInterface = "Interface"
	tableFlowTable = "Flow_Table"
	tableExporter  = "IPFIX"
	tableSampling  = "Flow_Sample_Collector_Set"
)

type rootRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Bridges     []string          `ovsdb:"bridges"`
	OtherConfig map[string]string `ovsdb:"other_config"`
	NextCfg     int               `ovsdb:"next_cfg"`
	CurCfg      int               `ovsdb:"cur_cfg"`
}

type bridgeRow struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	DatapathType string            `ovsdb:"datapath_type"`
	FailMode     *string           `ovsdb:"fail_mode"`
	Controllers  []string          `ovsdb:"controller"`
	Protocols    []string          `ovsdb:"protocols"`
	FlowTables   map[int]string    `ovsdb:"flow_tables"`
	Ports        []string          `ovsdb:"ports"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
}

type portRow struct {
	UUID       string   `ovsdb:"_uuid"`
	Name       string   `ovsdb:"name"`
	Interfaces []string `ovsdb:"interfaces"`
}

type interfaceRow struct {
	UUID          string            `ovsdb:"_uuid"`
	Name          string            `ovsdb:"name"`
	Type          string            `ovsdb:"type"`
	Options       map[string]string `ovsdb:"options"`
	OFPort        *int              `ovsdb:"ofport"`
	OFPortRequest *int              `ovsdb:"ofport_request"`
	MTURequest    *int              `ovsdb:"mtu_request"`
	MAC           *string           `ovsdb:"mac"`
	ExternalIDs   map[string]string `ovsdb:"external_ids"`
	Error         *string           `ovsdb:"error"`
}

type flowTableRow struct {
	UUID string  `ovsdb:"_uuid"`
	Name *string `ovsdb:"name"`
}

func databaseModel() (model.ClientDBModel, error) {
	return model.NewClientDBModel(databaseName, map[string]model.Model{
		tableRoot:      &rootRow{},
		tableBridge:    &bridgeRow{},
		tablePort:      &portRow{},
		tableInterface: &interfaceRow{},
		tableFlowTable: &flowTableRow{},
		tableExporter:  &exporterRow{},
		tableSampling:  &samplingRow{},
	})
}

// monitorOf returns the request to monitor all columns of the rows above.
func monitorOf(c client.Client) *client.Monitor {
	var (
		root   rootRow
		bridge bridgeRow
		port   portRow
		iface  interfaceRow
		flows  flowTableRow

		exporter exporterRow
		sampling samplingRow
	)
	m := c.NewMonitor(
		client.WithTable(&root, &root.Bridges, &root.OtherConfig, &root.NextCfg, &root.CurCfg),
		client.WithTable(&bridge, &bridge.Name, &bridge.DatapathType, &bridge.FailMode, &bridge.Controllers, &bridge.Protocols, &bridge.FlowTables, &bridge.Ports,
			&bridge.ExternalIDs),
		client.WithTable(&port, &port.Name, &port.Interfaces),
		client.WithTable(&iface, &iface.Name, &iface.Type, &iface.Options, &iface.OFPort, &iface.OFPortRequest, &iface.MTURequest,
			&iface.MAC, &iface.ExternalIDs, &iface.Error),
		client.WithTable(&flows, &flows.Name),
		client.WithTable(&exporter, &exporter.Targets, &exporter.ActiveTimeout, &exporter.MaxFlows, &exporter.OtherConfig, &exporter.ExternalIDs),
		client.WithTable(&sampling, &sampling.ID, &sampling.Bridge, &sampling.Exporter, &sampling.ExternalIDs),
	)
	// Of the three monitor methods, only with this one libovsdb ends the connection if an update does not fit its copy.
	m.Method = ovsdb.ConditionalMonitorRPC
	return m
}

// port returns the interface as a Port.
func (r *interfaceRow) port() ovs.Port {
	return ovs.Port{
		Name:        r.Name,
		Type:        r.Type,
		Options:     maps.Clone(r.Options),
		OFPort:      orZero(r.OFPort),
		MTURequest:  orZero(r.MTURequest),
		MAC:         orZero(r.MAC),
		ExternalIDs: maps.Clone(r.ExternalIDs),
		Error:       orZero(r.Error),
	}
}

// withoutNumber returns the interface without a port number.
func (r *interfaceRow) withoutNumber() interfaceRow {
	r2 := *r
	r2.OFPort = nil
	return r2
}

func orZero[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func equalOptional[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

func (r *rootRow) CloneModel() model.Model {
	c := *r
	c.Bridges, c.OtherConfig = slices.Clone(r.Bridges), maps.Clone(r.OtherConfig)
	return &c
}

func (r *rootRow) CloneModelInto(to model.Model) { *to.(*rootRow) = *r.CloneModel().(*rootRow) }

func (r *rootRow) EqualsModel(other model.Model) bool {
	o := other.(*rootRow)
	return r.UUID == o.UUID && r.NextCfg == o.NextCfg && r.CurCfg == o.CurCfg && slices.Equal(r.Bridges, o.Bridges) &&
		maps.Equal(r.OtherConfig, o.OtherConfig)
}

func (r *bridgeRow) CloneModel() model.Model {
	c := *r
	c.Protocols, c.FlowTables, c.Ports = slices.Clone(r.Protocols), maps.Clone(r.FlowTables), slices.Clone(r.Ports)
	c.Controllers = slices.Clone(r.Controllers)
	c.ExternalIDs = maps.Clone(r.ExternalIDs)
	return &c
}

// flushesAfter reports whether vswitchd deletes the bridge's flows when the row changes from before to r: when the fail mode changes, when the
// bridge gets its first controller and when it loses its last one (connmgr_set_fail_mode and connmgr_set_controllers in ofproto/connmgr.c).
func (r *bridgeRow) flushesAfter(before *bridgeRow) bool {
	return !equalOptional(before.FailMode, r.FailMode) || (len(before.Controllers) == 0) != (len(r.Controllers) == 0)
}

// sameSettings reports whether the rows differ in nothing but their ports.
func (r *bridgeRow) sameSettings(o *bridgeRow) bool {
	other := *o
	other.Ports = r.Ports
	return r.EqualsModel(&other)
}

func (r *bridgeRow) CloneModelInto(to model.Model) { *to.(*bridgeRow) = *r.CloneModel().(*bridgeRow) }

func (r *bridgeRow) EqualsModel(other model.Model) bool {
	o := other.(*bridgeRow)
	return r.UUID == o.UUID && r.Name == o.Name && r.DatapathType == o.DatapathType && equalOptional(r.FailMode, o.FailMode) &&
		slices.Equal(r.Controllers, o.Controllers) && slices.Equal(r.Protocols, o.Protocols) && maps.Equal(r.FlowTables, o.FlowTables) &&
		slices.Equal(r.Ports, o.Ports) &&
		maps.Equal(r.ExternalIDs, o.ExternalIDs)
}

func (r *portRow) CloneModel() model.Model {
	c := *r
	c.Interfaces = slices.Clone(r.Interfaces)
	return &c
}

func (r *portRow) CloneModelInto(to model.Model) { *to.(*portRow) = *r.CloneModel().(*portRow) }

func (r *portRow) EqualsModel(other model.Model) bool {
	o := other.(*portRow)
	return r.UUID == o.UUID && r.Name == o.Name && slices.Equal(r.Interfaces, o.Interfaces)
}

func (r *interfaceRow) CloneModel() model.Model {
	c := *r
	c.Options, c.ExternalIDs = maps.Clone(r.Options), maps.Clone(r.ExternalIDs)
	return &c
}

func (r *interfaceRow) CloneModelInto(to model.Model) {
	*to.(*interfaceRow) = *r.CloneModel().(*interfaceRow)
}

func (r *interfaceRow) EqualsModel(other model.Model) bool {
	o := other.(*interfaceRow)
	return r.UUID == o.UUID && r.Name == o.Name && r.Type == o.Type && maps.Equal(r.Options, o.Options) &&
		equalOptional(r.OFPort, o.OFPort) && equalOptional(r.OFPortRequest, o.OFPortRequest) &&
		equalOptional(r.MTURequest, o.MTURequest) && equalOptional(r.MAC, o.MAC) &&
		maps.Equal(r.ExternalIDs, o.ExternalIDs) && equalOptional(r.Error, o.Error)
}

func (r *flowTableRow) CloneModel() model.Model {
	c := *r
	return &c
}

func (r *flowTableRow) CloneModelInto(to model.Model) { *to.(*flowTableRow) = *r }

func (r *flowTableRow) EqualsModel(other model.Model) bool {
	o := other.(*flowTableRow)
	return r.UUID == o.UUID && equalOptional(r.Name, o.Name)
}
