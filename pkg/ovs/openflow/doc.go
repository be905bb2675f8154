// Package openflow encodes and decodes the parts of OpenFlow 1.4, with Open vSwitch's Nicira extensions, that this project uses, and
// parses and formats flows, groups and meters in the syntax of ovs-ofctl. It does no I/O.
//
// # Version
//
// OpenFlow 1.4 is the first version with bundles and importance in the standard, and the last one in which Open vSwitch distinguishes
// load from set_field. OpenFlow 1.5 has no NXAST_REG_LOAD: Open vSwitch stores a load that arrives over 1.5 as a set_field, and
// `ovs-ofctl -O OpenFlow13 dump-flows` then prints no load:…->NXM_NX_REG1[]. Only 1.5 has selection methods of groups, bucket ids and
// changes of single buckets, none of which this project needs.
//
// # Values
//
// A Match is its canonical wire form and comparable with ==. Actions and instructions retain the form in which they arrived (load or
// set_field), because their text shows it; Canonical returns bytes that are equal for equivalent instructions. An unsupported
// action, instruction or field never fails a dump: it is encoded as it arrived and printed as unknown(0x…).
//
// Section numbers refer to the OpenFlow 1.4.1 specification; names that begin with NX are defined in Open vSwitch's
// include/openflow/nicira-ext.h and lib/ofp-actions.c.
package openflow
