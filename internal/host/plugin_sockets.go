package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// PluginSockets lists the sockets in kubelet's plugin registry and in folders below it, as kubelet's plugin watcher does:
// names that begin with a dot are left out. It follows no symbolic link and crosses no mount.
func (h *Host) PluginSockets() ([]PluginSocket, error) {
	if h.Paths.PluginRegistry == "" {
		return nil, ErrNotConfigured
	}
	root := h.Files.Path(h.Paths.PluginRegistry)
	var sockets []PluginSocket
	return sockets, walkPlugins(root, ".", maxPluginDepth, &sockets, h.Paths.PluginRegistry)
}

func walkPlugins(root, dir string, depth int, sockets *[]PluginSocket, shown string) error {
	fd, err := openBeneath(root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	folder := os.NewFile(uintptr(fd), filepath.Join(root, dir))
	defer folder.Close()
	entries, err := folder.ReadDir(maxPluginSockets)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("list %s: %w", filepath.Join(shown, dir), err)
	}
	if len(entries) == maxPluginSockets {
		return fmt.Errorf("list %s: %d entries or more", filepath.Join(shown, dir), maxPluginSockets)
	}
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), "."):
		case entry.IsDir() && depth > 0:
			if err := walkPlugins(root, name, depth-1, sockets, shown); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EXDEV) {
				return err
			}
		case entry.Type() == fs.ModeSocket:
			if len(*sockets) == maxPluginSockets {
				return fmt.Errorf("list %s: %d sockets or more", shown, maxPluginSockets)
			}
			var stat unix.Stat_t
			if unix.Fstatat(fd, entry.Name(), &stat, unix.AT_SYMLINK_NOFOLLOW) == nil {
				*sockets = append(*sockets, PluginSocket{Path: filepath.Join(shown, name), Inode: stat.Ino, Changed: stat.Ctim.Nano()})
			}
		}
	}
	return nil
}
