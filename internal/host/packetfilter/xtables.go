package packetfilter

import (
	"encoding/binary"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// matchExtension adds a match of iptables (xtables) to the rule. iptables-nft carries them in the kernel's own binary
// form. Sizes and offsets are those of linux/netfilter/xt_*.h.
func (r *PacketRule) matchExtension(name string, info []byte) {
	native := binary.NativeEndian
	switch {
	case name == "comment":
	case (name == "tcp" || name == "udp") && len(info) >= 9:
		r.matchPorts(name, info)
	case name == "multiport" && len(info) >= 48 && len(r.Ports) == 0:
		r.matchMultiport(info)
	case name == "conntrack" && len(info) >= 154:
		flags, inverted, states := native.Uint16(info[146:]), native.Uint16(info[148:]), native.Uint16(info[150:])
		const state, alias = 1 << 0, 1 << 13 // XT_CONNTRACK_STATE; "-m state" is this match under another name
		if flags&^alias != state || inverted != 0 {
			r.Matches = append(r.Matches, name)
			return
		}
		const source, destination, untracked = 1 << 6, 1 << 7, 1 << 8 // XT_CONNTRACK_STATE_SNAT, …_DNAT, …_UNTRACKED
		const newState = 1 << 3
		switch known := states & (source | destination | untracked); {
		case known == destination && states&newState == 0:
			r.Translated = true
		case known != 0 && states&newState == 0:
			r.Matches = append(r.Matches, name)
		default:
			r.matchStates(uint32(states))
		}
	case name == "state" && len(info) >= 4:
		r.matchStates(native.Uint32(info))
	case name == "mark" && len(info) >= 9 && info[8] == 0 && r.Mark == PacketMark{}:
		r.Mark = PacketMark{Value: native.Uint32(info), Mask: native.Uint32(info[4:])}
	default:
		r.Matches = append(r.Matches, hosterr.Clip(name))
	}
}

// matchPorts reads struct xt_tcp and xt_udp, which have the same beginning: two source ports, two destination ports, in
// the machine's byte order. Then xt_tcp has four bytes (option, flag mask, flags, inversions) and xt_udp one
// (inversions).
func (r *PacketRule) matchPorts(name string, info []byte) {
	port := func(at int) uint16 { return binary.NativeEndian.Uint16(info[at:]) }
	rest := info[8:9]
	if name == "tcp" && len(info) >= 12 {
		rest = info[8:12]
	}
	if port(0) != 0 || port(2) != 0xffff || strings.Trim(string(rest), "\x00") != "" {
		r.Matches = append(r.Matches, name)
		return
	}
	if port(4) != 0 || port(6) != 0xffff {
		r.Port = PortRange{port(4), port(6)}
	}
}

// matchMultiport reads struct xt_multiport_v1: which ports (1: destination), how many, 15 ports, for each whether it
// begins a range that the next one ends, and whether the match is inverted.
func (r *PacketRule) matchMultiport(info []byte) {
	const destination, maxPorts = 1, 15
	count := int(info[1])
	if info[0] != destination || info[47] != 0 || count == 0 || count > maxPorts {
		r.Matches = append(r.Matches, "multiport")
		return
	}
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(info[2+2*i:]) }
	for i := 0; i < count; i++ {
		ports := PortRange{port(i), port(i)}
		if info[32+i] != 0 && i+1 < count {
			i++
			ports.To = port(i)
		}
		r.Ports = append(r.Ports, ports)
	}
}

// matchStates adds a set of connection tracking states: 1 is invalid, 2 established, 4 related, 8 new, 64 untracked
// (NF_CT_STATE_BIT). A set with new in it does not restrict packets that begin a connection; an untracked packet
// belongs to no connection.
func (r *PacketRule) matchStates(states uint32) {
	const newState, untracked = 8, 64
	switch {
	case states&newState != 0:
	case states&untracked != 0:
		r.Matches = append(r.Matches, "untracked")
	default:
		r.NotNew = true
	}
}
