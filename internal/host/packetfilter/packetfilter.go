package packetfilter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// PacketChain is one chain of nf_tables, which iptables-nft, firewalld and nft itself write.
type PacketChain struct {
	Family string `json:"family"` // ip, ip6, or inet for both
	Table  string `json:"table"`
	Name   string `json:"name"`
	// prerouting, input, forward, output; empty for a chain that others jump to
	Hook     string       `json:"hook,omitempty"`
	Priority int          `json:"priority,omitempty"` // of a base chain: lower comes first
	Policy   string       `json:"policy,omitempty"`   // of a base chain: accept or drop
	Rules    []PacketRule `json:"rules,omitempty"`
}

// PacketRule is one rule as far as it is understood. What limits it and is not understood is named in Matches.
type PacketRule struct {
	// accept, drop, reject, return, jump, goto; empty: goes on, or Target does something else
	Verdict     string       `json:"verdict,omitempty"`
	Target      string       `json:"target,omitempty"` // the chain of jump and goto, or the name of another target
	Source      netip.Prefix `json:"source,omitzero"`
	Destination netip.Prefix `json:"destination,omitzero"`
	Family      string       `json:"family,omitempty"` // ip or ip6: only those, in a table of both
	In          string       `json:"in,omitempty"`     // name of the interface; "cali+" stands for all that begin so
	Out         string       `json:"out,omitempty"`
	Protocol    uint8        `json:"protocol,omitempty"`   // 6 TCP, 17 UDP
	Protocols   []uint8      `json:"protocols,omitempty"`  // one of these
	Port        PortRange    `json:"port,omitzero"`        // destination
	Ports       []PortRange  `json:"ports,omitempty"`      // one of these
	NotNew      bool         `json:"notNew,omitempty"`     // only packets that do not begin a connection
	Translated  bool         `json:"translated,omitempty"` // only connections whose destination was translated (DNAT)
	Mark        PacketMark   `json:"mark,omitzero"`
	Matches     []string     `json:"matches,omitempty"`
	Packets     uint64       `json:"packets,omitempty"` // that it has met so far, where it counts
}

// PortRange is from and to, inclusive; zero: any.
type PortRange struct {
	From uint16 `json:"from"`
	To   uint16 `json:"to"`
}

// String words the range as iptables does.
func (p PortRange) String() string { return fmt.Sprintf("%d:%d", p.From, p.To) }

// PacketMark is a mark that a packet must carry; zero: any.
type PacketMark struct {
	Value uint32 `json:"value"`
	Mask  uint32 `json:"mask"`
}

