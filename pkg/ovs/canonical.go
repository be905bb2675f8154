package ovs

import (
	"fmt"
	"strconv"
	"strings"
)

// Numbers of the protocols that have a word of their own.
const (
	ethIPv4 = 0x0800
	ethARP  = 0x0806
	ethRARP = 0x8035
	ethIPv6 = 0x86dd

	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)

// protocol is what a protocol word stands for; proto is -1 where the word leaves nw_proto open.
type protocol struct {
	word string
	eth  int
	ip   int
}

// protocols lists the words, those with an nw_proto first.
func protocols() [12]protocol {
	return [...]protocol{
		{"icmp", ethIPv4, protoICMP},
		{"tcp", ethIPv4, protoTCP},
		{"udp", ethIPv4, protoUDP},
		{"sctp", ethIPv4, protoSCTP},
		{"icmp6", ethIPv6, protoICMPv6},
		{"tcp6", ethIPv6, protoTCP},
		{"udp6", ethIPv6, protoUDP},
		{"sctp6", ethIPv6, protoSCTP},
		{"ip", ethIPv4, -1},
		{"ipv6", ethIPv6, -1},
		{"arp", ethARP, -1},
		{"rarp", ethRARP, -1},
	}
}

// fields are a match's fields in canonical form.
type fields struct {
	text  [numFields]string // name=value; "" where the field is absent
	needs [numFields]needs
	eth   int // dl_type, -1 unless given
	proto int // nw_proto, -1 unless given
}

func canonicalMatch(f *Flow) (string, error) {
	fs := fields{eth: -1, proto: -1}
	if f.Protocol != "" {
		if err := fs.add(string(f.Protocol)); err != nil {
			return "", err
		}
	}
	if f.InPort != 0 {
		if err := fs.add("in_port=" + strconv.Itoa(f.InPort)); err != nil {
			return "", err
		}
	}
	for _, m := range f.Matches {
		b, err := m.MarshalText()
		if err != nil {
			return "", err
		}
		for s := range strings.SplitSeq(string(b), ",") {
			if err := fs.add(s); err != nil {
				return "", err
			}
		}
	}
	return fs.canonical()
}

// add adds one element of a match, a protocol word or name=value.
func (fs *fields) add(s string) error {
	name, value, isField := strings.Cut(s, "=")
	if !isField {
		for _, p := range protocols() {
			if p.word == s {
				return fs.setProtocol(p.eth, p.ip, s)
			}
		}
		return fmt.Errorf("%q is neither a protocol that this package knows nor a field", s)
	}
	fd, ok := lookupField(name)
	if !ok {
		return fmt.Errorf("the field %q is not one that this package knows", name)
	}
	text, err := fd.canonical(value)
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	switch {
	case text == "":
		return nil // matches everything
	case fd.id == fieldDLType || fd.id == fieldNWProto:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		if fd.id == fieldDLType {
			return fs.setProtocol(n, -1, s)
		}
		return fs.setProtocol(-1, n, s)
	}
	return fs.set(fd, text)
}

func (fs *fields) set(fd field, value string) error {
	text := fd.name + "=" + value
	if old := fs.text[fd.id]; old != "" && old != text {
		return fmt.Errorf("%s contradicts %s", text, old)
	}
	fs.text[fd.id] = text
	if fs.needs[fd.id] == needsNothing || fs.needs[fd.id] == needsTransport {
		fs.needs[fd.id] = fd.needs // tcp_dst asks for more than tp_dst
	}
	return nil
}

func (fs *fields) setProtocol(eth, proto int, from string) error {
	if eth >= 0 && fs.eth >= 0 && eth != fs.eth || proto >= 0 && fs.proto >= 0 && proto != fs.proto {
		return fmt.Errorf("%s contradicts another protocol in the match", from)
	}
	fs.eth = max(fs.eth, eth)
	fs.proto = max(fs.proto, proto)
	return nil
}

func (fs *fields) canonical() (string, error) {
	if fs.eth == ethARP || fs.eth == ethRARP {
		if err := fs.useARPNames(); err != nil {
			return "", err
		}
	}
	for id, n := range fs.needs {
		if fs.text[id] != "" && !fs.satisfies(n) {
			return "", fmt.Errorf("%s needs %s in the match", fs.text[id], n)
		}
	}
	fs.printProtocol()
	if fs.text[fieldNWProto] != "" && !fs.satisfies(needsIP) {
		return "", fmt.Errorf("%s needs %s in the match", fs.text[fieldNWProto], needsIP)
	}
	var b strings.Builder
	for _, t := range fs.text {
		if t == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(t)
	}
	return b.String(), nil
}

// useARPNames renames the fields that Open vSwitch shares between IP and ARP, as it does itself.
func (fs *fields) useARPNames() error {
	for _, shared := range []struct {
		ip  fieldID
		arp string
	}{{fieldNWSrc, "arp_spa"}, {fieldNWDst, "arp_tpa"}} {
		if _, value, ok := strings.Cut(fs.text[shared.ip], "="); ok {
			fd, _ := lookupField(shared.arp)
			if err := fs.set(fd, value); err != nil {
				return err
			}
			fs.text[shared.ip] = ""
		}
	}
	if fs.proto >= 0 {
		fd, _ := lookupField("arp_op")
		if err := fs.set(fd, strconv.Itoa(fs.proto)); err != nil {
			return err
		}
		fs.proto = -1
	}
	return nil
}

// printProtocol puts the protocol's word into the match, or its numbers where it has none.
func (fs *fields) printProtocol() {
	for _, p := range protocols() {
		if p.eth == fs.eth && (p.ip == fs.proto || p.ip < 0) {
			fs.text[fieldProtocol] = p.word
			if p.ip < 0 && fs.proto >= 0 {
				fs.text[fieldNWProto] = "nw_proto=" + strconv.Itoa(fs.proto)
			}
			return
		}
	}
	if fs.eth >= 0 {
		fs.text[fieldDLType] = fmt.Sprintf("dl_type=0x%04x", fs.eth)
	}
	if fs.proto >= 0 {
		fs.text[fieldNWProto] = "nw_proto=" + strconv.Itoa(fs.proto)
	}
}

func (fs *fields) satisfies(n needs) bool {
	ip := fs.eth == ethIPv4 || fs.eth == ethIPv6
	// Later fragments carry no transport header.
	header := ip && fs.text[fieldNWFrag] != "nw_frag=later"
	switch n {
	case needsNothing:
		return true
	case needsARP:
		return fs.eth == ethARP || fs.eth == ethRARP
	case needsIPv4:
		return fs.eth == ethIPv4
	case needsIPv6:
		return fs.eth == ethIPv6
	case needsIP:
		return ip
	case needsTransport:
		return header && (fs.proto == protoTCP || fs.proto == protoUDP || fs.proto == protoSCTP)
	case needsTCP:
		return header && fs.proto == protoTCP
	case needsUDP:
		return header && fs.proto == protoUDP
	case needsSCTP:
		return header && fs.proto == protoSCTP
	case needsICMP:
		return header && fs.eth == ethIPv4 && fs.proto == protoICMP || fs.satisfies(needsICMPv6)
	case needsICMPv6:
		return header && fs.eth == ethIPv6 && fs.proto == protoICMPv6
	}
	return false
}
