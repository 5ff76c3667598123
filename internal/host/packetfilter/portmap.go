package packetfilter

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
)

// PortMapping is a rule of CNI's portmap plugin that sends ports of the host to one container
// (https://github.com/containernetworking/plugins/tree/main/plugins/meta/portmap). With iptables it is a jump to the
// container's chain, named after a hash; with nftables it is the translation itself. The comment names the container.
type PortMapping struct {
	Family, Table, Chain string // ip, ip6
	Handle               uint64 // of the rule, unique in its table
	Target               string // the container's chain; empty with nftables
	Comment              string
	Network              string // empty with nftables
	Container            string // from the comment; empty if that has none
	Ports                []PortRange
}

// maxMappings bounds the mappings to read.
const maxMappings = 1 << 14

// ReadPortMappings reads the rules of the plugin's chains. A missing chain has none.
func ReadPortMappings() ([]PortMapping, error) {
	var all []PortMapping
	for _, family := range []string{"ip", "ip6"} {
		for _, chain := range [][2]string{{"nat", "CNI-HOSTPORT-DNAT"}, {"cni_hostport", "hostports"},
			{"cni_hostport", "hostip_hostports"}} {
			of := PortMapping{Family: family, Table: chain[0], Chain: chain[1]}
			err := eachRule(family, chain[0], chain[1], func(message []byte) error {
				m, ours, err := of.parse(message)
				if ours && len(all) == maxMappings {
					err = fmt.Errorf("more than %d mappings of ports", maxMappings)
				}
				if ours {
					all = append(all, m)
				}
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("table %s %s chain %s: %w", family, chain[0], chain[1], err)
			}
		}
	}
	return all, nil
}

// parse parses one NFT_MSG_NEWRULE; false for a rule of another chain.
func (m PortMapping) parse(message []byte) (PortMapping, bool, error) {
	rule, chain, err := parseRule(message, func(string) ([]element, error) { return nil, errSetTooLarge })
	if err != nil || chain != m.Chain {
		return m, false, err
	}
	attributes, err := body(message)
	if err != nil {
		return m, false, err
	}
	if handle := attributes.Get(unix.NFTA_RULE_HANDLE); len(handle) >= 8 {
		m.Handle = uint64(be32(handle))<<32 | uint64(be32(handle[4:]))
	}
	m.Comment = hosterr.Clip(cmp.Or(commentOf(attributes.Get(unix.NFTA_RULE_USERDATA)), matchedComment(attributes)))
	m.Network, m.Container = containerOf(m.Comment)
	if rule.Verdict == "jump" || rule.Verdict == "goto" {
		m.Target = rule.Target
	}
	m.Ports = rule.Ports
	if (rule.Port != PortRange{}) {
		m.Ports = append(m.Ports, rule.Port)
	}
	return m, true, nil
}

// matchedComment finds the comment that iptables-nft adds to a rule as a match.
func matchedComment(rule netlink.AttributeList) string {
	expressions, _ := netlink.Attributes(rule.Get(unix.NFTA_RULE_EXPRESSIONS))
	for _, e := range expressions {
		fields, _ := netlink.Attributes(e.Value)
		match, _ := netlink.Attributes(fields.Get(unix.NFTA_EXPR_DATA))
		if cString(match.Get(unix.NFTA_MATCH_NAME)) == "comment" {
			return cString(match.Get(unix.NFTA_MATCH_INFO))
		}
	}
	return ""
}

// commentOf finds the comment in the data that user space stores with a rule, in entries of a type, a length and a
// value (libnftnl/udata.h: NFTNL_UDATA_RULE_COMMENT is 0). nft and newer versions of iptables-nft store it there.
func commentOf(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		if data[0] == 0 {
			return cString(data[2 : 2+int(data[1])])
		}
		data = data[2+int(data[1]):]
	}
	return ""
}

// containerOf returns the network and the container in a comment: dnat name: "<network>" id: "<container>", or only the
// container.
func containerOf(comment string) (network, container string) {
	rest, named := strings.CutPrefix(comment, "dnat name: ")
	if !named {
		return "", comment
	}
	quoted, err := strconv.QuotedPrefix(rest)
	container, ok := strings.CutPrefix(rest[len(quoted):], ` id: "`)
	container, whole := strings.CutSuffix(container, `"`)
	network, unquoted := strconv.Unquote(quoted)
	if err != nil || unquoted != nil || !ok || !whole {
		return "", ""
	}
	return network, container
}