// String words the rule as iptables does, for people.
func (r PacketRule) String() string {
	var words []string
	add := func(given bool, format string, args ...any) {
		if given {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(r.Family != "", "-m %s", r.Family)
	add(r.Source.IsValid(), "-s %s", r.Source)
	add(r.Destination.IsValid(), "-d %s", r.Destination)
	add(r.In != "", "-i %s", r.In)
	add(r.Out != "", "-o %s", r.Out)
	add(r.Protocol != 0, "-p %d", r.Protocol)
	add(len(r.Protocols) > 0, "-p %s", commas(r.Protocols))
	add(r.Port != PortRange{}, "--dport %s", r.Port)
	add(len(r.Ports) > 0, "--dports %s", commas(r.Ports))
	add(r.NotNew, "not new")
	add(r.Translated, "--ctstate DNAT")
	add(r.Mark != PacketMark{}, "--mark %#x/%#x", r.Mark.Value, r.Mark.Mask)
	for _, match := range r.Matches {
		add(true, "-m %s", match)
	}
	verdict := strings.ToUpper(r.Verdict)
	if verdict == "" || verdict == "JUMP" || verdict == "GOTO" {
		verdict = r.Target
	}
	add(verdict != "", "-j %s", verdict)
	return strings.ToValidUTF8(strings.Join(words, " "), "?")
}

// commas lists a few of many.
func commas[T any](list []T) string {
	var words []string
	for _, item := range list[:min(len(list), 16)] {
		words = append(words, fmt.Sprint(item))
	}
	return strings.Join(words, ",")
}

// The bounds of what is read of the packet filter.
const (
	maxPacketChains = 100_000 // kube-proxy in its nftables mode makes some for each service
	maxPacketRead   = 1000    // chains whose rules are read
	maxPacketRules  = 20_000
	maxPacketSets   = 1000 // beyond, a rule that looks something up is not understood
)

// PacketFilter is the packet filter of this network namespace.
type PacketFilter struct {
	Chains []PacketChain `json:"chains"`
	// tables of iptables-legacy, such as "ip filter": their rules are not read
	Legacy []string `json:"legacy,omitempty"`
}

// packetHooks are the names of the hooks by their numbers, as far as they are looked at.
func packetHooks() []string { return []string{"prerouting", "input", "forward", "output"} }

// matchExtension adds to the rule what a match of iptables (xtables) says; both backends carry them in the kernel's own
// binary form. Sizes and offsets are those of linux/netfilter/xt_*.h.
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
		const fresh = 1 << 3
		switch known := states & (source | destination | untracked); {
		case known == destination && states&fresh == 0:
			r.Translated = true
		case known != 0 && states&fresh == 0:
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

// matchPorts reads struct xt_tcp and xt_udp, which begin alike: two source ports, two destination ports, in the
// machine's byte order. For xt_tcp four bytes follow (option, flag mask, flags, inversions), for xt_udp one
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
// begins a range that the next one ends, and whether all is inverted.
func (r *PacketRule) matchMultiport(info []byte) {
	const destination, most = 1, 15
	count := int(info[1])
	if info[0] != destination || info[47] != 0 || count == 0 || count > most {
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

// matchStates takes the set of states of connection tracking: 1 is invalid, 2 established, 4 related, 8 new, 64
// untracked (NF_CT_STATE_BIT). A set with new in it does not limit what begins a connection; one that is not tracked
// has no beginning.
func (r *PacketRule) matchStates(states uint32) {
	const fresh, untracked = 8, 64
	switch {
	case states&fresh != 0:
	case states&untracked != 0:
		r.Matches = append(r.Matches, "untracked")
	default:
		r.NotNew = true
	}
}

func (c *PacketChain) key() string { return c.Family + "\x00" + c.Table + "\x00" + c.Name }

// readNFTRules dumps the rules of one chain, and counts the sets that it has read for them.
func (c *PacketChain) readNFTRules(most int, sets *int) error {
	readSet := func(name string) (NftSet, error) {
		if *sets++; *sets > maxPacketSets {
			return NftSet{}, errSetTooLarge
		}
		return c.readNFTSet(name)
	}
	request := nl.NewNetlinkRequest(nftSubsystem|nftGetRule, unix.NLM_F_DUMP)
	request.AddData(nfHead{nftFamily(c.Family)})
	request.AddData(nl.NewRtAttr(1, append([]byte(c.Table), 0)))
	request.AddData(nl.NewRtAttr(2, append([]byte(c.Name), 0)))
	var failure error
	err := request.ExecuteIter(unix.NETLINK_NETFILTER, nftSubsystem|nftNewRule, func(message []byte) bool {
		if len(c.Rules) >= most {
			failure = fmt.Errorf("more than %d rules", maxPacketRules)
			return false
		}
		rule, chain, err := ParseNFTRule(message, readSet)
		if err != nil {
			failure = err
			return false
		}
		if chain == c.Name { // older kernels do not know the selection
			c.Rules = append(c.Rules, rule)
		}
		return true
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil // deleted meanwhile
	}
	return errors.Join(failure, err)
}

func cString(data []byte) string {
	text, _, _ := bytes.Cut(data, []byte{0})
	return strings.ToValidUTF8(string(text), "?")
}

// readNFTSet reads a set of the chain's table. ENOENT and errSetTooLarge leave open what is in it.
func (c *PacketChain) readNFTSet(name string) (NftSet, error) {
	about := func(command, flags int) *nl.NetlinkRequest {
		request := nl.NewNetlinkRequest(nftSubsystem|command, flags)
		request.AddData(nfHead{nftFamily(c.Family)})
		request.AddData(nl.NewRtAttr(1, append([]byte(c.Table), 0)))
		request.AddData(nl.NewRtAttr(2, append([]byte(name), 0)))
		return request
	}
	answers, err := about(nftGetSet, 0).Execute(unix.NETLINK_NETFILTER, nftSubsystem|nftNewSet)
	if err != nil || len(answers) != 1 || len(answers[0]) < nfHeader {
		return NftSet{}, errors.Join(err, fmt.Errorf("set %s: %d answers", name, len(answers)))
	}
	head, err := nftAttributes(answers[0][nfHeader:])
	if err != nil {
		return NftSet{}, err
	}
	var elements []nftElement
	var failure error
	err = about(nftGetElements, unix.NLM_F_DUMP).ExecuteIter(unix.NETLINK_NETFILTER, nftSubsystem|nftNewElements,
		func(message []byte) bool {
			more, err := ParseNFTElements(message)
			elements = append(elements, more...)
			if err == nil && len(elements) > maxSetElements {
				err = errSetTooLarge
			}
			failure = err
			return err == nil
		})
	if failure != nil || err != nil {
		return NftSet{}, fmt.Errorf("set %s: %w", name, errors.Join(failure, err))
	}
	if be32(head[3])&nftSetIntervals != 0 {
		elements = NftIntervals(elements)
	}
	return NftSet{elements}, nil
}
