package listers

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// listPortMappings lists the rules of the portmap plugin. Podman's may be among them.
func listPortMappings(_ context.Context, scan *hostscan.Scan) ([]inspect.Object, error) {
	mappings, err := network.PortMappings(scan.Host)
	if err != nil {
		return nil, err
	}
	ours, err := podNetworks(scan)
	objects := make([]inspect.Object, 0, len(mappings))
	for _, m := range mappings {
		handle, ports := strconv.FormatUint(m.Handle, 10), strings.Trim(fmt.Sprint(m.Ports), "[]")
		if m.Table == packetfilter.LegacyTable { // its rules have no stable number
			handle = strings.TrimSpace(m.Target + " " + ports)
		}
		o := inspect.Object{
			Kind: inspect.PortMapping, ID: fmt.Sprintf("%s %s %s#%s", m.Family, m.Table, m.Chain, handle),
			SandboxID: m.Container,
			Identity: inspect.Identity{"family": m.Family, "table": m.Table, "chain": m.Chain, "handle": handle,
				"comment": m.Comment},
			Facts: inspect.Facts("network", m.Network, "target", m.Target, "ports", ports),
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
