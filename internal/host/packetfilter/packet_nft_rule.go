package packetfilter

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
)

// nftLoad is what a register holds: what the expressions before it have loaded.
type nftLoad struct {
	// iif, oif, index, protocol, family, mark, state, status, source, destination, port; else not understood
	what string
	size int    // bytes loaded
	full int    // bytes of the whole address
	mask []byte // what was laid over it, nil: nothing
}

// nftRule gathers a rule from its expressions.
type nftRule struct {
	rule      PacketRule
	family    uint8 // of the table
	registers map[uint32]nftLoad
	lookups   []nftLookup
}

// ParseNFTRule parses one NFT_MSG_NEWRULE and tells the chain that it is in. It reads sets that it looks something up
// in.
func ParseNFTRule(message []byte, set func(name string) (NftSet, error)) (rule PacketRule, chain string, err error) {
	if len(message) < nfHeader {
		return PacketRule{}, "", errors.New("short message")
	}
	attributes, err := nftAttributes(message[nfHeader:])
	if err != nil {
		return PacketRule{}, "", err
	}
	expressions, err := netlink.NetlinkAttributes(attributes[4])
	if err != nil {
		return PacketRule{}, "", err
	}
	r := nftRule{family: message[0], registers: map[uint32]nftLoad{}}
	for _, e := range expressions {
		fields, err := nftAttributes(e.Value)
		if err != nil {
			return PacketRule{}, "", err
		}
		data, err := nftAttributes(fields[2])
		if err != nil {
			return PacketRule{}, "", err
		}
		r.add(cString(fields[1]), data)
	}
	err = r.resolve(set)
	return r.rule, cString(attributes[2]), err
}

func be32(data []byte) uint32 {
	if len(data) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(data)
}

// nested returns an attribute within an attribute.
func nested(data []byte, kind uint16) []byte {
	fields, err := nftAttributes(data)
	if err != nil {
		return nil
	}
	return fields[kind]
}

// add takes one expression. What is not understood limits the rule in a way that is not known.
func (r *nftRule) add(name string, data map[uint16][]byte) {
	switch name {
	case "meta":
		r.load(data[1], nftMeta(be32(data[2])))
	case "ct":
		// NFT_CT_STATE, NFT_CT_STATUS
		r.load(data[1], nftLoad{what: map[uint32]string{0: "state", 2: "status"}[be32(data[2])], size: 4})
	case "payload":
		r.loadPayload(data)
	case "bitwise":
		l := r.registers[be32(data[1])]
		l.mask = nested(data[4], 1)
		if strings.Trim(string(nested(data[5], 1)), "\x00") != "" || l.mask == nil {
			l.what = ""
		}
		r.load(data[2], l)
	case "cmp":
		r.compare(r.registers[be32(data[1])], be32(data[2]), nested(data[3], 1))
	case "range":
		r.inRange(r.registers[be32(data[1])], be32(data[2]), nested(data[3], 1), nested(data[4], 1))
	case "lookup":
		r.lookUp(data)
	case "counter":
		if packets := data[2]; len(packets) >= 8 {
			r.rule.Packets = binary.BigEndian.Uint64(packets)
		}
	case "log", "notrack":
	case "immediate":
		if verdict := nested(data[2], 2); verdict != nil {
			r.verdict(verdict)
		}
	case "reject":
		r.rule.Verdict = "reject"
	case "match":
		r.rule.matchExtension(cString(data[1]), data[3])
	case "target":
		if target := cString(data[1]); target == "REJECT" {
			r.rule.Verdict = "reject"
		} else {
			r.rule.Target = hosterr.Clip(target)
		}
	case "queue": // user space decides
		r.rule.Target = "QUEUE"
	default:
		r.unknown(hosterr.Clip(name))
		clear(r.registers) // one of which it may have loaded
	}
}

// nftMeta knows what is asked for most of what there is beside the packet (enum nft_meta_keys).
func nftMeta(key uint32) nftLoad {
	switch key {
	case 3:
		return nftLoad{what: "mark", size: 4}
	case 4:
		return nftLoad{what: "index", size: 4}
	case 6:
		return nftLoad{what: "iif"}
	case 7:
		return nftLoad{what: "oif"}
	case 15:
		return nftLoad{what: "family", size: 1}
	case 16:
		return nftLoad{what: "protocol", size: 1}
	}
	return nftLoad{}
}

// verdict takes a verdict: a code and, for jump and goto, a chain.
func (r *nftRule) verdict(data []byte) {
	fields, err := nftAttributes(data)
	if err != nil {
		r.unknown("verdict")
		return
	}
	switch code := int32(be32(fields[1])); { //nolint:gosec // the kernel's int
	case code >= 0 && code&0xff == 3: // NF_QUEUE, with the number of the queue
		r.rule.Target = "QUEUE"
	case code == 0:
		r.rule.Verdict = "drop"
	case code == 1:
		r.rule.Verdict = "accept"
	case code == -3:
		r.rule.Verdict, r.rule.Target = "jump", cString(fields[2])
	case code == -4:
		r.rule.Verdict, r.rule.Target = "goto", cString(fields[2])
	case code == -5:
		r.rule.Verdict = "return"
	default: // continue, break
	}
}

