package detect

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// packetSample is a packet that begins a connection and that the node must let through. What is not said of it may be
// anything.
type packetSample struct {
	hook        string
	source      netip.Addr // not valid: anybody
	destination netip.Addr
	protocol    uint8
	port        uint16 // 0: any
	what        string // for people
}

// answer is whether a rule applies to a sample.
type answer int

const (
	no answer = iota
	maybe
	yes
)

// least is the least certain of two answers: both must hold.
func (a answer) and(b answer) answer { return min(a, b) }

// packetDrop is the rule that certainly drops a sample.
type packetDrop struct {
	chain *host.PacketChain
	rule  string // as iptables words it, or the policy
	count uint64 // packets that it has met
}

// packetWalk follows a sample through the chains of one hook. What is not understood may be true or not; a drop is certain
// only where nothing before it may have let the sample go.
type packetWalk struct {
	sample packetSample
	chains map[string]*host.PacketChain
	passed bool // a rule on the way may have accepted it
	steps  int
	drop   *packetDrop
}

const (
	maxWalkSteps = 50_000
	maxWalkDepth = 32
)

// findDrop walks a sample through all base chains of its hook. They are independent of each other: one that accepts ends
// itself only, one that drops ends all.
func findDrop(filter host.PacketFilter, sample packetSample) *packetDrop {
	chains := map[string]*host.PacketChain{}
	for i := range filter.Chains {
		chains[chainKey(&filter.Chains[i])] = &filter.Chains[i]
	}
	for i := range filter.Chains {
		base := &filter.Chains[i]
		if base.Hook != sample.hook {
			continue
		}
		walk := packetWalk{sample: sample, chains: chains}
		if ended := walk.chain(base, yes, 0); !ended && !walk.passed && base.Policy == "drop" {
			walk.drop = &packetDrop{chain: base, rule: "policy DROP"}
		}
		if walk.drop != nil {
			return walk.drop
		}
	}
	return nil
}

func chainKey(c *host.PacketChain) string {
	return strings.Join([]string{c.Backend, c.Family, c.Table, c.Name}, "\x00")
}

// chain walks one chain, which the sample reaches certainly or maybe, and reports whether its way certainly ends there.
func (w *packetWalk) chain(c *host.PacketChain, reached answer, depth int) (ended bool) {
	if depth > maxWalkDepth {
		w.passed = true
		return false
	}
	for _, rule := range c.Rules {
		if w.steps++; w.steps > maxWalkSteps {
			w.passed = true // too many to say anything
			return false
		}
		certain := w.applies(rule) // given that it comes here
		applies := reached.and(certain)
		if applies == no {
			continue
		}
		switch rule.Verdict {
		case "accept":
			w.passed = true
			if applies == yes {
				return true
			}
		case "drop", "reject":
			if applies == yes && !w.passed {
				w.drop = &packetDrop{c, rule.String(), rule.Packets}
				return true
			}
		case "return":
			if certain == yes {
				return false
			}
			reached = maybe
		case "jump", "goto":
			if w.jump(c, rule.Target, applies, depth) {
				return true
			}
			if rule.Verdict == "goto" {
				if certain == yes {
					return false
				}
				reached = maybe
			}
		default:
			if slices.Contains([]string{"QUEUE", "NFQUEUE", "TPROXY"}, rule.Target) {
				w.passed = true
			}
		}
	}
	return false
}

// jump walks the chain that a rule of c leads to. One that was not read belongs to somebody, or is gone meanwhile.
func (w *packetWalk) jump(c *host.PacketChain, name string, reached answer, depth int) (ended bool) {
	target := w.chains[chainKey(&host.PacketChain{Backend: c.Backend, Family: c.Family, Table: c.Table, Name: name})]
	if target == nil {
		w.passed = true
		return false
	}
	return w.chain(target, reached, depth+1)
}

// applies tells whether a rule applies to the sample.
func (w *packetWalk) applies(r host.PacketRule) answer {
	s := w.sample
	result := yes
	if r.NotNew || r.Mark == (host.PacketMark{Value: 0x4000, Mask: 0x4000}) {
		return no // the mark is kube-proxy's, for what it will masquerade
	}
	if len(r.Matches) > 0 || r.Mark != (host.PacketMark{}) {
		result = maybe
	}
	result = result.and(within(r.Source, s.source)).and(within(r.Destination, s.destination))
	result = result.and(throughInterface(r.In)).and(throughInterface(r.Out))
	if r.Protocol != 0 && r.Protocol != s.protocol {
		return no
	}
	if r.Port != (host.PortRange{}) {
		switch {
		case s.port == 0:
			result = result.and(maybe)
		case s.port < r.Port.From || s.port > r.Port.To:
			return no
		}
	}
	return result
}

// within tells whether an address is in a prefix.
func within(prefix netip.Prefix, address netip.Addr) answer {
	switch {
	case !prefix.IsValid() || prefix.Bits() == 0:
		return yes
	case !address.IsValid():
		return maybe
	case prefix.Contains(address):
		return yes
	}
	return no
}

// throughInterface tells whether a packet of pods or of the cluster goes through an interface. Which it goes through is not
// known, but not the loopback device nor the bridges of Docker and libvirt, whose containers are no pods.
func throughInterface(name string) answer {
	switch {
	case name == "":
		return yes
	case name == "lo" || isOtherBridge(name):
		return no
	}
	return maybe
}

// isOtherBridge knows docker0, Docker's own networks (br- and 12 hexadecimal digits) and libvirt's (virbr0).
func isOtherBridge(name string) bool {
	if network, ok := strings.CutPrefix(name, "br-"); ok {
		return len(network) == 12 && strings.Trim(network, "0123456789abcdef") == ""
	}
	return strings.HasPrefix(name, "docker") || strings.HasPrefix(name, "virbr")
}
