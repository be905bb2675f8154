package podcapture

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// Offsets in an Ethernet frame. The kernel removes a VLAN tag before it runs the filter.
const (
	offsetEtherType = 12
	offsetPayload   = 14
	offsetFragment  = offsetPayload + 6
	offsetProtocol  = offsetPayload + 9
	offsetSource    = offsetPayload + 12
	offsetDest      = offsetPayload + 16
	offsetARPSender = offsetPayload + 14
	offsetARPTarget = offsetPayload + 24
)

// fragmentMask has the bits of the fragment offset: only the first fragment has ports.
const fragmentMask = 0x1fff

// program is a classic BPF program that accepts what all its parts accept. rejects are jumps to the end of the program if their condition is false.
type program struct {
	code    []bpf.Instruction
	rejects []int
}

// filter returns the program for the packets of a complete spec. It returns the number of bytes that are captured.
func filter(s *diagnostics.CaptureSpec) []bpf.Instruction {
	accept := bpf.RetConstant{Val: uint32(s.SnapLength)} //nolint:gosec // it is positive
	if s.Filter() == "" {
		return []bpf.Instruction{accept}
	}
	host, hasIP := s.Prefix(), s.Protocol != diagnostics.CaptureARP
	var ip, arp []bpf.Instruction
	if hasIP {
		ip = ofIPv4(s, host).finish(accept)
	}
	if !hasIP || s.Protocol == "" && s.Port == 0 {
		p := &program{}
		p.require(unix.ETH_P_ARP)
		p.hasHost(host, offsetARPSender, offsetARPTarget)
		arp = p.finish(accept)
	}
	code := []bpf.Instruction{bpf.LoadAbsolute{Off: offsetEtherType, Size: 2}}
	if len(ip) > 0 && len(arp) > 0 {
		code = append(code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_ARP, SkipTrue: uint8(len(ip))}) //nolint:gosec // a program has some 20 instructions
	}
	return append(append(code, ip...), arp...)
}

func ofIPv4(s *diagnostics.CaptureSpec, host netip.Prefix) *program {
	p := &program{}
	p.require(unix.ETH_P_IP)
	switch numbers := map[string]uint32{
		diagnostics.CaptureTCP: unix.IPPROTO_TCP, diagnostics.CaptureUDP: unix.IPPROTO_UDP, diagnostics.CaptureSCTP: unix.IPPROTO_SCTP, diagnostics.CaptureICMP: unix.IPPROTO_ICMP,
	}; {
	case s.Protocol != "":
		p.load(offsetProtocol, 1)
		p.require(numbers[s.Protocol])
	case s.Port != 0:
		p.load(offsetProtocol, 1)
		p.code = append(p.code,
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipTrue: 1})
		p.require(unix.IPPROTO_SCTP)
	}
	p.hasHost(host, offsetSource, offsetDest)
	if s.Port != 0 {
		p.load(offsetFragment, 2)
		p.code = append(p.code, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: fragmentMask})
		p.require(0)
		p.code = append(p.code, bpf.LoadMemShift{Off: offsetPayload})
		p.either(uint32(s.Port), []bpf.Instruction{bpf.LoadIndirect{Off: offsetPayload, Size: 2}}, []bpf.Instruction{bpf.LoadIndirect{Off: offsetPayload + 2, Size: 2}}) //nolint:gosec // it is positive
	}
	return p
}

func (p *program) load(offset uint32, size int) {
	p.code = append(p.code, bpf.LoadAbsolute{Off: offset, Size: size})
}

// require rejects the packet unless the loaded value is this one.
func (p *program) require(value uint32) {
	p.rejects = append(p.rejects, len(p.code))
	p.code = append(p.code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: value})
}

// either rejects the packet unless one of the two loads the value.
func (p *program) either(value uint32, first, second []bpf.Instruction) {
	p.code = append(p.code, first...)
	p.code = append(p.code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipTrue: uint8(len(second) + 1)}) //nolint:gosec // few
	p.code = append(p.code, second...)
	p.require(value)
}

// hasHost rejects the packet unless one of the two addresses is in the prefix. The zero Prefix has all.
func (p *program) hasHost(host netip.Prefix, source, destination uint32) {
	if !host.IsValid() {
		return
	}
	mask := uint32(0xffffffff) << (32 - host.Bits())
	at := func(offset uint32) []bpf.Instruction {
		return []bpf.Instruction{bpf.LoadAbsolute{Off: offset, Size: 4}, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask}}
	}
	addr := host.Addr().As4()
	p.either(binary.BigEndian.Uint32(addr[:]), at(source), at(destination))
}

// finish returns the program with its two ends.
func (p *program) finish(accept bpf.RetConstant) []bpf.Instruction {
	code := append(p.code, accept, bpf.RetConstant{})
	for _, i := range p.rejects {
		jump, _ := code[i].(bpf.JumpIf)           // require made it
		jump.SkipFalse = uint8(len(code) - i - 2) //nolint:gosec // a program has some 20 instructions
		code[i] = jump
	}
	return code
}
