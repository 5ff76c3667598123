package network

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
)

// ReadPacketFilter reads the chains of the hooks prerouting, input, forward and output, and those that they jump to:
// rules that translate addresses (nat) are left out, and so is what belongs to a component that keeps whole tables
// for itself (kube-proxy's nftables mode).
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
	chains, err := wholeDump(packetfilter.ReadChains)
	switch {
	case errors.Is(err, netlink.ErrDumpInterrupted): // by a change, of which it may show only half
		return packetfilter.PacketFilter{}, errors.New(
			"read nf_tables: the rules change too often to be read completely")
	case err != nil:
		return packetfilter.PacketFilter{}, fmt.Errorf("read nf_tables: %w", err)
	}
	return packetfilter.PacketFilter{Chains: chains, Legacy: legacy}, nil
}

// legacyTables names the tables of iptables-legacy that can drop something: all but nat. They exist from their first
// use, with rules or without, until the module is unloaded.
func legacyTables(h *host.Host) ([]string, error) {
	var tables []string
	for _, family := range []string{"ip", "ip6"} {
		names, err := h.Files.Read("/proc/thread-self/net/" + family + "_tables_names")
		if errors.Is(err, fs.ErrNotExist) {
			continue // never loaded
		}
		if err != nil {
			return nil, err
		}
		for _, table := range strings.Fields(string(names)) {
			if table != "nat" {
				tables = append(tables, family+" "+hosterr.Clip(table))
			}
		}
	}
	return tables, nil
}

// PortMappings reads the rules of CNI's portmap plugin in nf_tables, as its nftables backend and iptables-nft write
// them. Those of iptables-legacy are not read.
func PortMappings(h *host.Host) ([]packetfilter.PortMapping, error) {
	if h.Files.Root != "" || !h.HasModule("nf_tables") {
		return nil, nil
	}
	mappings, err := wholeDump(packetfilter.ReadPortMappings)
	if err != nil {
		return nil, fmt.Errorf("read nf_tables: %w", err)
	}
	return mappings, nil
}