func (r *nftRule) unknown(what string) {
	if len(r.rule.Matches) < 16 && !slices.Contains(r.rule.Matches, what) {
		r.rule.Matches = append(r.rule.Matches, what)
	}
}

func (r *nftRule) load(register []byte, l nftLoad) {
	if register != nil { // without: the expression sets something
		r.registers[be32(register)] = l
	}
}

// loadPayload knows the fields of the IP header (base 1) that are asked for most, and the destination port (base 2).
func (r *nftRule) loadPayload(data map[uint16][]byte) {
	base, offset, size := be32(data[2]), be32(data[3]), int(be32(data[4]))
	l := nftLoad{size: size}
	source, protocol := uint32(12), uint32(9)
	l.full = 4
	if r.isIPv6() {
		source, protocol, l.full = 8, 6, 16
	}
	switch known := r.family != nfprotoInet || r.rule.Family != ""; {
	case base == 1 && !known:
	case base == 1 && offset == source && size <= l.full:
		l.what = "source"
	case base == 1 && offset == source+uint32(l.full) && size <= l.full: //nolint:gosec // 4 or 16
		l.what = "destination"
	case base == 1 && offset == protocol && size == 1:
		l.what = "protocol"
	case base == 2 && offset == 2 && size == 2:
		l.what = "port"
	}
	r.load(data[1], l)
}

func (r *nftRule) isIPv6() bool { return r.family == unix.AF_INET6 || r.rule.Family == "ip6" }

// compare takes a comparison of what was loaded with a value; operation 0 is equal, 1 not equal.
func (r *nftRule) compare(l nftLoad, operation uint32, value []byte) {
	const equal, unequal = 0, 1
	if l.what == "state" && operation == unequal && len(l.mask) == 4 && be32(value) == 0 {
		r.rule.matchStates(binary.NativeEndian.Uint32(l.mask)) // "some of these states"
		return
	}
	const translated = 1 << 5 // IPS_DST_NAT
	if l.what == "status" && operation == unequal && len(l.mask) == 4 && be32(value) == 0 &&
		binary.NativeEndian.Uint32(l.mask) == translated {
		r.rule.Translated = true
		return
	}
	if operation != equal || !r.equal(l, value) {
		r.unknown("nft " + l.what)
	}
}

// inRange takes a comparison with a range; operation 0 is within.
func (r *nftRule) inRange(l nftLoad, operation uint32, from, to []byte) {
	if l.what != "port" || l.mask != nil || operation != 0 || len(from) != 2 || len(to) != 2 {
		r.unknown("nft range " + l.what)
		return
	}
	r.rule.Port = PortRange{binary.BigEndian.Uint16(from), binary.BigEndian.Uint16(to)}
}

// equal takes a comparison for equality; false where it is not understood.
func (r *nftRule) equal(l nftLoad, value []byte) bool {
	whole := l.mask == nil
	switch {
	case l.what == "iif" && whole && r.rule.In == "":
		r.rule.In = nftInterface(value)
	case l.what == "oif" && whole && r.rule.Out == "":
		r.rule.Out = nftInterface(value)
	case l.what == "protocol" && whole && len(value) == 1 && r.rule.Protocol == 0:
		r.rule.Protocol = value[0]
	case l.what == "index" && whole && len(value) == 4 && binary.NativeEndian.Uint32(value) == 1 && r.rule.In == "":
		// of the loopback device, everywhere
		r.rule.In = "lo"
	case l.what == "family" && whole && len(value) == 1 && value[0] == unix.AF_INET && r.rule.Family != "ip6":
		r.rule.Family = "ip"
	case l.what == "family" && whole && len(value) == 1 && value[0] == unix.AF_INET6 && r.rule.Family != "ip":
		r.rule.Family = "ip6"
	case l.what == "port" && whole && len(value) == 2:
		port := binary.BigEndian.Uint16(value)
		r.rule.Port = PortRange{port, port}
	case l.what == "mark" && len(value) == 4 && (whole || len(l.mask) == 4):
		r.rule.Mark = PacketMark{Value: binary.NativeEndian.Uint32(value), Mask: ^uint32(0)}
		if !whole {
			r.rule.Mark.Mask = binary.NativeEndian.Uint32(l.mask)
		}
	case l.what == "source" && !r.rule.Source.IsValid():
		p, ok := nftPrefix(l, value)
		r.rule.Source = p
		return ok
	case l.what == "destination" && !r.rule.Destination.IsValid():
		p, ok := nftPrefix(l, value)
		r.rule.Destination = p
		return ok
	default:
		return false
	}
	return true
}

// nftInterface reads a name: all 16 bytes, or the name with its NUL, where the whole name is meant, else its beginning.
func nftInterface(value []byte) string {
	return interfaceName(value, strings.HasSuffix(string(value), "\x00"))
}

// nftPrefix makes a prefix of an address that was compared: all of it, under a mask, or its first bytes only.
func nftPrefix(l nftLoad, value []byte) (p netip.Prefix, ok bool) {
	if l.size == 0 || l.size > l.full || len(value) != l.size {
		return p, false
	}
	address, mask := make([]byte, l.full), make([]byte, l.full)
	copy(address, value)
	for i := range l.size {
		mask[i] = 0xff
	}
	if l.mask != nil && copy(mask, l.mask) != l.size {
		return p, false
	}
	return prefix(address, mask)
}
