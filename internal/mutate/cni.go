package mutate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// Attachment is the identity of a CNI attachment: the cache file in which libcni stores the ADD.
type Attachment struct {
	File        string // absolute, <CNICacheDir>/results/<network>-<container>-<interface>
	Inode       uint64
	Size        int64
	ContainerID string // of the sandbox
}

// cached is libcni's cache file of kind cniCacheV1 (libcni/api.go).
type cached struct {
	Kind           string         `json:"kind"`
	ContainerID    string         `json:"containerId"`
	Config         []byte         `json:"config"`
	IfName         string         `json:"ifName"`
	NetworkName    string         `json:"networkName"`
	NetNS          string         `json:"netns"`
	CniArgs        [][2]string    `json:"cniArgs"`
	CapabilityArgs map[string]any `json:"capabilityArgs"`
	text           []byte
	Result         struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	} `json:"result"`
}

// maxCache bounds a cache file, which contains a configuration and a result.
const maxCache = 1 << 20

// MayDelAttachment returns why DelAttachment would not begin: also a plugin that is not there, or not root's.
func (d *Mutator) MayDelAttachment(a Attachment) error {
	_, _, err := d.undoing(a)
	return hosterr.Ignore(err, errGone)
}

// DelAttachment undoes a CNI ADD as the runtime would: DEL with the configuration, arguments and capabilities of the
// ADD (portmap without its capability returns success and removes nothing), and with the network namespace if it still
// exists. Afterwards the cache file and the leases of host-local must be gone. If a plugin fails, its error is
// returned; nothing is deleted without the plugins. DelAttachment refuses while another pod has an address of the ADD:
// some plugins undo their changes by the address alone, as firewall does with its rules.
func (d *Mutator) DelAttachment(ctx context.Context, a Attachment) error {
	list, attachment, err := d.undoing(a)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return notBegun(err)
	}
	plugins := d.cniPlugins()
	ctx, cancel := context.WithTimeout(ctx, networkLimit)
	defer cancel()
	// The address is held until all plugins have done their part: another pod that got it before would lose what some
	// undo by the address alone. libcni takes the cached result, which they need for that, away at the end.
	if err := plugins.DelNetworkList(ctx, list, attachment.RuntimeConf); err != nil {
		return fmt.Errorf("network %s: %w", list.Name, err)
	}
	if err := d.freeLeases(ctx, plugins, list, attachment.RuntimeConf); err != nil {
		// The record is put back, by which this is tried again.
		return errors.Join(err, os.WriteFile(a.File, attachment.text, 0o600))
	}
	if _, err := os.Lstat(a.File); err == nil {
		return fmt.Errorf("%s still exists after DEL", a.File)
	}
	return nil
}

// added is an ADD as a DEL repeats it.
type added struct {
	*libcni.RuntimeConf
	text []byte // of its record
}

// undoing returns what a DEL takes, once all that it needs is there and no other pod has an address of the ADD.
func (d *Mutator) undoing(a Attachment) (*libcni.NetworkConfigList, added, error) {
	entry, err := d.readAttachment(a)
	if err != nil {
		return nil, added{}, err
	}
	list, err := networkOf(entry)
	if err != nil {
		return nil, added{}, fmt.Errorf("%s: %w", a.File, err)
	}
	if err := d.pluginsOf(list); err != nil {
		return nil, added{}, fmt.Errorf("network %s: %w", list.Name, err)
	}
	netns, err := d.livingNetns(entry.NetNS)
	if err != nil {
		return nil, added{}, err
	}
	for _, ip := range entry.Result.IPs {
		address := ip.Address.Addr()
		if address.IsLoopback() || address.Is6() && address.IsLinkLocalUnicast() {
			continue // every namespace may have it
		}
		if err := d.addressUnused(address, netns); errors.Is(err, ErrBusy) {
			return nil, added{}, refuse("it is another's by now: %v", err)
		} else if err != nil {
			return nil, added{}, err
		}
	}
	return list, added{&libcni.RuntimeConf{
		ContainerID: entry.ContainerID, NetNS: netns, IfName: entry.IfName,
		Args: entry.CniArgs, CapabilityArgs: entry.CapabilityArgs,
	}, entry.text}, nil
}

