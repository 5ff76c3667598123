package inspect

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/network"
)

func attachmentSpec() KindSpec {
	return KindSpec{
		Kind: CNIAttachment, List: listAttachments, GoneFrom: ofSandbox,
		What: "the cached result of a CNI ADD (libcni), which names the sandbox and the pod",
		Harm: "an address that is never given back: after enough of them no pod gets one",
	}
}

// listAttachments lists the cached results of CNI ADDs. Podman, nerdctl and other engines share the cache; their
// results have no pod UID in CNI_ARGS and are foreign.
func listAttachments(_ context.Context, scan *Scan) ([]Object, error) {
	attachments, err := scan.attachments()
	objects := make([]Object, 0, len(attachments))
	for _, a := range attachments {
		objects = append(objects, Object{
			Kind:      CNIAttachment,
			ID:        a.File,
			Pod:       podOfAttachment(a),
			SandboxID: a.ContainerID,
			Identity: Identity{
				"device": hosterr.Device(a.Stat.Device), "inode": strconv.FormatUint(a.Stat.Inode, 10),
				"size": strconv.FormatUint(a.Stat.Size, 10), "modified": strconv.FormatInt(a.Stat.Modified.UnixNano(),
					10),
			},
			Facts: facts("network", a.Network, "interface", a.IfName, "netns", a.Netns,
				"addresses", strings.Join(a.Addresses, " "), "hostInterfaces", hostInterfaces(a),
				"leaseDirectories", leaseDirectories(scan, a), "malformed", a.Malformed),
			Foreign: foreignAttachment(scan, a),
		})
	}
	return objects, err
}

func podOfAttachment(a cni.Attachment) Pod {
	return Pod{UID: a.Args["K8S_POD_UID"], Namespace: a.Args["K8S_POD_NAMESPACE"], Name: a.Args["K8S_POD_NAME"]}
}

// foreignAttachment returns why an attachment does not belong to our runtime.
func foreignAttachment(scan *Scan, a cni.Attachment) string {
	switch {
	case a.Malformed != "":
		return "" // it may belong to any pod
	case a.Kind == "":
		return "not a cache file of libcni"
	case a.ContainerID == "":
		return "a cache file of the unknown kind " + strconv.Quote(a.Kind)
	case a.Args["K8S_POD_UID"] == "":
		return "not created by a CRI runtime: its CNI_ARGS have no K8S_POD_UID"
	case !host.IsContainerID(a.ContainerID):
		return "not created by a CRI runtime: its container ID has another format"
	case a.Netns != "" && !inNetnsDirs(scan, a.Netns):
		return "created by another runtime: its network namespace is at " + a.Netns
	}
	return foreignUID(a.Args["K8S_POD_UID"])
}

// leaseDirectories returns where host-local stores the addresses of the attachment, joined by colons; empty when
// another plugin assigns addresses, or none does.
func leaseDirectories(scan *Scan, a cni.Attachment) string {
	var dirs []string
	for _, dir := range a.LeaseDirs {
		if dir == "" {
			dir = scan.Host.Paths.CNINetworksDir
		}
		dirs = append(dirs, path.Join(dir, a.Network))
	}
	return strings.Join(dirs, ":")
}

// hostInterfaces returns the names of the interfaces that a plugin created on the host, for users: names prove nothing.
func hostInterfaces(a cni.Attachment) string {
	var names []string
	for _, i := range a.Interfaces {
		if i.Sandbox == "" {
			names = append(names, i.Name)
		}
	}
	return strings.Join(names, " ")
}

func portMappingSpec() KindSpec {
	return KindSpec{
		Kind: PortMapping, List: listPortMappings, GoneFrom: ofSandbox,
		ReportOnly: "a CNI DEL with the cached configuration removes it: see cni-attachment; rules are never flushed",
		What: "a rule of CNI's portmap plugin that sends a port of the host to a sandbox (nftables, iptables-nft): " +
			"in the chain `CNI-HOSTPORT-DNAT`, or of the table `cni_hostport`",
		Harm: "the port of the host leads nowhere, or to the pod that has the address now; a new pod with that port " +
			"is not reached",
	}
}

// listPortMappings lists the rules of the portmap plugin. Podman's may be among them.
func listPortMappings(_ context.Context, scan *Scan) ([]Object, error) {
	mappings, err := network.PortMappings(scan.Host)
	if err != nil {
		return nil, err
	}
	ours, err := scan.podNetworks()
	objects := make([]Object, 0, len(mappings))
	for _, m := range mappings {
		handle := strconv.FormatUint(m.Handle, 10)
		o := Object{
			Kind: PortMapping, ID: fmt.Sprintf("%s %s %s#%s", m.Family, m.Table, m.Chain, handle),
			SandboxID: m.Container,
			Identity: Identity{"family": m.Family, "table": m.Table, "chain": m.Chain, "handle": handle,
				"comment": m.Comment},
			Facts: facts("network", m.Network, "target", m.Target, "ports", strings.Trim(fmt.Sprint(m.Ports), "[]")),
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
