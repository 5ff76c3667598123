package mutate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	hostnetlink "github.com/nodeagent/nodeagent/internal/host/netlink"
)

// AddressLease is the identity of a lease of host-local: the file <CNINetworksDir>/<network>/<address> with the ID of the
// sandbox.
type AddressLease struct {
	File        string
	ID          FileID
	Modified    int64 // nanoseconds since the epoch
	ContainerID string
}

// FreeAddress makes host-local free the addresses that it holds for a sandbox in one network, as a DEL would:
// host-local takes its lock, and removes by the ID of the sandbox. The agent itself never removes the file. FreeAddress
// refuses while the runtime has an object under that ID, while libcni has the result of its ADD (whose DEL does more),
// or while a network namespace has the address. It is no error if the lease is gone.
func (d *Mutator) FreeAddress(ctx context.Context, l AddressLease) error {
	conf, ifName, err := d.freeing(ctx, l)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return notBegun(err)
	}
	ctx, cancel := context.WithTimeout(ctx, pluginLimit)
	defer cancel()
	err = d.cniPlugins().DelNetwork(ctx, conf, &libcni.RuntimeConf{ContainerID: l.ContainerID, IfName: ifName})
	if err != nil {
		return fmt.Errorf("address %s of network %s: %w", path.Base(l.File), conf.Network.Name, err)
	}
	return nil
}

// MayFreeAddress returns why FreeAddress would not begin: host-local is not there, or not root's, or the address is held.
func (d *Mutator) MayFreeAddress(ctx context.Context, l AddressLease) error {
	_, _, err := d.freeing(ctx, l)
	return hosterr.Ignore(err, errGone)
}

// freeing returns what host-local is given, once nothing keeps the address.
func (d *Mutator) freeing(ctx context.Context, l AddressLease) (conf *libcni.PluginConfig, ifName string, err error) {
	dir, network, address, err := d.placeOfLease(l)
	if err != nil {
		return nil, "", err
	}
	if _, err := d.verifyLease(l); err != nil {
		return nil, "", err
	}
	if err := d.mayRunPlugin("host-local"); err != nil {
		return nil, "", err
	}
	if err := d.unknownToRuntime(ctx, l.ContainerID); err != nil {
		return nil, "", fmt.Errorf("address %s: %w", address, err)
	}
	if err := d.notAttached(l.ContainerID); err != nil {
		return nil, "", fmt.Errorf("address %s: %w", address, err)
	}
	if err := d.addressUnused(address, ""); err != nil {
		return nil, "", err
	}
	if conf, err = hostLocalConf(network, path.Dir(dir), address); err != nil {
		return nil, "", err
	}
	ifName, err = d.verifyLease(l) // once more: the questions take a while
	return conf, ifName, err
}

// placeOfLease returns the network and the address that the name of a lease stands for.
func (d *Mutator) placeOfLease(l AddressLease) (dir, network string, address netip.Addr, err error) {
	dir = path.Dir(l.File)
	network = path.Base(dir)
	address, parseErr := netip.ParseAddr(path.Base(l.File))
	if parseErr != nil || address.Zone() != "" || d.host.Paths.CNINetworksDir == "" ||
		path.Dir(dir) != path.Join("/", d.host.Paths.CNINetworksDir) || path.Clean(l.File) != l.File ||
		!host.IsContainerID(l.ContainerID) {
		err = refuse("%s of container %q is no lease of host-local", l.File, l.ContainerID)
	}
	return dir, network, address, err
}

// verifyLease makes sure that a lease is the evaluated one, and returns its interface: eth0 if an old version of
// host-local did not write one.
func (d *Mutator) verifyLease(l AddressLease) (string, error) {
	stat, err := d.host.Files.Stat(l.File)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errGone
	}
	if err != nil {
		return "", err
	}
	found := FileID{Device: hosterr.Device(stat.Device), Inode: stat.Inode}
	if !stat.IsFile() || found != l.ID || stat.Modified.UnixNano() != l.Modified {
		return "", changed("%s is another file, or was written again", l.File)
	}
	data, err := d.host.Files.Read(l.File)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errGone
	}
	if err != nil {
		return "", err
	}
	id, ifName, err := cni.ParseLease(string(data))
	if err != nil {
		return "", fmt.Errorf("%s: %w", l.File, err)
	}
	if id != l.ContainerID {
		return "", changed("%s is of container %q instead of %q", l.File, id, l.ContainerID)
	}
	if ifName == "" {
		ifName = "eth0"
	}
	return ifName, nil
}

