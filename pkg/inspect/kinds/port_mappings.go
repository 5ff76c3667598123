package kinds

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func portMappingSpec() Spec {
	return Spec{
		Kind: object.PortMapping, List: listPortMappings, GoneFrom: ofSandbox,
		ReportOnly: "a CNI DEL with the cached configuration removes it: see cni-attachment; rules are never flushed",
		What: "a rule of CNI's portmap plugin that sends a port of the host to a sandbox (nftables, iptables-nft, iptables-legacy): " +
			"in the chain `CNI-HOSTPORT-DNAT`, or of the table `cni_hostport`",
		Harm: "the port of the host leads nowhere, or to the pod that has the address now; a new pod with that port " +
			"is not reached",
	}
}

// listPortMappings lists the rules of the portmap plugin. Podman's may be among them.
func listPortMappings(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	mappings, err := network.PortMappings(scan.Host)
	if err != nil {
		return nil, err
	}
	ours, err := podNetworks(scan)
	objects := make([]object.Object, 0, len(mappings))
	for _, m := range mappings {
		handle, ports := strconv.FormatUint(m.Handle, 10), strings.Trim(fmt.Sprint(m.Ports), "[]")
		if m.Table == packetfilter.LegacyTable { // its rules have no stable number
			handle = strings.TrimSpace(m.Target + " " + ports)
		}
		o := object.Object{
			Kind: object.PortMapping, ID: fmt.Sprintf("%s %s %s#%s", m.Family, m.Table, m.Chain, handle),
			SandboxID: m.Container,
			Identity: named("family", m.Family, "table", m.Table, "chain", m.Chain, "handle", handle,
				"comment", m.Comment),
			Facts: object.Facts("network", m.Network, "target", m.Target, "ports", ports),
		}
		switch {
		case m.Container == "":
			o.Facts["malformed"] = "its comment is " + strconv.Quote(m.Comment)
		case !host.IsContainerID(m.Container):
			o.SandboxID, o.Foreign = "", "not created by a CRI runtime: its container ID has another format"
		case m.Network != "" && !ours[m.Network]:
			o.Foreign = "of the network " + strconv.Quote(m.Network) + ", which is not one of pods"
		}
		objects = append(objects, o)
	}
	return objects, err
}
