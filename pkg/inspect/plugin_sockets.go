package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/socket"
)

func pluginSocketSpec() KindSpec {
	return KindSpec{
		Kind: PluginSocket, List: listPluginSockets, InUse: (*Inventory).pluginInUse,
		ReportOnly: "a plugin that starts again makes its socket anew; one that was removed for good leaves only the file",
		Unused:     "no process listens on it, and no pod that may be its plugin's runs here",
		What: "a socket in `plugins_registry`, `device-plugins` or `plugins/<driver>` of kubelet on which no process " +
			"listens",
		Harm: "kubelet tries to register the plugin again and again; registrars wait for a driver that is gone",
	}
}

// listPluginSockets lists the sockets of kubelet's plugins: CSI, DRA and device plugins. Whether a process listens is
// asked of the socket itself, by a connection that ends at once: /proc/net/unix shows those of one network namespace
// only, under the names that they have in their owner's mount namespace.
func listPluginSockets(ctx context.Context, scan *Scan) ([]Object, error) {
	connect := scan.Host.Plugins.Connect
	if connect == nil || scan.Host.Paths.PluginRegistry == "" {
		return nil, nil
	}
	root := path.Dir(scan.Host.Paths.PluginRegistry) // as it is configured, and as pods name it in their volumes
	var objects []Object
	var failures []error
	for dir, depth := range map[string]int{scan.Host.Paths.PluginRegistry: kubelet.MaxPluginDepth,
		path.Join(root, "device-plugins"): 0, path.Join(root, "plugins"): 2} {
		sockets, err := socket.SocketsBelow(scan.Host, dir, depth)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, err)
		}
		for _, s := range sockets {
			if path.Base(s.Path) == "kubelet.sock" {
				continue // kubelet's own
			}
			o := Object{Kind: PluginSocket, ID: s.Path, Identity: Identity{"inode": strconv.FormatUint(s.Inode, 10),
				"changed": strconv.FormatInt(s.Changed, 10)},
				Facts: facts("directory", path.Join(scan.Host.Paths.KubeletRoot, strings.TrimPrefix(path.Dir(s.Path), root)))}
			switch err := connect(ctx, s.Path); {
			case errors.Is(err, fs.ErrNotExist):
				continue // removed meanwhile
			case err == nil, errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EPROTOTYPE):
				o.Foreign = "a process listens on it"
			case errors.Is(err, syscall.EXDEV):
				o.Foreign = "it lies on another mount, which is not looked into"
			case !errors.Is(err, syscall.ECONNREFUSED):
				o.Doubt = err.Error()
			}
			objects = append(objects, o)
		}
	}
	return objects, errors.Join(failures...)
}

// pluginInUse returns the pod that may be the plugin's, and about to listen again: one that mounts the directory of its
// driver, or one that is not ready and mounts the directory of the socket.
func (t *Inventory) pluginInUse(o *Object) string {
	for _, pod := range t.Kubelet.Pods {
		if pod.Ended {
			continue
		}
		for _, dir := range pod.HostPaths {
			driver := path.Base(path.Dir(path.Clean(dir))) == "plugins"
			registers := driver && strings.HasPrefix(path.Base(o.ID), path.Base(dir))
			below := mount.Below(o.ID, dir) || mount.Below(o.Facts["directory"], dir)
			if registers || below && (driver || !pod.Ready) {
				return fmt.Sprintf("pod %s/%s mounts %s, and may be its plugin's", pod.Namespace, pod.Name, dir)
			}
		}
	}
	return ""
}
