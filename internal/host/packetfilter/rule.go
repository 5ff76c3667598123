package packetfilter

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
)

// loaded is the content of a register: the value that earlier expressions loaded.
type loaded struct {
	// iif, oif, index, protocol, family, mark, state, status, source, destination, port; else not understood
	what string
	size int    // bytes loaded
	full int    // bytes of the whole address
	mask []byte // mask applied to it, or nil
}

// ruleParser builds a rule from its expressions.
type ruleParser struct {
	rule      PacketRule
	family    uint8 // of the table
	registers map[uint32]loaded
	lookups   []lookup
}

// parseRule parses one NFT_MSG_NEWRULE and returns the rule and its chain. It reads the sets in which the rule looks
// something up.
func parseRule(message []byte, readSet func(name string) ([]element, error)) (rule PacketRule, chain string,
	err error) {
	attributes, err := body(message)
	if err != nil {
		return PacketRule{}, "", err
	}
	expressions, err := netlink.Attributes(attributes.Get(unix.NFTA_RULE_EXPRESSIONS))
	if err != nil {
		return PacketRule{}, "", err
	}
	r := ruleParser{family: message[0], registers: map[uint32]loaded{}}
	for _, e := range expressions {
		fields, err := netlink.Attributes(e.Value)
		if err != nil {
			return PacketRule{}, "", err
		}
		data, err := netlink.Attributes(fields.Get(unix.NFTA_EXPR_DATA))
		if err != nil {
			return PacketRule{}, "", err
		}
		r.add(cString(fields.Get(unix.NFTA_EXPR_NAME)), data)
	}
	err = r.resolve(readSet)
	return r.rule, cString(attributes.Get(unix.NFTA_RULE_CHAIN)), err
}

