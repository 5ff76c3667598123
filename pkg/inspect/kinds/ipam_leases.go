package kinds

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func ipamLeaseSpec() Spec {
	return Spec{
		Kind: object.IPAMLease, List: listIPAMLeases, GoneFrom: ofSandbox, OptIn: true,
		What: "the lease of an address by host-local, `/var/lib/cni/networks/<network>/<address>`",
		Harm: "an address that is never given back: after enough of them no pod gets one",
	}
}

// listIPAMLeases lists the leases of host-local in the networks of pods. Other engines, such as podman, keep theirs
// beside them: networks without attached pods that the runtime does not use are foreign.
func listIPAMLeases(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	dir := scan.Host.Paths.CNINetworksDir
	if dir == "" {
		return nil, nil
	}
	networks, _, err := directories(scan, dir)
	if err != nil || len(networks) == 0 {
		return nil, err
	}
	ours, unknown := podNetworks(scan)
	var failures []error
	var objects []object.Object
	for _, network := range networks {
		leases, err := cni.Leases(scan.Host, path.Join(dir, network.Name))
		failures = append(failures, err)
		for _, lease := range leases {
			o := leaseObject(network.Name, lease)
			switch {
			case o.Foreign != "" || ours[network.Name]:
			case unknown != nil: // not an error of the whole inspection: releases of others go on
				o.Doubt = fmt.Sprintf("whether network %s is one of pods is not known: %v", strconv.Quote(network.Name), unknown)
			default:
				o.Foreign = fmt.Sprintf("network %s is not one of pods: no pod is attached to it, and the runtime does "+
					"not use it", strconv.Quote(network.Name))
			}
			objects = append(objects, o)
		}
	}
	return objects, errors.Join(failures...)
}

func leaseObject(network string, lease cni.Lease) object.Object {
	o := object.Object{
		Kind: object.IPAMLease, ID: lease.File, SandboxID: lease.ContainerID,
		Identity: object.Identity{File: object.FileID{Device: hosterr.Device(lease.Stat.Device), Inode: lease.Stat.Inode,
			Modified: lease.Stat.Modified.UnixNano()}},
		Facts: object.Facts("network", network, "address", lease.Address.String(), "interface", lease.IfName,
			"malformed", lease.Malformed),
	}
	if lease.Malformed == "" && !host.IsContainerID(lease.ContainerID) {
		o.SandboxID, o.Foreign = "", "not created by a CRI runtime: its container ID has another format"
	}
	return o
}

// podNetworks returns the names of the networks of pods, by the CNI cache and by the configuration that the runtime
// uses.
func podNetworks(s *hostscan.Scan) (map[string]bool, error) {
	ours := make(map[string]bool)
	attachments, _ := s.Attachments() // the lister of attachments reports the error
	for _, a := range attachments {
		if a.Args["K8S_POD_UID"] != "" {
			ours[a.Network] = true
		}
	}
	names, err := cni.ConfiguredNetworks(s.Host)
	for _, name := range names {
		ours[name] = true
	}
	return ours, err
}
