package kinds

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func pluginSocketSpec() Spec {
	return Spec{
		Kind: object.PluginSocket, List: listPluginSockets, InUse: (*witness.Inventory).PluginInUse,
		ReportOnly: "it belongs to no pod, so no witness knows whether it is still needed; a plugin that starts again " +
			"creates a new socket, and after the final removal of a plugin `rm` removes the file",
		Unused: "no process listens on it, and no pod that may be its plugin's runs here",
		What: "a socket in `plugins_registry`, `device-plugins` or `plugins/<driver>` of kubelet on which no process " +
			"listens",
		Harm: "kubelet tries to register the plugin again and again; registrars wait for a driver that is gone",
	}
}

// listPluginSockets lists the sockets of kubelet's plugins: CSI, DRA and device plugins. It tests for a listener by a
// connection that it closes at once: /proc/net/unix shows the sockets of one network namespace only, under their names
// in the owner's mount namespace.
func listPluginSockets(ctx context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	connect := scan.Host.Plugins.Connect
	if connect == nil || scan.Host.Paths.PluginRegistry == "" {
		return nil, nil
	}
	root := path.Dir(scan.Host.Paths.PluginRegistry) // as configured, and as pods name it in their volumes
	var objects []object.Object
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
			o := object.Object{Kind: object.PluginSocket, ID: s.Path,
				Identity: object.Identity{File: object.FileID{Inode: s.Inode},
					Names: map[string]string{"changed": strconv.FormatInt(s.Changed, 10)}},
				Facts: object.Facts("directory", path.Join(scan.Host.Paths.KubeletRoot,
					strings.TrimPrefix(path.Dir(s.Path), root)))}
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
