package release

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	hostkubelet "github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/test/fakecsi"
)

// shortNode is a world with paths short enough for socket names.
func shortNode(t *testing.T) *world {
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	var w *world
	t.Cleanup(func() {
		if w != nil {
			w.UnmountBelow(dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	w = newWorld(t, func(p *host.Paths) {
		p.KubeletRoot, p.PluginRegistry = dir, filepath.Join(dir, "plugins_registry")
	})
	w.Mkdir(filepath.Join(dir, "pods"))
	w.Mkdir(filepath.Join(dir, "plugins_registry"))
	return w
}

// listen listens on a socket and never answers; the timeout for answers is short.
func (w *world) listen(name string) *net.UnixListener {
	w.t.Helper()
	w.Mkdir(filepath.Dir(name))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	w.timeouts.socket = 50 * time.Millisecond
	return l
}

// While there is any evidence of a driver, its volume's note stays; a failed observation never counts as absence.
func TestDriverStillThere(t *testing.T) {
	const driver = "a.example.com"
	for name, test := range map[string]struct {
		arrange func(w *world)
		want    string // empty: the note goes
	}{
		"nowhere": {func(*world) {}, ""},
		"in CSINode": {func(w *world) {
			w.csiNode = func() (*storagev1.CSINode, error) { return namesDrivers(driver), nil }
		}, "CSINode names it"},
		"CSINode is refused": {func(w *world) {
			w.csiNode = func() (*storagev1.CSINode, error) { return nil, hosterr.ErrForbidden }
		}, "not known"},
		"there is no CSINode": {func(w *world) {
			w.csiNode = func() (*storagev1.CSINode, error) {
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "csinodes"}, "node")
			}
		}, "not known"},
		"an empty answer": {func(w *world) {
			w.csiNode = func() (*storagev1.CSINode, error) { return &storagev1.CSINode{}, nil }
		}, "has no UID"},
		"the apiserver is away": {func(w *world) {
			w.csiNode = func() (*storagev1.CSINode, error) { return nil, context.DeadlineExceeded }
		}, "not known"},
		"no apiserver":      {func(w *world) { w.Host.Cluster.CSINode = nil }, "not known"},
		"no way to sockets": {func(w *world) { w.Host.Plugins = hostkubelet.Plugins{} }, "not known"},
		"its own socket": {func(w *world) {
			w.listen(filepath.Join(w.Host.Paths.KubeletRoot, "plugins", driver, "csi.sock"))
		}, "csi.sock"},
		"its registrar's socket": {func(w *world) {
			w.listen(filepath.Join(w.Host.Paths.PluginRegistry, driver+"-reg.sock"))
		}, "-reg.sock"},
		"a socket of another name, deep": {func(w *world) {
			w.listen(filepath.Join(w.Host.Paths.KubeletRoot, "plugins/x/y/.hidden"))
		}, ".hidden"},
		"a socket left behind": {func(w *world) {
			l := w.listen(filepath.Join(w.Host.Paths.KubeletRoot, "plugins", driver, "csi.sock"))
			l.SetUnlinkOnClose(false)
			l.Close()
		}, ""},
		"a socket whose file was deleted": {func(w *world) {
			l := w.listen(filepath.Join(w.Host.Paths.KubeletRoot, "plugins", driver, "csi.sock"))
			if err := os.Remove(l.Addr().String()); err != nil {
				w.t.Fatal(err)
			}
		}, "csi.sock"},
		"a socket of another name whose file was deleted": {func(w *world) {
			w.Host.Paths.KubeletRoot = w.Mkdir(filepath.Join(w.Dir, "k"))
			l := w.listen(filepath.Join(w.Host.Paths.KubeletRoot, "plugins/x/y"))
			if err := os.Remove(l.Addr().String()); err != nil {
				w.t.Fatal(err)
			}
		}, "plugins/x/y"},
		"another driver that says so": {func(w *world) {
			startDriver(w, "b.example.com")
			w.csiNode = func() (*storagev1.CSINode, error) { return namesDrivers("b.example.com"), nil }
		}, ""},
		"it answers under another path, and is not in CSINode": {func(w *world) {
			startDriver(w, "A.example.com")
		}, "answers"},
		"the directory of plugins is a link": {func(w *world) {
			if err := os.Symlink(w.Mkdir(filepath.Join(w.Dir, "elsewhere")), filepath.Join(w.Host.Paths.KubeletRoot,
				"plugins")); err != nil {
				w.t.Fatal(err)
			}
		}, "not known"},
		"the state cannot be read": {func(w *world) {
			w.Write(w.driverFile(), "{")
		}, "not known"},
	} {
		t.Run(name, func(t *testing.T) {
			w := shortNode(t)
			test.arrange(w)
			why := w.needed(w.withNote(driver, "v-1"))
			if (why == "") != (test.want == "") || !strings.Contains(why, test.want) {
				t.Errorf("%q, want %q", why, test.want)
			}
		})
	}
}

func startDriver(w *world, name string) {
	w.t.Helper()
	d, err := fakecsi.Start(w.t.Context(), fakecsi.Options{Name: name, KubeletRoot: w.Host.Paths.KubeletRoot})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = d.Stop() })
}

// Sockets that do not answer, and mounts beside a driver's socket, are signs of the driver.
func TestDriverOddSockets(t *testing.T) {
	const driver = "a.example.com"
	for name, test := range map[string]struct {
		arrange func(w *world)
		want    string
	}{
		"a socket of another type": {func(w *world) {
			dir := w.Mkdir(filepath.Join(w.Host.Paths.KubeletRoot, "plugins/x"))
			conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "d"), Net: "unixgram"})
			if err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(func() { conn.Close() })
		}, "does not report which driver"},
		"a mount of its own": {func(w *world) {
			w.Mount("tmpfs", filepath.Join(w.Host.Paths.KubeletRoot, "plugins/A.example.com/mounts"), "tmpfs", 0)
		}, "is in use"},
		"more sockets than can be asked": {func(w *world) {
			dir := w.Mkdir(filepath.Join(w.Host.Paths.KubeletRoot, "plugins/x"))
			for i := range 201 {
				if err := unix.Mknod(filepath.Join(dir, itoa(i)), unix.S_IFSOCK|0o600, 0); err != nil {
					w.t.Fatal(err)
				}
			}
		}, "more than 200 sockets"},
	} {
		t.Run(name, func(t *testing.T) {
			w := shortNode(t)
			test.arrange(w)
			if why := w.needed(w.withNote(driver, "v")); !strings.Contains(why, test.want) {
				t.Errorf("%q, want %q", why, test.want)
			}
		})
	}
}