func (d *Mutator) cniPlugins() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(d.host.Paths.CNIBinDirs, d.host.Paths.CNICacheDir, &pluginExec{mutator: d})
}

// readAttachment reads a cache file and checks that it is the inspected one and matches its name.
func (d *Mutator) readAttachment(a Attachment) (cached, error) {
	if path.Dir(a.File) != path.Join("/", d.host.Paths.CNICacheDir, "results") || !host.IsContainerID(a.ContainerID) {
		return cached{}, refuse("%s with container %q is not an attachment of the runtime", a.File, a.ContainerID)
	}
	fd, err := unix.Open(a.File, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return cached{}, child.Gone(a.File, err)
	}
	file := os.NewFile(uintptr(fd), a.File)
	defer file.Close()
	st, err := child.StatAt(fd, "")
	if err != nil {
		return cached{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Ino != a.Inode || int64(st.Size) != a.Size {
		return cached{}, changed("%s is inode %d of %d bytes instead of %d of %d", a.File, st.Ino, st.Size, a.Inode,
			a.Size)
	}
	if st.Size > maxCache {
		return cached{}, refuse("%s is larger than %d bytes", a.File, maxCache)
	}
	data := make([]byte, st.Size)
	if _, err := file.ReadAt(data, 0); err != nil {
		return cached{}, fmt.Errorf("read %s: %w", a.File, err)
	}
	return parseAttachment(data, path.Base(a.File), a.ContainerID)
}

// parseAttachment parses a cache file. Its content must match its name and the inspected container.
func parseAttachment(data []byte, name, containerID string) (cached, error) {
	var entry cached
	if err := json.Unmarshal(data, &entry); err != nil {
		return cached{}, fmt.Errorf("%s: %w", name, err)
	}
	switch {
	case entry.Kind != libcni.CNICacheV1:
		return cached{}, refuse("%s is of kind %q", name, entry.Kind)
	case entry.ContainerID != containerID:
		return cached{}, changed("%s is of container %q", name, entry.ContainerID)
	case name != entry.NetworkName+"-"+entry.ContainerID+"-"+entry.IfName:
		return cached{}, refuse("%s has network %q and interface %q", name, entry.NetworkName, entry.IfName)
	case entry.IfName == "" || len(entry.IfName) > 15 || strings.ContainsAny(entry.IfName, "/: \t\n"):
		return cached{}, refuse("%s: interface %q", name, entry.IfName)
	}
	entry.text = data
	return entry, nil
}

// networkOf reads the cached configuration: a list, as in all current runtimes, or a single plugin.
func networkOf(entry cached) (*libcni.NetworkConfigList, error) {
	list, err := libcni.NetworkConfFromBytes(entry.Config)
	if err != nil || len(list.Plugins) == 0 { // since 1.3 libcni reads a single plugin as an empty list
		plugin, single := libcni.NetworkPluginConfFromBytes(entry.Config)
		if single != nil {
			return nil, fmt.Errorf("cached configuration: %w", cmp.Or(err, single))
		}
		if list, err = libcni.ConfListFromConf(plugin); err != nil { //nolint:staticcheck // such caches exist, and nothing took its place
			return nil, fmt.Errorf("cached configuration: %w", err)
		}
	}
	if list.Name != entry.NetworkName {
		return nil, refuse("the cached configuration is for network %q instead of %q", list.Name, entry.NetworkName)
	}
	return list, nil
}

// livingNetns returns the path of a mounted network namespace, or "" if it is gone: plugins then clean up outside of
// it. A path outside of the configured directories is refused.
func (d *Mutator) livingNetns(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	if path.Clean(name) != name || !d.isNetnsDir(path.Dir(name)) {
		return "", refuse("network namespace %q is not in a configured directory", name)
	}
	fd, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return "", nil // an empty file, as left by a reboot
	}
	return name, nil
}

// pluginLimit bounds one plugin of a chain. Plugins that use their own server may take a while.
const pluginLimit = time.Minute
