// Package kubelet talks to plugins as kubelet does, and reads its metrics.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// Plugins talks to kubelet's plugins (CSI drivers) with kubelet's own protocols. Every call makes a new connection and
// ends with its context; no call changes anything. A socket is a path that an untrusted plugin chose: see NewPlugins.
type Plugins struct {
	// Connect opens a connection and closes it at once. An error that wraps fs.ErrNotExist means that there is no such
	// socket; syscall.ECONNREFUSED means that no process listens on it (a stale socket).
	Connect func(ctx context.Context, socket string) error
	// GetInfo asks a registration socket for the plugin that it registers (pluginregistration v1).
	GetInfo func(ctx context.Context, socket string) (PluginInfo, error)
	// Name asks a CSI driver for its name (csi.v1.Identity/GetPluginInfo).
	Name func(ctx context.Context, endpoint string) (string, error)
	// Probe asks a CSI driver whether it is ready (csi.v1.Identity/Probe).
	Probe func(ctx context.Context, endpoint string) (ready bool, err error)
	// NodeID asks a CSI driver for its ID of this node (csi.v1.Node/NodeGetInfo), as kubelet does when it registers the
	// driver.
	NodeID func(ctx context.Context, endpoint string) (string, error)
}

// PluginInfo is the answer of a registration socket, bounded and validated.
type PluginInfo struct {
	Type     string // CSIPlugin, DevicePlugin or DRAPlugin
	Name     string
	Endpoint string // absolute path of the plugin's own socket
	Versions []string
}

// PluginSocket is a socket in kubelet's plugin registry. A restarted plugin makes a new one: its inode or its time of
// change differs (filesystems reuse a freed inode number at once).
type PluginSocket struct {
	Path    string
	Inode   uint64
	Changed int64 // ctime in nanoseconds since 1970
}

// Bounds of a plugin's answers.
const (
	MaxPluginDepth    = 4 // folders below the registry
	MaxPluginSockets  = 1000
	maxPluginText     = 1024 // bytes of a name, an endpoint or a version
	maxPluginVersions = 32
)

// csiName is the format of a CSI driver's name: at most 63 characters.
// https://github.com/container-storage-interface/spec/blob/master/spec.md#getplugininfo
var csiName = regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?$`)

// IsCSIDriverName reports whether s can be the name of a CSI driver.
func IsCSIDriverName(s string) bool { return csiName.MatchString(s) }

// OpenBeneath opens name below root. It follows links in root, which is the administrator's, but none below it, which
// is the plugin's; and it does not cross into another mount, where a dead server could hang the agent.
func OpenBeneath(root, name string, flags uint64) (int, error) {
	base, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(base)
	fd, err := unix.Openat2(base, name, &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: filepath.Join(root, name), Err: err}
	}
	return fd, nil
}

// pluginDialer connects only to sockets below its roots.
type pluginDialer struct{ roots []string }

// dial connects to a Unix socket. It opens the socket first and then connects through that descriptor, so that it talks
// to the very socket that it checked, and a path may be longer than the 107 bytes of sun_path.
func (d pluginDialer) dial(ctx context.Context, socket string) (net.Conn, error) {
	root, name, err := d.split(socket)
	if err != nil {
		return nil, err
	}
	fd, err := OpenBeneath(root, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: socket, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("connect to %s: not a socket", socket)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return conn, nil
}

// split finds the root above socket, the longest if there are several.
func (d pluginDialer) split(socket string) (root, name string, err error) {
	if len(socket) > maxPluginText || !utf8.ValidString(socket) || !filepath.IsAbs(socket) ||
		filepath.Clean(socket) != socket {
		return "", "", fmt.Errorf("connect to %.200q: not a clean absolute path", socket)
	}
	for _, r := range d.roots {
		r = filepath.Clean(r)
		rest, ok := strings.CutPrefix(socket, strings.TrimSuffix(r, "/")+"/")
		if ok && filepath.IsAbs(r) && len(r) > len(root) {
			root, name = r, rest
		}
	}
	if root == "" {
		return "", "", fmt.Errorf("connect to %.200q: %w", socket, ErrOutside)
	}
	return root, name, nil
}

// ErrOutside means that a plugin named a socket outside the allowed folders for plugins' sockets.
var ErrOutside = errors.New("not below a folder where plugins may have their sockets")

// ReadBeneath reads one of kubelet's own files below root: a regular file of at most most bytes that only root can
// write. See OpenBeneath.
func ReadBeneath(root, name string, most int64) ([]byte, error) {
	fd, err := OpenBeneath(root, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), filepath.Join(root, name))
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: file.Name(), Err: err}
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("read %s: not a regular file", file.Name())
	case !owned.UID(stat.Uid) || stat.Mode&0o022 != 0:
		return nil, fmt.Errorf("read %s: %w", file.Name(), owned.ErrOthers)
	}
	data, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("read %s: larger than %d bytes", file.Name(), most)
	}
	return data, err
}

// RegistrationPath returns the value of a container's argument --kubelet-registration-path, with $(VARIABLES) expanded
// from the container's plain environment.
func RegistrationPath(c *corev1.Container) string {
	words := slices.Concat(c.Command, c.Args)
	for i, word := range words {
		name, value, ok := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if name != "kubelet-registration-path" || !strings.HasPrefix(word, "-") {
			continue
		}
		if !ok && i+1 < len(words) {
			value = words[i+1]
		}
		for _, env := range c.Env {
			value = strings.ReplaceAll(value, "$("+env.Name+")", env.Value)
		}
		return value
	}
	return ""
}
