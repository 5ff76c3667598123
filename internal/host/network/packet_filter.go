package network

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	hostnetlink "github.com/nodeagent/nodeagent/internal/host/netlink"
	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
)

// ReadPacketFilter reads the chains of the hooks prerouting, input, forward and output, and those that they jump to. It
// leaves out rules that translate addresses (nat), and tables that belong entirely to one component (kube-proxy's
// nftables mode).
func ReadPacketFilter(h *host.Host) (packetfilter.PacketFilter, error) {
	if h.Network.PacketFilter != nil {
		return h.Network.PacketFilter()
	}
	if h.Files.Root != "" {
		return packetfilter.PacketFilter{}, fmt.Errorf("packet filter: %w", hosterr.ErrNotConfigured)
	}
	legacy, err := legacyTables(h)
	if err != nil {
		return packetfilter.PacketFilter{}, fmt.Errorf("tables of iptables-legacy: %w", err)
	}
	if !h.HasModule("nf_tables") {
		return packetfilter.PacketFilter{Legacy: legacy}, nil
	}
	chains, err := hostnetlink.WholeDump(packetfilter.ReadChains)
	switch {
	case errors.Is(err, netlink.ErrDumpInterrupted): // by a change that it may show only half
		return packetfilter.PacketFilter{}, errors.New(
			"read nf_tables: the rules change too often to be read completely")
	case err != nil:
		return packetfilter.PacketFilter{}, fmt.Errorf("read nf_tables: %w", err)
	}
	return packetfilter.PacketFilter{Chains: chains, Legacy: legacy}, nil
}

// legacyTables returns the tables of iptables-legacy that can drop packets: all but nat. They exist from their first
// use, with or without rules, until the module is unloaded.
func legacyTables(h *host.Host) ([]string, error) {
	var tables []string
	for _, family := range []string{"ip", "ip6"} {
		names, err := tableNames(h, family)
		if err != nil {
			return nil, err
		}
		for _, table := range names {
			if table != "nat" {
				tables = append(tables, family+" "+hosterr.Clip(table))
			}
		}
	}
	return tables, nil
}

// tableNames returns the existing tables of iptables-legacy: none if it was never loaded.
func tableNames(h *host.Host, family string) ([]string, error) {
	names, err := h.Files.Read("/proc/thread-self/net/" + family + "_tables_names")
	return strings.Fields(string(names)), hosterr.Ignore(err, fs.ErrNotExist)
}

// PortMappings reads the rules of CNI's portmap plugin in all three forms: from its nftables backend, iptables-nft and
// iptables-legacy.
func PortMappings(h *host.Host) ([]packetfilter.PortMapping, error) {
	if h.Files.Root != "" {
		return nil, nil
	}
	mappings, err := legacyPortMappings(h)
	if !h.HasModule("nf_tables") {
		return mappings, err
	}
	more, nftErr := hostnetlink.WholeDump(packetfilter.ReadPortMappings)
	if nftErr != nil {
		err = errors.Join(err, fmt.Errorf("read nf_tables: %w", nftErr))
	}
	return append(mappings, more...), err
}

// legacyPortMappings reads the mappings in iptables-legacy, if its tables exist.
func legacyPortMappings(h *host.Host) (mappings []packetfilter.PortMapping, failed error) {
	for _, family := range []string{"ip", "ip6"} {
		tables, err := tableNames(h, family)
		if err == nil && slices.Contains(tables, "nat") {
			var found []packetfilter.PortMapping
			found, err = packetfilter.ReadLegacyPortMappings(family)
			mappings = append(mappings, found...)
		}
		failed = errors.Join(failed, err)
	}
	return mappings, failed
}