// notAttached makes sure that libcni has no result of an ADD for a sandbox in any network.
func (d *Mutator) notAttached(containerID string) error {
	dir := path.Join("/", d.host.Paths.CNICacheDir, "results")
	names, err := d.host.Files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("attachments: %w", err)
	}
	at := slices.IndexFunc(names, func(name string) bool { return strings.Contains(name, containerID) })
	if at >= 0 {
		return fmt.Errorf("CNI has its attachment %s, which goes first: %w", names[at], ErrBusy)
	}
	return nil
}

// maxNetns bounds the network namespaces that are searched: a node has one for each pod, and those left by deleted
// pods.
const maxNetns = 1 << 14

// addressUnused makes sure that neither the host nor any network namespace of the runtime has an address, except own,
// if there is one: any other user that got it from host-local would share it.
func (d *Mutator) addressUnused(address netip.Addr, own string) error {
	var ownInode uint64
	if own != "" {
		stat, err := d.host.Files.Stat(own)
		if err != nil {
			return err
		}
		ownInode = stat.Inode
	}
	mine, err := hostnetlink.WholeDump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("addresses of the host: %w", err)
	}
	if hasAddress(mine, address) {
		return fmt.Errorf("the host has address %s: %w", address, ErrBusy)
	}
	for _, dir := range d.host.Paths.NetnsDirs {
		names, err := d.host.Files.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if len(names) > maxNetns {
			return refuse("%s has more than %d network namespaces", dir, maxNetns)
		}
		for _, name := range names {
			file := path.Join(dir, name)
			if stat, err := d.host.Files.Stat(file); err == nil && stat.Inode == ownInode {
				continue
			}
			all, err := addressesIn(file)
			if err != nil {
				return fmt.Errorf("whether network namespace %s has address %s: %w", file, address, err)
			}
			if hasAddress(all, address) {
				return fmt.Errorf("network namespace %s has address %s: %w", file, address, ErrBusy)
			}
		}
	}
	return nil
}

// addressesIn lists the addresses in a mounted network namespace; none if no namespace is mounted on file.
func addressesIn(file string) ([]netlink.Addr, error) {
	fd, err := unix.Open(file, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, hosterr.Ignore(err, unix.ENOENT)
	}
	defer unix.Close(fd)
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil {
		return nil, err
	}
	if system.Type != unix.NSFS_MAGIC {
		return nil, nil
	}
	open, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(open)
	handle, err := netlink.NewHandleAt(netns.NsHandle(open), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	return hostnetlink.WholeDump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, netlink.FAMILY_ALL) })
}

func hasAddress(all []netlink.Addr, address netip.Addr) bool {
	return slices.ContainsFunc(all, func(a netlink.Addr) bool {
		if a.IPNet == nil {
			return false
		}
		one, ok := netip.AddrFromSlice(a.IP)
		return ok && one.Unmap() == address.Unmap()
	})
}

// hostLocalConf is the configuration for host-local's DEL. It needs a range, but frees by container whatever the range
// is.
func hostLocalConf(network, dataDir string, address netip.Addr) (*libcni.PluginConfig, error) {
	bits := 24
	if address.Is6() {
		bits = 64
	}
	subnet, err := address.Prefix(bits)
	if err != nil {
		return nil, err
	}
	conf, err := json.Marshal(map[string]any{"cniVersion": "0.4.0", "name": network, "type": "host-local",
		"ipam": map[string]any{"type": "host-local", "dataDir": dataDir,
			"ranges": [][]map[string]string{{{"subnet": subnet.String()}}}}})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkPluginConfFromBytes(conf)
}
