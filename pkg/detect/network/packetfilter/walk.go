package packetfilter

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
)

// packetSample is a packet that opens a connection and that the node must let through, with its original addresses,
// before any translation. Zero fields may be anything.
type packetSample struct {
	hook        string
	family      string     // ip or ip6
	in, out     string     // names of devices; empty: not known
	source      netip.Addr // not valid: any
	destination netip.Addr
	protocol    uint8
	port        uint16 // 0: any
	what        string // for people
}

// match says whether a rule applies to a sample.
type match int

const (
	matchNo match = iota
	matchMaybe
	matchYes
)

// and returns the less certain match, since both must hold.
func (a match) and(b match) match { return min(a, b) }

// packetDrop is the rule that certainly drops a sample.
type packetDrop struct {
	chain *packetfilter.PacketChain
	rule  string // as iptables prints it, or the policy
	count uint64 // packets that it has matched
	// translated is whether translated connections were accepted before: those to services and host ports.
	translated bool
}

// packetWalk follows a sample through the chains of one hook. A rule that it does not understand may match or not; a
// drop is certain only if no earlier rule may have accepted the sample.
type packetWalk struct {
	sample packetSample
	chains map[string]*packetfilter.PacketChain
	passed bool // a rule on the way may have accepted it
	steps  int
	drop   *packetDrop

	translated bool // a rule on the way accepts translated packets
}

const (
	maxWalkSteps = 50_000
	maxWalkDepth = 32
)

// findDrop walks a sample through all base chains of its hook. They are independent: an accept ends only its own base
// chain, a drop ends all.
func findDrop(filter packetfilter.PacketFilter, sample packetSample) *packetDrop {
	chains := map[string]*packetfilter.PacketChain{}
	for i := range filter.Chains {
		chains[chainKey(&filter.Chains[i])] = &filter.Chains[i]
	}
	for i := range filter.Chains {
		base := &filter.Chains[i]
		if !sample.meets(base) {
			continue
		}
		walk := packetWalk{sample: sample, chains: chains}
		if ended := walk.chain(base, matchYes, 0); !ended && !walk.passed && base.Policy == "drop" {
			walk.drop = &packetDrop{chain: base, rule: "policy DROP"}
		}
		if walk.drop != nil {
			walk.drop.translated = walk.translated
			return walk.drop
		}
	}
	return nil
}

// meets reports whether a packet reaches a base chain untranslated.
func (s packetSample) meets(base *packetfilter.PacketChain) bool {
	const translation = -100 // NF_IP_PRI_NAT_DST
	return base.Hook == s.hook && (base.Family == s.family || base.Family == "inet") &&
		(s.hook != "prerouting" || base.Priority < translation)
}

func chainKey(c *packetfilter.PacketChain) string {
	return strings.Join([]string{c.Family, c.Table, c.Name}, "\x00")
}

// chain walks one chain, which the sample reaches certainly or maybe, and reports whether it certainly ends there.
func (w *packetWalk) chain(c *packetfilter.PacketChain, reached match, depth int) (ended bool) {
	if depth > maxWalkDepth {
		w.passed = true
		return false
	}
	for _, rule := range c.Rules {
		if w.steps++; w.steps > maxWalkSteps {
			w.passed = true // too many steps: nothing is certain
			return false
		}
		if rule.Translated && rule.Verdict == "accept" {
			w.translated = true
		}
		certain := w.applies(rule) // given that it comes here
		applies := reached.and(certain)
		if applies == matchNo {
			continue
		}
		switch rule.Verdict {
		case "accept":
			w.passed = true
			if applies == matchYes {
				return true
			}
		case "drop", "reject":
			if applies == matchYes && !w.passed {
				w.drop = &packetDrop{chain: c, rule: rule.String(), count: rule.Packets}
				return true
			}
		case "return":
			if certain == matchYes {
				return false
			}
			reached = matchMaybe
		case "jump", "goto":
			if w.jump(c, rule.Target, applies, depth) {
				return true
			}
			if rule.Verdict == "goto" {
				if certain == matchYes {
					return false
				}
				reached = matchMaybe
			}
		default:
			if slices.Contains([]string{"QUEUE", "NFQUEUE", "TPROXY"}, rule.Target) {
				w.passed = true
			}
		}
	}
	return false
}

// jump walks the chain to which a rule of c leads. An unread chain may accept.
func (w *packetWalk) jump(c *packetfilter.PacketChain, name string, reached match, depth int) (ended bool) {
	target := w.chains[chainKey(&packetfilter.PacketChain{Family: c.Family, Table: c.Table, Name: name})]
	if target == nil {
		w.passed = true
		return false
	}
	return w.chain(target, reached, depth+1)
}

// applies returns whether a rule applies to the sample.
func (w *packetWalk) applies(r packetfilter.PacketRule) match {
	s := w.sample
	result := matchYes
	if r.NotNew || r.Translated || r.Family != "" && r.Family != s.family ||
		r.Mark == (packetfilter.PacketMark{Value: 0x4000, Mask: 0x4000}) {
		return matchNo // kube-proxy's mark, for packets to masquerade
	}
	if len(r.Matches) > 0 || r.Mark != (packetfilter.PacketMark{}) {
		result = matchMaybe
	}
	result = result.and(within(r.Source, s.source)).and(within(r.Destination, s.destination))
	result = result.and(throughInterface(r.In, s.in)).and(throughInterface(r.Out, s.out))
	if r.Protocol != 0 && r.Protocol != s.protocol || len(r.Protocols) > 0 &&
		!slices.Contains(r.Protocols, s.protocol) {
		return matchNo
	}
	if r.Port != (packetfilter.PortRange{}) {
		result = result.and(toPort([]packetfilter.PortRange{r.Port}, s.port))
	}
	return result.and(toPort(r.Ports, s.port))
}

// toPort returns whether a port, 0 for any, is in one of some ranges; none: any.
func toPort(ranges []packetfilter.PortRange, port uint16) match {
	switch {
	case len(ranges) == 0 || slices.ContainsFunc(ranges, func(r packetfilter.PortRange) bool {
		return port != 0 && r.From <= port && port <= r.To
	}):
		return matchYes
	case port == 0:
		return matchMaybe
	}
	return matchNo
}

// within returns whether an address is in a prefix.
func within(prefix netip.Prefix, address netip.Addr) match {
	switch {
	case !prefix.IsValid() || prefix.Bits() == 0:
		return matchYes
	case !address.IsValid():
		return matchMaybe
	case prefix.Contains(address):
		return matchYes
	}
	return matchNo
}

// throughInterface returns whether a packet of pods or of the cluster goes through an interface; if the known one is
// empty, it may be any but the loopback device and the bridges of Docker and libvirt, whose containers are no pods.
func throughInterface(name, known string) match {
	begin, open := strings.CutSuffix(name, "+")
	switch {
	case name == "":
		return matchYes
	case known != "" && (name == known || open && strings.HasPrefix(known, begin)):
		return matchYes
	case known != "" || name == "lo" || isOtherBridge(name):
		return matchNo
	}
	return matchMaybe
}

// isOtherBridge recognizes docker0, Docker's own networks (br- and 12 hexadecimal digits) and libvirt's (virbr0).
func isOtherBridge(name string) bool {
	if network, ok := strings.CutPrefix(name, "br-"); ok {
		return len(network) == 12 && strings.Trim(network, "0123456789abcdef") == ""
	}
	return strings.HasPrefix(name, "docker") || strings.HasPrefix(name, "virbr")
}
