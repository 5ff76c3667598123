package agent

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// rememberedNode is a machine without a running kubelet, and the agent's stored layout of it.
type rememberedNode struct {
	files host.Files
	cfg   config.Config
}

func newRememberedNode(t *testing.T, l layout) rememberedNode {
	t.Helper()
	n := rememberedNode{files: host.Files{Root: t.TempDir()}}
	n.cfg.StateDir = t.TempDir()
	for _, name := range []string{"proc/1/stat", "proc/sys/kernel/hostname", "data/kubelet/x", "data/kubeconfig",
		"data/cni/bin/x"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(n.files.Root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(n.files.Root, name), "")
	}
	data, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	write(t, layoutFile(n.cfg), string(data))
	return n
}

func remembered() layout {
	paths := discover.DefaultPaths()
	paths.KubeletRoot, paths.Kubeconfig, paths.CNIBinDirs = "/data/kubelet", "/data/kubeconfig",
		[]string{"/data/cni/bin"}
	return layout{Paths: paths, NodeName: "node-a", KubeconfigNamed: true}
}

// The stored layout is verified again on load: users other than root must not be able to change the file or any path in
// it.
func TestRememberedLayout(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(n rememberedNode) error
		note  string // empty: it is trusted
	}{
		"fine": {func(rememberedNode) error { return nil }, ""},
		"kubeconfig is not here": {func(n rememberedNode) error {
			return os.Remove(n.files.Root + "/data/kubeconfig")
		}, ""},
		"readable by others": {func(n rememberedNode) error {
			return os.Chmod(layoutFile(n.cfg), 0o644)
		}, "not a file of root's alone"},
		"writable by others": {func(n rememberedNode) error {
			return os.Chmod(layoutFile(n.cfg), 0o606)
		}, "not a file of root's alone"},
		"a user's": {func(n rememberedNode) error {
			if os.Geteuid() != 0 {
				return os.Chmod(layoutFile(n.cfg), 0o644)
			}
			return os.Chown(layoutFile(n.cfg), 65534, 65534)
		}, "not a file of root's alone"},
		"a link": {func(n rememberedNode) error {
			name := layoutFile(n.cfg)
			return errors.Join(os.Rename(name, name+".other"), os.Symlink(name+".other", name))
		}, "too many levels of symbolic links"},
		"too large": {func(n rememberedNode) error {
			return os.Truncate(layoutFile(n.cfg), maxLayout+1)
		}, "larger than"},
		"torn": {func(n rememberedNode) error {
			return os.Truncate(layoutFile(n.cfg), 10)
		}, "layout.json"},
		"root dir of others": {func(n rememberedNode) error {
			return os.Chmod(n.files.Root+"/data/kubelet", 0o777)
		}, "/data/kubelet"},
		"kubeconfig of others": {func(n rememberedNode) error {
			return os.Chmod(n.files.Root+"/data/kubeconfig", 0o666)
		}, "/data/kubeconfig"},
		"programs of others": {func(n rememberedNode) error {
			return os.Chmod(n.files.Root+"/data/cni", 0o777)
		}, "/data/cni"},
		"folder above of others": {func(n rememberedNode) error {
			return os.Chmod(n.files.Root+"/data", 0o777)
		}, "/data"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newRememberedNode(t, remembered())
			if err := test.spoil(n); err != nil {
				t.Fatal(err)
			}
			found, err := discoverLayout(n.files, n.cfg)
			if err != nil {
				t.Fatal(err)
			}
			believed := found.Paths.KubeletRoot == "/data/kubelet" && found.Paths.Kubeconfig == "/data/kubeconfig" &&
				found.KubeconfigNamed
			untouched := found.Paths.KubeletRoot == discover.DefaultPaths().KubeletRoot && !found.KubeconfigNamed &&
				found.NodeName != "node-a"
			if test.note == "" && !believed || test.note != "" && !untouched {
				t.Errorf("found %+v", found)
			}
			if notes := strings.Join(found.Notes, "\n"); !strings.Contains(notes, test.note) {
				t.Errorf("no note says %q: %s", test.note, notes)
			}
		})
	}
}

