// Package mutatetest creates private parts of a node for tests that change real objects: kubelet's directories,
// cgroups, network namespaces, a container runtime. Everything it creates is removed when the test ends, even if it
// failed.
package mutatetest

import (
	"crypto/rand"
	"encoding/hex"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/test/need"
)

// Root skips a test that does not run as root.
func Root(t testing.TB) {
	t.Helper()
	need.Root(t, "changes mounts, cgroups or network namespaces for real")
}

// Node is a private node: the Mutator can only reach its directories and its cgroups.
type Node struct {
	t       testing.TB
	Host    *host.Host
	Mutator *mutate.Mutator
	Dir     string
}

// New creates a node. Its Mutator has no runtime unless set configures one.
func New(t testing.TB, set ...func(*host.Paths)) *Node {
	t.Helper()
	Root(t)
	dir := t.TempDir()
	id := Hex(t, 6)
	h := &host.Host{
		Paths: host.Paths{
			InitPID:        os.Getpid(),
			KubeletRoot:    filepath.Join(dir, "kubelet"),
			PluginRegistry: filepath.Join(dir, "kubelet", "plugins_registry"),
			CgroupMount:    "/sys/fs/cgroup",
			CgroupRoot:     "/nodeagent-test-" + id,
			CgroupDriver:   "cgroupfs",
			CNICacheDir:    filepath.Join(dir, "cni"),
			CNINetworksDir: filepath.Join(dir, "cni", "networks"),
			CNIBinDirs:     []string{"/opt/cni/bin", "/usr/lib/cni"},
			NetnsDirs:      []string{filepath.Join(dir, "netns")},
		},
		Clock:  host.Now,
		Prober: probe.NewProber(),
	}
	for _, change := range set {
		change(&h.Paths)
	}
	d, err := mutate.New(h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	n := &Node{t: t, Host: h, Mutator: d, Dir: dir}
	for _, sub := range []string{"kubelet/pods", "kubelet/plugins_registry", "cni/results", "netns", "state"} {
		n.Mkdir(filepath.Join(dir, sub))
	}
	t.Cleanup(func() { n.UnmountBelow(dir) })
	return n
}

// UnmountBelow unmounts a test's mounts below its directory, so that it can be deleted without harm.
func (n *Node) UnmountBelow(dir string) {
	for range 64 {
		mounts, err := mount.TableOf(n.Host, os.Getpid())
		if err != nil {
			n.t.Error(err)
			return
		}
		left := false
		for i := len(mounts) - 1; i >= 0; i-- {
			if mount.Below(mounts[i].Point, dir) {
				left = true
				_ = unix.Unmount(mounts[i].Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			}
		}
		if !left {
			return
		}
	}
	n.t.Errorf("%s: mounts cannot be removed", dir)
}

// Hex returns n random hexadecimal digits.
func Hex(t testing.TB, n int) string {
	t.Helper()
	random := make([]byte, n)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(random)[:n]
}

// UID returns a new pod UID.
func UID(t testing.TB) string {
	t.Helper()
	h := Hex(t, 32)
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// Mkdir creates a directory and its parents.
func (n *Node) Mkdir(name string) string {
	n.t.Helper()
	if err := os.MkdirAll(name, 0o755); err != nil {
		n.t.Fatal(err)
	}
	return name
}

// Write creates a file and its parent directories.
func (n *Node) Write(name, content string) string {
	n.t.Helper()
	n.Mkdir(filepath.Dir(name))
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
	return name
}

// Program writes a program that all users may run.
func (n *Node) Program(name, content string) string {
	n.t.Helper()
	n.Mkdir(filepath.Dir(name))
	if err := executable.Write(name, []byte(content)); err != nil {
		n.t.Fatal(err)
	}
	return name
}

// PodDir returns a path in a pod's directory.
func (n *Node) PodDir(uid string, parts ...string) string {
	return filepath.Join(append([]string{n.Host.Paths.KubeletRoot, "pods", uid}, parts...)...)
}

// Mount mounts a filesystem on a new directory and returns its identity.
func (n *Node) Mount(source, point, fsType string, flags uintptr) mutate.Mount {
	n.t.Helper()
	if _, err := os.Lstat(point); os.IsNotExist(err) {
		n.Mkdir(point)
	}
	before := n.Mounts(point)
	if err := unix.Mount(source, point, fsType, flags, ""); err != nil {
		n.t.Fatalf("mount %s: %v", point, err)
	}
	for _, m := range n.Mounts(point) {
		known := false
		for _, old := range before {
			known = known || old.ID == m.ID
		}
		if !known {
			return m
		}
	}
	n.t.Fatalf("mount %s: not in the mount table", point)
	return mutate.Mount{}
}

// Mounts returns the mounts on a point, lowest first.
func (n *Node) Mounts(point string) []mutate.Mount {
	n.t.Helper()
	mounts, err := mount.TableOf(n.Host, os.Getpid())
	if err != nil {
		n.t.Fatal(err)
	}
	var on []mutate.Mount
	for _, m := range mounts {
		if m.Point == point {
			on = append(on, mutate.Mount{
				ID: m.ID, Device: m.Device(), Root: m.Root, Point: m.Point, Source: m.Source, FSType: m.FSType,
			})
		}
	}
	return on
}

// Snapshot reads a whole tree: names, types and contents. Use it to check that a tree was not touched.
func Snapshot(t testing.TB, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		content := entry.Type().String()
		if entry.Type().IsRegular() {
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			content += ":" + string(data)
		}
		all[name] = content
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// FileID returns the identity of a file.
func FileID(t testing.TB, name string) mutate.FileID {
	t.Helper()
	stat, err := host.Files{}.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return mutate.FileID{Device: hosterr.Device(stat.Device), Inode: stat.Inode}
}
