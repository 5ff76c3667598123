package socket

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// pluginDir returns a folder with a short name, which sockets need.
func pluginDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugins")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// pluginSocket listens on a socket; if stale, it closes the listener and leaves the socket behind.
func pluginSocket(t *testing.T, path string, stale bool) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if stale {
		_ = l.Close()
		return
	}
	t.Cleanup(func() { _ = l.Close() })
}

func TestPluginSockets(t *testing.T) {
	dir, outside := pluginDir(t), pluginDir(t)
	pluginSocket(t, filepath.Join(dir, "a-reg.sock"), false)
	pluginSocket(t, filepath.Join(dir, "sub/b.sock"), true)
	pluginSocket(t, filepath.Join(dir, ".hidden.sock"), true)
	pluginSocket(t, filepath.Join(outside, "c.sock"), true)
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		os.Symlink(filepath.Join(outside, "c.sock"), filepath.Join(dir, "link.sock")),
		os.Symlink(outside, filepath.Join(dir, "link")),
	); err != nil {
		t.Fatal(err)
	}
	got, err := PluginSockets((&host.Host{Paths: host.Paths{PluginRegistry: dir}}))
	want := []kubelet.PluginSocket{{Path: filepath.Join(dir, "a-reg.sock")}, {Path: filepath.Join(dir, "sub/b.sock")}}
	sorted := cmpopts.SortSlices(func(a, b kubelet.PluginSocket) bool { return a.Path < b.Path })
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(kubelet.PluginSocket{}, "Inode", "Changed"),
		sorted); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	for _, socket := range got {
		if socket.Inode == 0 || socket.Changed == 0 {
			t.Errorf("%+v has no identity", socket)
		}
	}
	if _, err := PluginSockets((&host.Host{Paths: host.Paths{PluginRegistry: filepath.Join(dir, "none")}})); !errors.Is(
		err, fs.ErrNotExist) {
		t.Errorf("registry that is not there: %v", err)
	}
}

func TestPluginConnect(t *testing.T) {
	dir, outside := pluginDir(t), pluginDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	pluginSocket(t, at("live"), false)
	pluginSocket(t, at("stale"), true)
	pluginSocket(t, filepath.Join(outside, "live"), false)
	long := filepath.Join(dir, strings.Repeat("d", 100))
	if err := errors.Join(
		os.WriteFile(at("file"), nil, 0o600), unix.Mkfifo(at("fifo"), 0o600),
		os.Symlink(at("live"), at("link")), os.Symlink(outside, at("folder")),
		os.Mkdir(long, 0o700), os.Link(at("live"), filepath.Join(long, "live")),
	); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, socket string
		want         error  // errors.Is
		text         string // or part of the message
	}{
		{name: "live", socket: at("live")},
		{name: "longer than sun_path", socket: filepath.Join(long, "live")},
		{name: "stale", socket: at("stale"), want: syscall.ECONNREFUSED},
		{name: "missing", socket: at("none"), want: fs.ErrNotExist},
		{name: "file", socket: at("file"), text: "not a socket"},
		{name: "pipe", socket: at("fifo"), text: "not a socket"},
		{name: "link", socket: at("link"), text: "not a socket"},
		{name: "link of a folder", socket: at("folder/live"), want: syscall.ELOOP},
		{name: "outside", socket: filepath.Join(outside, "live"), want: kubelet.ErrOutside},
		{name: "a neighbour of the root", socket: dir + "x/live", want: kubelet.ErrOutside},
		{name: "upwards", socket: dir + "/../x", text: "not a clean absolute path"},
		{name: "relative", socket: "live", text: "not a clean absolute path"},
		{name: "abstract", socket: "@live", text: "not a clean absolute path"},
		{name: "another scheme", socket: "tcp://127.0.0.1:80", text: "not a clean absolute path"},
		{name: "not UTF-8", socket: dir + "/\xff", text: "not a clean absolute path"},
		{name: "endless", socket: dir + "/" + strings.Repeat("x", 5000), text: "not a clean absolute path"},
	}
	plugins := kubelet.NewPlugins("/nowhere", dir)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := plugins.Connect(t.Context(), tt.socket)
			switch {
			case tt.want == nil && tt.text == "" && err != nil:
				t.Error(err)
			case tt.want != nil && !errors.Is(err, tt.want):
				t.Errorf("got %v, want %v", err, tt.want)
			case tt.text != "" && (err == nil || !strings.Contains(err.Error(), tt.text)):
				t.Errorf("got %v, want %q", err, tt.text)
			}
		})
	}
}

// A plugin that accepts but never answers takes only its deadline, in every call.
func TestPluginThatNeverAnswers(t *testing.T) {
	dir := pluginDir(t)
	socket := filepath.Join(dir, "mute")
	pluginSocket(t, socket, false)
	plugins := kubelet.NewPlugins(dir)
	for name, call := range map[string]func(context.Context) error{
		"GetInfo": func(ctx context.Context) error { _, err := plugins.GetInfo(ctx, socket); return err },
		"Probe":   func(ctx context.Context) error { _, err := plugins.Probe(ctx, socket); return err },
		"NodeID":  func(ctx context.Context) error { _, err := plugins.NodeID(ctx, socket); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

func TestPluginInfoValidate(t *testing.T) {
	good := kubelet.PluginInfo{Type: registration.CSIPlugin, Name: "ebs.csi.aws.com", Endpoint: "/x",
		Versions: []string{"1.0.0"}}
	tests := []struct {
		name string
		edit func(i *kubelet.PluginInfo)
		ok   bool
	}{
		{"good", func(*kubelet.PluginInfo) {}, true},
		{"device plugin", func(i *kubelet.PluginInfo) {
			i.Type, i.Name = registration.DevicePlugin, "nvidia.com/gpu"
		}, true},
		{"name with a slash", func(i *kubelet.PluginInfo) { i.Name = "../../etc" }, false},
		{"empty name", func(i *kubelet.PluginInfo) { i.Name = "" }, false},
		{"name too long", func(i *kubelet.PluginInfo) { i.Name = strings.Repeat("a", 64) }, false},
		{"longest name", func(i *kubelet.PluginInfo) { i.Name = strings.Repeat("a", 63) }, true},
		{"endpoint too long", func(i *kubelet.PluginInfo) { i.Endpoint = strings.Repeat("/a", 1000) }, false},
		{"not UTF-8", func(i *kubelet.PluginInfo) { i.Versions = []string{"\xff"} }, false},
		{"many versions", func(i *kubelet.PluginInfo) { i.Versions = make([]string, 100) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			info := good
			tt.edit(&info)
			if err := info.Validate(); (err == nil) != tt.ok {
				t.Errorf("error %v, want ok %t", err, tt.ok)
			}
		})
	}
}