// Only the configuration can permit a kubelet elsewhere; a stored layout cannot.
func TestRememberedLayoutGivesNoLeave(t *testing.T) {
	l := remembered()
	l.Paths.KubeletElsewhere = true
	n := newRememberedNode(t, l)
	for _, want := range []bool{false, true} {
		n.cfg.Paths.KubeletElsewhere = want
		found, err := discoverLayout(n.files, n.cfg)
		if err != nil || found.Paths.KubeletRoot != "/data/kubelet" || found.Paths.KubeletElsewhere != want {
			t.Errorf("%+v, %v", found.Paths, err)
		}
	}
}

// A layout passes the same verification before it is stored, and is not written through a link.
func TestKeepLayout(t *testing.T) {
	l := remembered()
	for name, spoil := range map[string]func(n rememberedNode) error{
		"":                   func(rememberedNode) error { return nil },
		"programs of others": func(n rememberedNode) error { return os.Chmod(n.files.Root+"/data/cni/bin", 0o777) },
		"kubeconfig of others": func(n rememberedNode) error {
			return os.Chmod(n.files.Root+"/data/kubeconfig", 0o666)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newRememberedNode(t, layout{})
			if err := errors.Join(os.Remove(layoutFile(n.cfg)), spoil(n)); err != nil {
				t.Fatal(err)
			}
			target := filepath.Join(n.cfg.StateDir, "victim")
			write(t, target, "untouched")
			if err := os.Symlink(target, layoutFile(n.cfg)+".new"); err != nil {
				t.Fatal(err)
			}
			clients := &Clients{Host: &host.Host{Files: n.files}, found: discover.Discovery{Paths: l.Paths,
				NodeName: l.NodeName, KubeletRunning: true, KubeconfigNamed: true}}
			clients.KeepLayout(n.cfg)
			info, err := os.Lstat(layoutFile(n.cfg))
			if kept := err == nil; kept != (name == "") || kept && info.Mode() != 0o600 {
				t.Errorf("kept: %v, %v", info, err)
			}
			if data, err := os.ReadFile(target); err != nil || string(data) != "untouched" {
				t.Errorf("written through a link: %q, %v", data, err)
			}
		})
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Kubelet reads its layout when it starts: while the same process runs, discovery runs only each tenth time.
func TestLayoutMoved(t *testing.T) {
	root := t.TempDir()
	kubelet := func(rootDir string) {
		hosttest.Write(t, root, "proc/100/stat", "100 (kubelet) S 1"+hosttest.StatTail)
		hosttest.Write(t, root, "proc/100/cmdline", "/usr/bin/kubelet\x00--root-dir="+rootDir+"\x00--hostname-override=n\x00")
		hosttest.RootsDaemons(t, root)
	}
	kubelet("/data/a")
	files := host.Files{Root: root}
	found, err := discover.Discover(files, host.Paths{})
	if err != nil || !found.KubeletRunning {
		t.Fatalf("%+v, %v", found, err)
	}
	running := host.Process{PID: 100, StartTime: 1}
	d := &Clients{found: found, Host: &host.Host{Files: files}}
	d.Host.Kubelet.Process = func() (host.Process, error) { return running, nil }
	d.Host.Runtime.Process = func(context.Context) (host.Process, error) { return host.Process{PID: 5}, nil }
	moved := func() bool { return d.LayoutMoved(t.Context(), config.Config{}) }
	if moved() {
		t.Error("moved at once")
	}
	kubelet("/data/b")
	for range layoutChecks {
		if moved() {
			t.Error("the files of the same kubelet were read again")
		}
	}
	if !moved() {
		t.Error("not found by the tenth check")
	}
	if !moved() {
		t.Error("forgotten")
	}
	kubelet("/data/a")
	if moved() {
		t.Error("moved back, and still told")
	}
	kubelet("/data/b")
	running.StartTime++
	if !moved() {
		t.Error("another kubelet was not asked")
	}
}
