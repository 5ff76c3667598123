package socket

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// PluginSockets lists the sockets in kubelet's plugin registry and in directories below it, as kubelet's plugin watcher
// does: it leaves out names that begin with a dot. It follows no symbolic link and crosses no mount.
func PluginSockets(h *host.Host) ([]kubelet.PluginSocket, error) {
	if h.Paths.PluginRegistry == "" {
		return nil, hosterr.ErrNotConfigured
	}
	return SocketsBelow(h, h.Paths.PluginRegistry, kubelet.MaxPluginDepth)
}

// SocketsBelow lists the sockets in a directory of kubelet's and depth levels below it, in the same way.
func SocketsBelow(h *host.Host, dir string, depth int) ([]kubelet.PluginSocket, error) {
	var sockets []kubelet.PluginSocket
	return sockets, walkPlugins(h.Files.Path(dir), ".", depth, &sockets, dir)
}

func walkPlugins(root, dir string, depth int, sockets *[]kubelet.PluginSocket, shown string) error {
	fd, err := kubelet.OpenBeneath(root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	directory := os.NewFile(uintptr(fd), filepath.Join(root, dir))
	defer directory.Close()
	entries, err := directory.ReadDir(kubelet.MaxPluginSockets)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("list %s: %w", filepath.Join(shown, dir), err)
	}
	if len(entries) == kubelet.MaxPluginSockets {
		return fmt.Errorf("list %s: %d entries or more", filepath.Join(shown, dir), kubelet.MaxPluginSockets)
	}
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), "."):
		case entry.IsDir() && depth > 0:
			if err := walkPlugins(root, name, depth-1, sockets, shown); err != nil && !errors.Is(err, fs.ErrNotExist) &&
				!errors.Is(err, unix.EXDEV) {
				return err
			}
		case entry.Type() == fs.ModeSocket:
			if len(*sockets) == kubelet.MaxPluginSockets {
				return fmt.Errorf("list %s: %d sockets or more", shown, kubelet.MaxPluginSockets)
			}
			var stat unix.Stat_t
			if unix.Fstatat(fd, entry.Name(), &stat, unix.AT_SYMLINK_NOFOLLOW) == nil {
				*sockets = append(*sockets, kubelet.PluginSocket{Path: filepath.Join(shown, name), Inode: stat.Ino,
					Changed: stat.Ctim.Nano()})
			}
		}
	}
	return nil
}
