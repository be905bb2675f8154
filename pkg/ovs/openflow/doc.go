// Package openflow is a codec for the part of OpenFlow 1.4 and 1.5 that this project speaks to Open vSwitch, with the
// Nicira extensions in use, and for the text in which ovs-ofctl writes flows, groups and meters. It does no I/O.
//
// # Versions
//
// Flows travel in OpenFlow 1.4. It is the first version with bundles and importance of its own, and the last one in which
// Open vSwitch keeps a load apart from a set_field: 1.5 has no NXAST_REG_LOAD, so a load sent over 1.5 is stored as a
// set_field, and whoever reads `ovs-ofctl -O OpenFlow13 dump-flows` no longer finds the load:…->NXM_NX_REG1[] that the
// pipeline's documents promise.
//
// Groups are whole only in 1.5: 1.4 can neither set nor show a selection method, shows no bucket ids, and can't insert or remove
// single buckets (NXT_GROUP_MOD exists for OpenFlow 1.0 alone). One connection speaks one version, so every
// message is encoded for a Version, both are decoded into the same values, and what a version can't say is an error.
//
// # Values
//
// A Match is its canonical wire form and comparable with ==. Actions and instructions keep the form in which they came
// (load or set_field), since their text shows it; Canonical gives the bytes in which equal things are equal.
// What this package does not know stays opaque: it is encoded as it came and printed as unknown(0x…). It never
// makes a dump fail.
//
// Section numbers refer to the OpenFlow 1.4.1 and 1.5.1 specifications; names in NX… are of Open vSwitch's
// include/openflow/nicira-ext.h and lib/ofp-actions.c.
package openflow
