package kinds

import (
	"context"
	"path"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func attachmentSpec() Spec {
	return Spec{
		Kind: object.CNIAttachment, List: listAttachments, GoneFrom: ofSandbox,
		What: "the cached result of a CNI ADD (libcni), which names the sandbox and the pod",
		Harm: "an address that is never given back: after enough of them no pod gets one",
	}
}

// listAttachments lists the cached results of CNI ADDs. Podman, nerdctl and other engines share the cache; their
// results have no pod UID in CNI_ARGS and are foreign.
func listAttachments(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	attachments, err := scan.Attachments()
	objects := make([]object.Object, 0, len(attachments))
	for _, a := range attachments {
		objects = append(objects, object.Object{
			Kind:      object.CNIAttachment,
			ID:        a.File,
			Pod:       podOfAttachment(a),
			SandboxID: a.ContainerID,
			Identity: object.Identity{File: object.FileID{Device: hosterr.Device(a.Stat.Device), Inode: a.Stat.Inode,
				Size: a.Stat.Size, Modified: a.Stat.Modified.UnixNano()}},
			Facts: object.Facts("network", a.Network, "interface", a.IfName, "netns", a.Netns,
				"addresses", strings.Join(a.Addresses, " "), "hostInterfaces", hostInterfaces(a),
				"leaseDirectories", leaseDirectories(scan, a), "malformed", a.Malformed),
			Foreign: foreignAttachment(scan, a),
		})
	}
	return objects, err
}

func podOfAttachment(a cni.Attachment) object.Pod {
	return object.Pod{UID: a.Args["K8S_POD_UID"], Namespace: a.Args["K8S_POD_NAMESPACE"], Name: a.Args["K8S_POD_NAME"]}
}

// foreignAttachment returns why an attachment does not belong to our runtime.
func foreignAttachment(scan *hostscan.Scan, a cni.Attachment) string {
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
	return object.ForeignUID(a.Args["K8S_POD_UID"])
}

// leaseDirectories returns the directories in which host-local stores the addresses of the attachment, joined by
// colons; empty if another plugin, or none, assigns addresses.
func leaseDirectories(scan *hostscan.Scan, a cni.Attachment) string {
	var dirs []string
	for _, dir := range a.LeaseDirs {
		if dir == "" {
			dir = scan.Host.Paths.CNINetworksDir
		}
		dirs = append(dirs, path.Join(dir, a.Network))
	}
	return strings.Join(dirs, ":")
}

// hostInterfaces returns the names of the interfaces that a plugin created on the host, for users: names are no proof.
func hostInterfaces(a cni.Attachment) string {
	var names []string
	for _, i := range a.Interfaces {
		if i.Sandbox == "" {
			names = append(names, i.Name)
		}
	}
	return strings.Join(names, " ")
}
