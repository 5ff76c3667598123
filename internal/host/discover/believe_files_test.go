package discover_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/test/need"
)

// Files named by kubelet and containerd are read only if they belong to root alone, with each folder and link on the
// way.
func TestFilesThatAreNotRootsAreNotRead(t *testing.T) {
	const kubeletYAML = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: " +
		"666\nstaticPodPath: /evil\n"
	for name, spoil := range map[string]func(t *testing.T, root string){
		"file of a user's":          func(t *testing.T, root string) { chown(t, root+"/srv/conf/file") },
		"file that all may write":   func(t *testing.T, root string) { chmod(t, root+"/srv/conf/file", 0o666) },
		"file that a group may":     func(t *testing.T, root string) { chmod(t, root+"/srv/conf/file", 0o660) },
		"folder of a user's":        func(t *testing.T, root string) { chown(t, root+"/srv/conf") },
		"folder that all may write": func(t *testing.T, root string) { chmod(t, root+"/srv/conf", 0o777) },
		"folder with a sticky bit": func(t *testing.T, root string) {
			chmod(t, root+"/srv/conf", 0o777|os.ModeSticky)
		},
		"folder above of a user's": func(t *testing.T, root string) { chown(t, root+"/srv") },
		"link out of a good folder": func(t *testing.T, root string) {
			moveTo(t, root, "/home/u/file", func() { chown(t, root+"/home/u") })
		},
		"link to a user's file": func(t *testing.T, root string) {
			moveTo(t, root, "/opt/file", func() { chown(t, root+"/opt/file") })
		},
		"link of a user's": func(t *testing.T, root string) {
			moveTo(t, root, "/opt/file", func() { lchown(t, root+"/srv/conf/file") })
		},
		"relative link": func(t *testing.T, root string) {
			moveTo(t, root, "../../opt/file", func() { chmod(t, root+"/opt", 0o777) })
		},
		"FIFO in place of a file": fifo,
		"folder in place of a file": func(t *testing.T, root string) {
			replace(t, root, func(n string) error { return os.Mkdir(n, 0o755) })
		},
		"link in a circle to itself": func(t *testing.T, root string) {
			replace(t, root, func(n string) error { return os.Symlink("file", n) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			for what, test := range map[string]struct {
				text string
				proc
			}{
				"kubelet's": {kubeletYAML, proc{args: []string{"kubelet", "--config=/srv/conf/file"}}},
				"drop-in":   {kubeletYAML, proc{args: []string{"kubelet", "--config-dir=/srv/conf"}}},
				"containerd's": {"root = '/evil'\nstate = '/evil'\n",
					proc{comm: "containerd", exe: "/usr/bin/containerd", args: []string{"containerd", "-c",
						"/srv/conf/file"}}},
				"import of containerd's": {"root = '/evil'\nstate = '/evil'\n",
					proc{comm: "containerd", exe: "/usr/bin/containerd", args: []string{"containerd", "-c",
						"/etc/c.toml"}}},
			} {
				t.Run(what, func(t *testing.T) {
					root := machine(t)
					put(t, root+"/etc/c.toml", "imports = ['/srv/conf/file']\n")
					put(t, root+"/srv/conf/file", test.text)
					put(t, root+"/opt/x", "")
					test.write(t, root, 900)
					if what == "drop-in" {
						link(t, "file", root+"/srv/conf/10-a.conf")
					}
					spoil(t, root)
					d, err := discover.Discover(host.Files{Root: root}, host.Paths{})
					if err != nil {
						t.Fatal(err)
					}
					if text := fmt.Sprintf("%+v", d.Paths); strings.Contains(text, "evil") ||
						strings.Contains(text, "666") {
						t.Errorf("found %s", text)
					}
					if !strings.Contains(strings.Join(d.Notes, "\n"), "file") &&
						!strings.Contains(strings.Join(d.Notes, "\n"), "conf") {
						t.Errorf("nothing says why: %q", d.Notes)
					}
				})
			}
		})
	}
}

func lchown(t *testing.T, name string) {
	t.Helper()
	need.Root(t, "gives a link away")
	if err := os.Lchown(name, 65534, 65534); err != nil {
		t.Fatal(err)
	}
}

// moveTo moves the file elsewhere and leaves a link.
func moveTo(t *testing.T, root, target string, then func()) {
	t.Helper()
	to := filepath.Join(root, target)
	if !filepath.IsAbs(target) {
		to = filepath.Join(root, "srv/conf", target)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(root+"/srv/conf/file", to),
		os.Symlink(target, root+"/srv/conf/file")); err != nil {
		t.Fatal(err)
	}
	then()
}

func replace(t *testing.T, root string, with func(name string) error) {
	t.Helper()
	name := root + "/srv/conf/file"
	if err := errors.Join(os.Remove(name), with(name)); err != nil {
		t.Fatal(err)
	}
}

func fifo(t *testing.T, root string) {
	t.Helper()
	replace(t, root, func(name string) error { return syscall.Mkfifo(name, 0o600) })
}
