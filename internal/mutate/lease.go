package mutate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// ipam is the part of a plugin's configuration that names the IPAM plugin.
type ipam struct {
	IPAM struct {
		Type    string `json:"type"`
		DataDir string `json:"dataDir"`
	} `json:"ipam"`
}

// freeLeases makes sure that host-local no longer holds an address for the attachment. Some plugins return from DEL
// before they ask it (host-device without a network namespace): then freeLeases asks host-local directly, which takes
// its lock; a lease is never deleted as a file.
func (d *Mutator) freeLeases(ctx context.Context, plugins *libcni.CNIConfig, list *libcni.NetworkConfigList,
	a *libcni.RuntimeConf) error {
	for _, plugin := range list.Plugins {
		var conf ipam
		if err := json.Unmarshal(plugin.Bytes, &conf); err != nil || conf.IPAM.Type != "host-local" {
			continue // only other IPAM plugins can read their own records
		}
		dir := path.Join(cmp.Or(conf.IPAM.DataDir, d.host.Paths.CNINetworksDir), list.Name)
		held, err := d.leases(dir, a.ContainerID, a.IfName)
		if err != nil {
			return err
		}
		if len(held) == 0 {
			continue
		}
		direct, err := libcni.InjectConf(plugin, map[string]any{"type": "host-local", "name": list.Name,
			"cniVersion": list.CNIVersion})
		if err != nil {
			return err
		}
		if err := plugins.DelNetwork(ctx, direct, a); err != nil {
			return fmt.Errorf("addresses %s of network %s: %w", strings.Join(held, ", "), list.Name, err)
		}
		if held, err = d.leases(dir, a.ContainerID, a.IfName); err != nil || len(held) > 0 {
			return errors.Join(err, fmt.Errorf("addresses %s of network %s are still held", strings.Join(held, ", "),
				list.Name))
		}
	}
	return nil
}

// LeasesHeld lists the addresses that host-local holds for an interface of a container in one of its directories.
func (d *Mutator) LeasesHeld(dir, containerID, ifName string) ([]string, error) {
	if containerID == "" || !path.IsAbs(dir) {
		return nil, fmt.Errorf("leases of container %q in %q: neither may be empty", containerID, dir)
	}
	return d.leases(dir, containerID, ifName)
}

// leases lists the addresses that host-local holds for a container's interface: files named by the address that contain
// "<container>\r
// <interface>", or only the container if an old version wrote them.
func (d *Mutator) leases(dir, containerID, ifName string) ([]string, error) {
	names, err := d.host.Files.List(dir)
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist)
	}
	var held []string
	for _, name := range names {
		if _, err := netip.ParseAddr(strings.ReplaceAll(name, "_", ":")); err != nil {
			continue // "lock", "last_reserved_ip.0"
		}
		data, err := d.host.Files.Read(path.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		id, link, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
		if strings.TrimSpace(id) == containerID && (link == "" || strings.TrimSpace(link) == ifName) {
			held = append(held, name)
		}
	}
	return held, nil
}
