// Package packetfilter reads the rules of nf_tables that decide whether packets pass. It writes none, loads no module,
// runs no program, and refuses rulesets beyond its bounds. An expression that it does not understand stays in the rule
// by name, so that no rule seems to apply to more packets than it does.
//
// It has its own decoder over github.com/vishvananda/netlink. github.com/google/nftables v0.3.0 was tried:
//
//   - It leaves out expressions that it does not know (rt, socket, osf, tunnel …) without an error. The rule
//     "socket transparent 1 drop" reads as a comparison of whatever the register held before, and drop.
//   - It does not notice that a dump was interrupted by a change (NLM_F_DUMP_INTR), so half of a change is believed.
//   - It returns a chain as a whole: 50,000 rules take 118 MB before the first can be counted, where this package stops
//     at its bound (19,000 rules: 34 MB here with all of the agent's code, 44 MB there; both take about a second).
//   - Matches of iptables (multiport, mark, state) stay bytes there too, and the binary grows by 258 kB.
package packetfilter

import (
	"fmt"
	"net/netip"
	"strings"
)

// PacketChain is one chain of nf_tables, as written by iptables-nft, firewalld and nft itself.
type PacketChain struct {
	Family string `json:"family"` // ip, ip6, or inet for both
	Table  string `json:"table"`
	Name   string `json:"name"`
	// prerouting, input, forward, output; empty for a chain reached only by jumps
	Hook     string       `json:"hook,omitempty"`
	Priority int          `json:"priority,omitempty"` // of a base chain: lower comes first
	Policy   string       `json:"policy,omitempty"`   // of a base chain: accept or drop
	Rules    []PacketRule `json:"rules,omitempty"`
}

// PacketRule is one rule, as far as it is understood. Matches names the restrictions that are not.
type PacketRule struct {
	// accept, drop, reject, return, jump, goto; empty: continues, or Target does something else
	Verdict     string       `json:"verdict,omitempty"`
	Target      string       `json:"target,omitempty"` // the chain of jump and goto, or the name of another target
	Source      netip.Prefix `json:"source,omitzero"`
	Destination netip.Prefix `json:"destination,omitzero"`
	Family      string       `json:"family,omitempty"` // ip or ip6: only that one, in a table of both
	In          string       `json:"in,omitempty"`     // name of the interface; "cali+" means all names with that prefix
	Out         string       `json:"out,omitempty"`
	Protocol    uint8        `json:"protocol,omitempty"`   // 6 TCP, 17 UDP
	Protocols   []uint8      `json:"protocols,omitempty"`  // one of these
	Port        PortRange    `json:"port,omitzero"`        // destination
	Ports       []PortRange  `json:"ports,omitempty"`      // one of these
	NotNew      bool         `json:"notNew,omitempty"`     // only packets that do not begin a connection
	Translated  bool         `json:"translated,omitempty"` // only connections with a translated destination (DNAT)
	Mark        PacketMark   `json:"mark,omitzero"`
	Matches     []string     `json:"matches,omitempty"`
	Packets     uint64       `json:"packets,omitempty"` // matched so far, if the rule counts
}

// PortRange is from and to, inclusive; zero: any.
type PortRange struct {
	From uint16 `json:"from"`
	To   uint16 `json:"to"`
}

// String formats the range as iptables does.
func (p PortRange) String() string { return fmt.Sprintf("%d:%d", p.From, p.To) }

// PacketMark is a mark that a packet must carry; zero: any.
type PacketMark struct {
	Value uint32 `json:"value"`
	Mask  uint32 `json:"mask"`
}

// String formats the rule as iptables does, for people.
func (r PacketRule) String() string {
	var parts []string
	add := func(given bool, format string, args ...any) {
		if given {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(r.Family != "", "-m %s", r.Family)
	add(r.Source.IsValid(), "-s %s", r.Source)
	add(r.Destination.IsValid(), "-d %s", r.Destination)
	add(r.In != "", "-i %s", r.In)
	add(r.Out != "", "-o %s", r.Out)
	add(r.Protocol != 0, "-p %d", r.Protocol)
	add(len(r.Protocols) > 0, "-p %s", joinFirst(r.Protocols))
	add(r.Port != PortRange{}, "--dport %s", r.Port)
	add(len(r.Ports) > 0, "--dports %s", joinFirst(r.Ports))
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
	return strings.ToValidUTF8(strings.Join(parts, " "), "?")
}

// joinFirst lists the first 16 items.
func joinFirst[T any](list []T) string {
	var parts []string
	for _, item := range list[:min(len(list), 16)] {
		parts = append(parts, fmt.Sprint(item))
	}
	return strings.Join(parts, ",")
}

// The bounds of the packet filter.
const (
	maxPacketChains = 100_000 // kube-proxy in its nftables mode creates some for each service
	maxPacketRead   = 1000    // chains whose rules are read
	maxPacketRules  = 20_000
	maxPacketSets   = 1000 // beyond, a rule with a lookup is not understood
)

// PacketFilter is the packet filter of this network namespace.
type PacketFilter struct {
	Chains []PacketChain `json:"chains"`
	// tables of iptables-legacy, such as "ip filter": their rules are not read
	Legacy []string `json:"legacy,omitempty"`
}

// packetHooks are the names of the supported hooks by their numbers.
func packetHooks() []string { return []string{"prerouting", "input", "forward", "output"} }
