package mount

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Links are followed only on the given mounts, and in chains, loops and out of the root as by the kernel.
func TestFollow(t *testing.T) {
	root := t.TempDir()
	for name, target := range map[string]string{
		"var/lib/kubelet": "/data/kubelet", "data/kubelet/up": "../..", "data/kubelet/round": "round",
		"other/link": "/data", "var/chain": "lib/kubelet/up", "var/out": "../../../data",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	table := []Mount{{ID: 1, Point: "/"}, {ID: 2, Point: "/data"}, {ID: 3, Point: "/other"}, {ID: 4, Point: "/var/lib/x"}}
	for name, want := range map[string]string{
		"/":                        "/",
		"/var/lib/kubelet/plugins": "/data/kubelet/plugins",
		"/var/lib/kubelet/":        "/data/kubelet",
		"/var/chain/kubelet/a/b":   "/kubelet/a/b",
		"/var/out/kubelet":         "/data/kubelet",
		"/data/kubelet/round/x":    "/data/kubelet/round/x",
		"/var/absent/kubelet":      "/var/absent/kubelet",
		"/other/link/kubelet":      "/other/link/kubelet", // another mount, which may hang
		"/var/lib/x/y":             "/var/lib/x/y",
	} {
		if got := Follow(host.Files{Root: root}, table, map[int]bool{1: true, 2: true}, name); got != want {
			t.Errorf("%s leads to %s, want %s", name, got, want)
		}
	}
}
