package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Bounds of host-local's directory of one network.
const (
	maxLeases = 1 << 16
	maxLease  = 1 << 10 // bytes; real ones have 70
)

// Lease is the lease of one address by host-local: the file <dataDir>/<network>/<address>, with the ID of the container
// and, since version 0.7, the interface in its lines, which end in CR LF
// (https://github.com/containernetworking/plugins/blob/main/plugins/ipam/host-local/backend/disk/backend.go).
type Lease struct {
	File    string
	Stat    host.FileStat
	Address netip.Addr

	Malformed   string // how its content is malformed; the fields below are not set then
	ContainerID string
	IfName      string
}

// Leases reads the leases of one network. It ignores other files, such as lock and last_reserved_ip.0. The error joins
// those of unreadable files, at most three.
func Leases(h *host.Host, dir string) ([]Lease, error) {
	entries, _, err := h.Files.ReadEntries(dir, maxLeases)
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist)
	}
	var found []Lease
	var failures []error
	for _, entry := range entries {
		address, err := netip.ParseAddr(entry.Name)
		if err != nil || !entry.IsFile() {
			continue
		}
		lease, err := readLease(h, path.Join(dir, entry.Name))
		lease.Address = address
		switch {
		case errors.Is(err, fs.ErrNotExist): // released meanwhile
		case err != nil:
			failures = append(failures, err)
		default:
			found = append(found, lease)
		}
	}
	return found, errors.Join(failures[:min(len(failures), 3)]...)
}

func readLease(h *host.Host, file string) (Lease, error) {
	stat, err := h.Files.Stat(file)
	if err != nil {
		return Lease{}, err
	}
	lease := Lease{File: file, Stat: stat}
	if !stat.IsFile() || stat.Size > maxLease {
		lease.Malformed = fmt.Sprintf("not a regular file of at most %d bytes", maxLease)
		return lease, nil
	}
	data, err := h.Files.Read(file)
	if err != nil {
		return Lease{}, err
	}
	lease.ContainerID, lease.IfName, err = ParseLease(string(data))
	if err != nil {
		lease.Malformed = err.Error()
	}
	return lease, nil
}

// ParseLease parses the content of a lease.
func ParseLease(content string) (container, ifName string, err error) {
	container, ifName, _ = strings.Cut(strings.TrimSpace(content), "\n")
	container, ifName = strings.TrimSpace(container), strings.TrimSpace(ifName)
	if container == "" || strings.ContainsFunc(container+ifName, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", "", errors.New("neither a container nor an interface in it")
	}
	return container, ifName, nil
}

// maxConfigs bounds the runtime's directory of configurations.
const maxConfigs = 1000

// ConfiguredNetworks returns the names of the networks that the runtime uses for pods: that of the first configuration
// in its directory and, if that is Multus', of those that Multus gives to every pod. If it returns an error, some are
// missing.
func ConfiguredNetworks(h *host.Host) ([]string, error) {
	entries, _, err := h.Files.ReadEntries(h.Paths.CNIConfDir, maxConfigs)
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist)
	}
	var names []string
	for _, entry := range entries {
		if slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(entry.Name)) && !entry.IsDir() {
			names = append(names, entry.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	config, err := readConfig(h, path.Join(h.Paths.CNIConfDir, slices.Min(names)))
	if err != nil {
		return nil, err
	}
	found := []string{config.Name}
	for _, plugin := range append(config.Plugins, config.multus) {
		for _, delegate := range plugin.Delegates {
			found = append(found, delegate.Name)
		}
		for _, network := range append(plugin.DefaultNetworks, plugin.ClusterNetwork) {
			if path.IsAbs(network) { // path of a configuration; else its name, or that of an object in the cluster
				named, err := readConfig(h, network)
				if err != nil {
					return found, err
				}
				network = named.Name
			}
			found = append(found, network)
		}
	}
	return slices.DeleteFunc(found, func(name string) bool { return name == "" }), nil
}

// config is a configuration of a network, a list of plugins or a single one.
type config struct {
	Name    string   `json:"name"`
	Plugins []multus `json:"plugins"`
	multus
}

// multus is the additional part of a plugin's configuration for Multus:
// https://github.com/k8snetworkplumbingwg/multus-cni/blob/master/docs/configuration.md
type multus struct {
	ClusterNetwork  string   `json:"clusterNetwork"`
	DefaultNetworks []string `json:"defaultNetworks"`
	Delegates       []struct {
		Name string `json:"name"`
	} `json:"delegates"`
}

func readConfig(h *host.Host, file string) (config, error) {
	var c config
	data, err := h.Files.Read(file)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("read %s: %w", file, err)
	}
	return c, nil
}
