package packetfilter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/netlink"
)

// nf_tables answers over netlink (linux/netfilter/nf_tables.h): dumps of all chains, of the rules of one chain, of the
// elements of one set. Numbers are big-endian.

// foreignTable reports whether a table belongs to one component that drops packets in it on purpose.
func foreignTable(name string) bool {
	return slices.ContainsFunc([]string{"kube-proxy", "calico", "cilium", "antrea", "kindnet", "kube-router",
		"kube-network-policies", "libvirt_network", "docker-bridges"}, func(owner string) bool {
		return strings.HasPrefix(name, owner)
	})
}

// ReadChains reads the base chains of nf_tables and all chains that they jump to, with their rules.
func ReadChains() ([]PacketChain, error) {
	chains, err := listChains()
	if err != nil {
		return nil, err
	}
	// Base chains first, then those that they jump to, within the bounds.
	var queue []*PacketChain
	for _, chain := range chains {
		if chain.Hook != "" {
			queue = append(queue, chain)
		}
	}
	slices.SortFunc(queue, func(a, b *PacketChain) int { return strings.Compare(a.key(), b.key()) })
	var used []PacketChain
	known, rules, sets := map[string]bool{}, 0, 0
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		if known[chain.key()] {
			continue
		}
		known[chain.key()] = true
		if len(known) > maxPacketRead {
			return nil, fmt.Errorf("more than %d chains are in use", maxPacketRead)
		}
		if err := chain.readRules(maxPacketRules-rules, &sets); err != nil {
			return nil, fmt.Errorf("table %s chain %s: %w", chain.Table, chain.Name, err)
		}
		rules += len(chain.Rules)
		used = append(used, *chain)
		for _, rule := range chain.Rules {
			next := PacketChain{Family: chain.Family, Table: chain.Table, Name: rule.Target}
			if found := chains[next.key()]; found != nil && rule.Verdict != "" {
				queue = append(queue, found)
			}
		}
	}
	return used, nil
}

func (c *PacketChain) key() string { return c.Family + "\x00" + c.Table + "\x00" + c.Name }

// request begins a message of nf_tables. In each message the first attributes are a table and an object in it.
func request(command, flags int, family uint8, names ...string) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|command, flags)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family})
	for i, name := range names {
		request.AddData(nl.NewRtAttr(i+1, nl.ZeroTerminated(name)))
	}
	return request
}

// dump sends a request and calls take for each answer until that fails. It returns take's failure separately from the
// kernel's.
func dump(request *nl.NetlinkRequest, answer uint16, take func(message []byte) error) (failure, err error) {
	err = request.ExecuteIter(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|answer, func(message []byte) bool {
		failure = take(message)
		return failure == nil
	})
	return failure, err
}

// listChains lists the chains of IP without their rules.
func listChains() (map[string]*PacketChain, error) {
	chains := map[string]*PacketChain{}
	failure, err := dump(request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.AF_UNSPEC), unix.NFT_MSG_NEWCHAIN,
		func(message []byte) error {
			chain, ours, err := parseChain(message)
			switch {
			case err != nil:
				return err
			case !ours || foreignTable(chain.Table):
				return nil
			case len(chains) == maxPacketChains:
				return fmt.Errorf("more than %d chains", maxPacketChains)
			}
			chains[chain.key()] = &chain
			return nil
		})
	if err != nil {
		err = fmt.Errorf("list chains: %w", err)
	}
	return chains, errors.Join(failure, err)
}

// parseChain parses one NFT_MSG_NEWCHAIN; false for chains of other families and of nat.
func parseChain(message []byte) (PacketChain, bool, error) {
	attributes, err := body(message)
	if err != nil {
		return PacketChain{}, false, err
	}
	chain := PacketChain{}
	switch message[0] {
	case unix.AF_INET:
		chain.Family = "ip"
	case unix.AF_INET6:
		chain.Family = "ip6"
	case unix.NFPROTO_INET:
		chain.Family = "inet"
	default:
		return chain, false, nil
	}
	chain.Table, chain.Name = cString(attributes.Get(unix.NFTA_CHAIN_TABLE)),
		cString(attributes.Get(unix.NFTA_CHAIN_NAME))
	if hook := attributes.Get(unix.NFTA_CHAIN_HOOK); hook != nil {
		fields, err := netlink.Attributes(hook)
		if err != nil || len(fields.Get(unix.NFTA_HOOK_HOOKNUM)) < 4 || len(fields.Get(unix.NFTA_HOOK_PRIORITY)) < 4 {
			return chain, false, errors.Join(err, fmt.Errorf("hook of chain %s", chain.Name))
		}
		if number := binary.BigEndian.Uint32(fields.Get(unix.NFTA_HOOK_HOOKNUM)); int(number) < len(packetHooks()) {
			chain.Hook = packetHooks()[number]
		}
		priority := binary.BigEndian.Uint32(fields.Get(unix.NFTA_HOOK_PRIORITY))
		chain.Priority = int(int32(priority)) //nolint:gosec // the kernel's int
		chain.Policy = "accept"
		if policy := attributes.Get(unix.NFTA_CHAIN_POLICY); len(policy) >= 4 && binary.BigEndian.Uint32(policy) == 0 {
			chain.Policy = "drop"
		}
	}
	if cString(attributes.Get(unix.NFTA_CHAIN_TYPE)) == "nat" {
		chain.Hook, chain.Policy = "", "" // it translates; it drops so rarely that it is left out
	}
	return chain, true, nil
}

func familyNumber(name string) uint8 {
	switch name {
	case "ip":
		return unix.AF_INET
	case "ip6":
		return unix.AF_INET6
	}
	return unix.NFPROTO_INET
}

// readRules dumps the rules of one chain, and counts the sets read for them.
func (c *PacketChain) readRules(limit int, sets *int) error {
	readSet := func(name string) ([]element, error) {
		if *sets++; *sets > maxPacketSets {
			return nil, errSetTooLarge
		}
		return c.readSet(name)
	}
	return eachRule(c.Family, c.Table, c.Name, func(message []byte) error {
		if len(c.Rules) >= limit {
			return fmt.Errorf("more than %d rules", maxPacketRules)
		}
		rule, chain, err := parseRule(message, readSet)
		if err != nil {
			return err
		}
		if chain == c.Name { // older kernels ignore the selection
			c.Rules = append(c.Rules, rule)
		}
		return nil
	})
}

// eachRule dumps the rules of a chain. One that does not exist has none.
func eachRule(family, table, chain string, take func(message []byte) error) error {
	failure, err := dump(request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, familyNumber(family), table, chain),
		unix.NFT_MSG_NEWRULE, take)
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return errors.Join(failure, err)
}

// nested returns an attribute within an attribute.
func nested(data []byte, kind uint16) []byte {
	fields, err := netlink.Attributes(data)
	if err != nil {
		return nil
	}
	return fields.Get(kind)
}

// body returns the attributes of a message.
func body(message []byte) (netlink.AttributeList, error) {
	if len(message) < nl.SizeofNfgenmsg {
		return nil, errors.New("short message")
	}
	return netlink.Attributes(message[nl.SizeofNfgenmsg:])
}

func be32(data []byte) uint32 {
	if len(data) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(data)
}

func cString(data []byte) string {
	text, _, _ := bytes.Cut(data, []byte{0})
	return strings.ToValidUTF8(string(text), "?")
}
