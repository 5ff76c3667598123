package packetfilter

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
)

// TestDropIsCertain: a packet that the walk calls dropped is dropped, however the matches that it does not understand
// turn out, and whoever sends the packet.
func TestDropIsCertain(t *testing.T) {
	for range 30 { // of a hundred each: some mistakes show once in a thousand
		rapid.Check(t, checkOneFilter)
	}
}

func checkOneFilter(t *rapid.T) {
	filter := packetfilter.PacketFilter{}
	for i, name := range []string{"FORWARD", "a", "b", "c"} {
		chain := packetfilter.PacketChain{Family: ipv4, Table: "filter", Name: name}
		if i == 0 {
			chain.Hook, chain.Policy = "forward", rapid.SampledFrom([]string{"accept", "drop"}).Draw(t, "policy")
		}
		for range rapid.IntRange(0, 4).Draw(t, "rules") {
			chain.Rules = append(chain.Rules, drawRule(t, i))
		}
		filter.Chains = append(filter.Chains, chain)
	}
	sample := packetSample{hook: "forward", family: ipv4, destination: netip.MustParseAddr("10.0.0.1"), protocol: 6}
	drop := findDrop(filter, sample)
	if drop == nil {
		return
	}
	for range 20 {
		source := netip.MustParseAddr(rapid.SampledFrom([]string{"10.0.0.9", "10.9.0.9", "192.0.2.1"}).Draw(t,
			"source"))
		truth := func() bool { return rapid.Bool().Draw(t, "match") }
		if verdict := follow(filter, filter.Chains[0], source, sample, truth); verdict == "accept" || verdict == "" &&
			filter.Chains[0].Policy == "accept" {
			t.Fatalf("%s is said to drop, and a packet passes: %+v", drop.rule, filter)
		}
	}
}

// drawRule makes a rule that jumps to later chains only, as the kernel requires.
func drawRule(t *rapid.T, chain int) packetfilter.PacketRule {
	verdicts := []string{"", "accept", "drop", "reject", "return"}
	if chain < 3 {
		verdicts = append(verdicts, "jump", "goto")
	}
	rule := packetfilter.PacketRule{Verdict: rapid.SampledFrom(verdicts).Draw(t, "verdict")}
	if rule.Verdict == "jump" || rule.Verdict == "goto" {
		rule.Target = string(rune('a' + rapid.IntRange(chain, 2).Draw(t, "target")))
	}
	switch rapid.IntRange(0, 6).Draw(t, "limit") {
	case 0:
		rule.Matches = []string{"m"}
	case 1:
		rule.Source = netip.MustParsePrefix("10.0.0.0/16")
	case 2:
		rule.Destination = netip.MustParsePrefix(rapid.SampledFrom([]string{"10.0.0.0/8", "10.9.0.0/16"}).Draw(t, "to"))
	case 3:
		rule.Port = packetfilter.PortRange{From: 80, To: 80}
	case 4:
		rule.In = rapid.SampledFrom([]string{"lo", "docker0", "cali+"}).Draw(t, "in")
	}
	return rule
}

// follow does with one packet as the kernel does, given whether each match applies that depends on unknowns.
func follow(filter packetfilter.PacketFilter, chain packetfilter.PacketChain, source netip.Addr, sample packetSample,
	truth func() bool) string {
	for _, rule := range chain.Rules {
		open := len(rule.Matches) > 0 || rule.Port != packetfilter.PortRange{} || rule.In == "cali+"
		switch {
		case rule.In == "lo" || rule.In == "docker0",
			rule.Source.IsValid() && !rule.Source.Contains(source),
			rule.Destination.IsValid() && !rule.Destination.Contains(sample.destination),
			open && !truth():
			continue
		}
		switch rule.Verdict {
		case "accept", "drop":
			return rule.Verdict
		case "reject":
			return "drop"
		case "return":
			return ""
		case "jump", "goto":
			for _, target := range filter.Chains {
				if target.Name != rule.Target {
					continue
				}
				if verdict := follow(filter, target, source, sample, truth); verdict != "" {
					return verdict
				}
			}
			if rule.Verdict == "goto" {
				return ""
			}
		case "":
		default:
			return fmt.Sprintf("verdict %q", rule.Verdict)
		}
	}
	return ""
}
