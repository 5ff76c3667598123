// Package packetfilter reads the rules of nf_tables.
package packetfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/netlink"
)

// nf_tables answers over netlink (linux/netfilter/nf_tables.h): dumps of all chains, and of the rules of one chain.
// Numbers are big-endian.
const (
	nftSubsystem = 10 << 8 // NFNL_SUBSYS_NFTABLES
	nftGetChain  = 4       // NFT_MSG_GETCHAIN; answers are NEWCHAIN
	nftNewChain  = 3
	nftGetRule   = 7
	nftNewRule   = 6

	nfprotoInet = 1
	nfHeader    = 4 // struct nfgenmsg: family, version, resource
)

// nfHead is struct nfgenmsg.
type nfHead struct{ family uint8 }

func (h nfHead) Len() int          { return nfHeader }
func (h nfHead) Serialize() []byte { return []byte{h.family, 0, 0, 0} }

// foreignTable reports whether a table belongs to a component that keeps it for itself and drops in it on purpose.
func foreignTable(name string) bool {
	for _, owner := range []string{"kube-proxy", "calico", "cilium", "antrea", "kindnet", "kube-router",
		"kube-network-policies", "libvirt_network", "docker-bridges"} {
		if strings.HasPrefix(name, owner) {
			return true
		}
	}
	return false
}

// NftTables adds the chains of nf_tables.
func NftTables(filter *PacketFilter) error {
	chains, err := nftChains()
	if err != nil {
		return err
	}
	// Base chains first, then what they jump to, as far as the bounds go.
	var queue []*PacketChain
	for _, chain := range chains {
		if chain.Hook != "" {
			queue = append(queue, chain)
		}
	}
	slices.SortFunc(queue, func(a, b *PacketChain) int { return strings.Compare(a.key(), b.key()) })
	queued, rules, sets := map[string]bool{}, 0, 0
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		if queued[chain.key()] {
			continue
		}
		queued[chain.key()] = true
		if len(queued) > maxPacketRead {
			return fmt.Errorf("more than %d chains are in use", maxPacketRead)
		}
		if err := chain.readNFTRules(maxPacketRules-rules, &sets); err != nil {
			return fmt.Errorf("table %s chain %s: %w", chain.Table, chain.Name, err)
		}
		rules += len(chain.Rules)
		filter.Chains = append(filter.Chains, *chain)
		for _, rule := range chain.Rules {
			next := PacketChain{Family: chain.Family, Table: chain.Table, Name: rule.Target}
			if found := chains[next.key()]; found != nil && rule.Verdict != "" {
				queue = append(queue, found)
			}
		}
	}
	return nil
}

// nftChains lists the chains of IP without their rules.
func nftChains() (map[string]*PacketChain, error) {
	chains := map[string]*PacketChain{}
	request := nl.NewNetlinkRequest(nftSubsystem|nftGetChain, unix.NLM_F_DUMP)
	request.AddData(nfHead{unix.AF_UNSPEC})
	var failure error
	err := request.ExecuteIter(unix.NETLINK_NETFILTER, nftSubsystem|nftNewChain, func(message []byte) bool {
		chain, ours, err := ParseNFTChain(message)
		switch {
		case err != nil:
			failure = err
			return false
		case !ours || foreignTable(chain.Table):
			return true
		case len(chains) == maxPacketChains:
			failure = fmt.Errorf("more than %d chains", maxPacketChains)
			return false
		}
		chains[chain.key()] = &chain
		return true
	})
	if err != nil {
		err = fmt.Errorf("list chains: %w", err)
	}
	return chains, errors.Join(failure, err)
}

// ParseNFTChain parses one NFT_MSG_NEWCHAIN; false for chains of other families and of nat.
func ParseNFTChain(message []byte) (PacketChain, bool, error) {
	if len(message) < nfHeader {
		return PacketChain{}, false, errors.New("short message")
	}
	chain := PacketChain{}
	switch message[0] {
	case unix.AF_INET:
		chain.Family = "ip"
	case unix.AF_INET6:
		chain.Family = "ip6"
	case nfprotoInet:
		chain.Family = "inet"
	default:
		return chain, false, nil
	}
	attributes, err := nftAttributes(message[nfHeader:])
	if err != nil {
		return chain, false, err
	}
	chain.Table, chain.Name = cString(attributes[1]), cString(attributes[3])
	if hook := attributes[4]; hook != nil {
		fields, err := nftAttributes(hook)
		if err != nil || len(fields[1]) < 4 || len(fields[2]) < 4 {
			return chain, false, errors.Join(err, fmt.Errorf("hook of chain %s", chain.Name))
		}
		if number := binary.BigEndian.Uint32(fields[1]); int(number) < len(packetHooks()) {
			chain.Hook = packetHooks()[number]
		}
		chain.Priority = int(int32(binary.BigEndian.Uint32(fields[2]))) //nolint:gosec // the kernel's int
		chain.Policy = "accept"
		if policy := attributes[5]; len(policy) >= 4 && binary.BigEndian.Uint32(policy) == 0 {
			chain.Policy = "drop"
		}
	}
	if cString(attributes[7]) == "nat" {
		chain.Hook, chain.Policy = "", "" // it translates; what it drops is rare enough to be left out
	}
	return chain, true, nil
}

func nftFamily(name string) uint8 {
	switch name {
	case "ip":
		return unix.AF_INET
	case "ip6":
		return unix.AF_INET6
	}
	return nfprotoInet
}

// nftAttributes makes a map of attributes by their type.
func nftAttributes(data []byte) (map[uint16][]byte, error) {
	list, err := netlink.NetlinkAttributes(data)
	if err != nil {
		return nil, err
	}
	attributes := make(map[uint16][]byte, len(list))
	for _, a := range list {
		attributes[a.Kind] = a.Value
	}
	return attributes, nil
}
