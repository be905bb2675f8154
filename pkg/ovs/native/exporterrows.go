package native

import (
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/model"
)

// exporterRow is a row of table IPFIX, which OVSDB deletes when no other row refers to it.
type exporterRow struct {
	UUID          string            `ovsdb:"_uuid"`
	Targets       []string          `ovsdb:"targets"`
	ActiveTimeout *int              `ovsdb:"cache_active_timeout"`
	MaxFlows      *int              `ovsdb:"cache_max_flows"`
	OtherConfig   map[string]string `ovsdb:"other_config"`
	ExternalIDs   map[string]string `ovsdb:"external_ids"`
}

// samplingRow is a row of table Flow_Sample_Collector_Set: the exporter of the sample actions of a bridge with that ID.
type samplingRow struct {
	UUID        string            `ovsdb:"_uuid"`
	ID          int               `ovsdb:"id"`
	Bridge      string            `ovsdb:"bridge"`
	Exporter    *string           `ovsdb:"ipfix"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

func (r *exporterRow) CloneModel() model.Model {
	c := *r
	c.Targets, c.OtherConfig, c.ExternalIDs = slices.Clone(r.Targets), maps.Clone(r.OtherConfig), maps.Clone(r.ExternalIDs)
	return &c
}

func (r *exporterRow) CloneModelInto(to model.Model) {
	*to.(*exporterRow) = *r.CloneModel().(*exporterRow)
}

func (r *exporterRow) EqualsModel(other model.Model) bool {
	o := other.(*exporterRow)
	return r.UUID == o.UUID && slices.Equal(r.Targets, o.Targets) && equalOptional(r.ActiveTimeout, o.ActiveTimeout) &&
		equalOptional(r.MaxFlows, o.MaxFlows) && maps.Equal(r.OtherConfig, o.OtherConfig) && maps.Equal(r.ExternalIDs, o.ExternalIDs)
}

func (r *samplingRow) CloneModel() model.Model {
	c := *r
	c.ExternalIDs = maps.Clone(r.ExternalIDs)
	return &c
}

func (r *samplingRow) CloneModelInto(to model.Model) {
	*to.(*samplingRow) = *r.CloneModel().(*samplingRow)
}

func (r *samplingRow) EqualsModel(other model.Model) bool {
	o := other.(*samplingRow)
	return r.UUID == o.UUID && r.ID == o.ID && r.Bridge == o.Bridge && equalOptional(r.Exporter, o.Exporter) && maps.Equal(r.ExternalIDs, o.ExternalIDs)
}