// add adds one expression. An unknown one restricts the rule in an unknown way.
func (r *ruleParser) add(name string, data netlink.AttributeList) {
	switch name {
	case "meta":
		r.load(data.Get(unix.NFTA_META_DREG), metaValue(be32(data.Get(unix.NFTA_META_KEY))))
	case "ct":
		what := map[uint32]string{unix.NFT_CT_STATE: "state", unix.NFT_CT_STATUS: "status"}
		r.load(data.Get(unix.NFTA_CT_DREG), loaded{what: what[be32(data.Get(unix.NFTA_CT_KEY))], size: 4})
	case "payload":
		r.loadPayload(data)
	case "bitwise":
		l := r.register(data.Get(unix.NFTA_BITWISE_SREG))
		l.mask = value(data.Get(unix.NFTA_BITWISE_MASK))
		if strings.Trim(string(value(data.Get(unix.NFTA_BITWISE_XOR))), "\x00") != "" || l.mask == nil {
			l.what = ""
		}
		r.load(data.Get(unix.NFTA_BITWISE_DREG), l)
	case "cmp":
		r.compare(r.register(data.Get(unix.NFTA_CMP_SREG)), be32(data.Get(unix.NFTA_CMP_OP)),
			value(data.Get(unix.NFTA_CMP_DATA)))
	case "range":
		r.inRange(r.register(data.Get(unix.NFTA_RANGE_SREG)), be32(data.Get(unix.NFTA_RANGE_OP)),
			value(data.Get(unix.NFTA_RANGE_FROM_DATA)), value(data.Get(unix.NFTA_RANGE_TO_DATA)))
	case "lookup":
		r.lookUp(data)
	case "counter":
		if packets := data.Get(unix.NFTA_COUNTER_PACKETS); len(packets) >= 8 {
			r.rule.Packets = binary.BigEndian.Uint64(packets)
		}
	case "log", "notrack":
	case "immediate":
		if verdict := nested(data.Get(unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT); verdict != nil {
			r.verdict(verdict)
		}
	case "reject":
		r.rule.Verdict = "reject"
	case "match":
		r.rule.matchExtension(cString(data.Get(unix.NFTA_MATCH_NAME)), data.Get(unix.NFTA_MATCH_INFO))
	case "target":
		if target := cString(data.Get(unix.NFTA_TARGET_NAME)); target == "REJECT" {
			r.rule.Verdict = "reject"
		} else {
			r.rule.Target = hosterr.Clip(target)
		}
	case "queue": // user space decides
		r.rule.Target = "QUEUE"
	default:
		r.unknown(hosterr.Clip(name))
		clear(r.registers) // it may have loaded any of them
	}
}

// metaValue returns the values besides the packet that most rules load.
func metaValue(key uint32) loaded {
	switch key {
	case unix.NFT_META_MARK:
		return loaded{what: "mark", size: 4}
	case unix.NFT_META_IIF:
		return loaded{what: "index", size: 4}
	case unix.NFT_META_IIFNAME:
		return loaded{what: "iif"}
	case unix.NFT_META_OIFNAME:
		return loaded{what: "oif"}
	case unix.NFT_META_NFPROTO:
		return loaded{what: "family", size: 1}
	case unix.NFT_META_L4PROTO:
		return loaded{what: "protocol", size: 1}
	}
	return loaded{}
}

// verdict adds a verdict: a code and, for jump and goto, a chain.
func (r *ruleParser) verdict(data []byte) {
	fields, err := netlink.Attributes(data)
	if err != nil {
		r.unknown("verdict")
		return
	}
	chain := cString(fields.Get(unix.NFTA_VERDICT_CHAIN))
	switch code := int32(be32(fields.Get(unix.NFTA_VERDICT_CODE))); { //nolint:gosec // the kernel's int
	case code >= 0 && code&0xff == 3: // NF_QUEUE, with the number of the queue
		r.rule.Target = "QUEUE"
	case code == 0: // NF_DROP
		r.rule.Verdict = "drop"
	case code == 1: // NF_ACCEPT
		r.rule.Verdict = "accept"
	case code == unix.NFT_JUMP:
		r.rule.Verdict, r.rule.Target = "jump", chain
	case code == unix.NFT_GOTO:
		r.rule.Verdict, r.rule.Target = "goto", chain
	case code == unix.NFT_RETURN:
		r.rule.Verdict = "return"
	default: // continue, break
	}
}

func (r *ruleParser) unknown(what string) {
	if len(r.rule.Matches) < 16 && !slices.Contains(r.rule.Matches, what) {
		r.rule.Matches = append(r.rule.Matches, what)
	}
}

// value returns the value of an attribute that may be a value or a verdict.
func value(data []byte) []byte { return nested(data, unix.NFTA_DATA_VALUE) }

func (r *ruleParser) register(number []byte) loaded { return r.registers[be32(number)] }

func (r *ruleParser) load(register []byte, l loaded) {
	if register != nil { // otherwise the expression sets something
		r.registers[be32(register)] = l
	}
}

// loadPayload recognizes the fields of the IP header that most rules load, and the destination port.
func (r *ruleParser) loadPayload(data netlink.AttributeList) {
	base, offset := be32(data.Get(unix.NFTA_PAYLOAD_BASE)), be32(data.Get(unix.NFTA_PAYLOAD_OFFSET))
	size := int(be32(data.Get(unix.NFTA_PAYLOAD_LEN)))
	l := loaded{size: size}
	source, protocol := uint32(12), uint32(9)
	l.full = 4
	if r.isIPv6() {
		source, protocol, l.full = 8, 6, 16
	}
	const network, transport = unix.NFT_PAYLOAD_NETWORK_HEADER, unix.NFT_PAYLOAD_TRANSPORT_HEADER
	switch known := r.family != unix.NFPROTO_INET || r.rule.Family != ""; {
	case base == network && !known:
	case base == network && offset == source && size <= l.full:
		l.what = "source"
	case base == network && offset == source+uint32(l.full) && size <= l.full: //nolint:gosec // 4 or 16
		l.what = "destination"
	case base == network && offset == protocol && size == 1:
		l.what = "protocol"
	case base == transport && offset == 2 && size == 2:
		l.what = "port"
	}
	r.load(data.Get(unix.NFTA_PAYLOAD_DREG), l)
}

func (r *ruleParser) isIPv6() bool { return r.family == unix.AF_INET6 || r.rule.Family == "ip6" }

// compare adds a comparison of the loaded value with another value.
func (r *ruleParser) compare(l loaded, operation uint32, value []byte) {
	const equal, unequal = unix.NFT_CMP_EQ, unix.NFT_CMP_NEQ
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

// inRange adds a comparison with a range.
func (r *ruleParser) inRange(l loaded, operation uint32, from, to []byte) {
	if l.what != "port" || l.mask != nil || operation != unix.NFT_RANGE_EQ || len(from) != 2 || len(to) != 2 {
		r.unknown("nft range " + l.what)
		return
	}
	r.rule.Port = PortRange{binary.BigEndian.Uint16(from), binary.BigEndian.Uint16(to)}
}

// equal adds a comparison for equality; false if it is not understood.
func (r *ruleParser) equal(l loaded, value []byte) bool {
	whole := l.mask == nil
	switch {
	case l.what == "iif" && whole && r.rule.In == "":
		r.rule.In = interfaceName(value)
	case l.what == "oif" && whole && r.rule.Out == "":
		r.rule.Out = interfaceName(value)
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
		p, ok := addressPrefix(l, value)
		r.rule.Source = p
		return ok
	case l.what == "destination" && !r.rule.Destination.IsValid():
		p, ok := addressPrefix(l, value)
		r.rule.Destination = p
		return ok
	default:
		return false
	}
	return true
}

// interfaceName reads a name: with a NUL at its end it is complete, else a prefix, to which it adds "+".
func interfaceName(value []byte) string {
	name := strings.TrimRight(string(value), "\x00")
	if name != "" && len(name) == len(value) {
		name = strings.TrimSuffix(name, "+") + "+"
	}
	return strings.ToValidUTF8(name, "?")
}

// addressPrefix returns the prefix that an address is compared with: all of it, under a mask, or only its first bytes.
func addressPrefix(l loaded, value []byte) (p netip.Prefix, ok bool) {
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
	ones, bits := net.IPMask(mask).Size() // 0, 0 if ones follow a zero
	ip, ok := netip.AddrFromSlice(address)
	if !ok || bits == 0 {
		return p, false
	}
	return netip.PrefixFrom(ip, ones), true
}
