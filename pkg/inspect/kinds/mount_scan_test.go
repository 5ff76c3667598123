package kinds

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// UIDs of the pods in tables: DEAD and LIVE.
const (
	MountsDead   = "11111111-1111-1111-1111-111111111111"
	MountsLiving = "22222222-2222-2222-2222-222222222222"
)

// MountScan makes a scan of a node with the given mount tables: the host's, and optionally kubelet's own. PODS in them is
// kubelet's directory of pods.
func MountScan(t testing.TB, table string, kubelets ...string) *hostscan.Scan {
	t.Helper()
	root := t.TempDir()
	expand := strings.NewReplacer("PODS", "/var/lib/kubelet/pods", "DEAD", MountsDead, "LIVE", MountsLiving).Replace
	for name, content := range map[string]string{
		"proc/7/mountinfo": expand(table),
		"var/lib/kubelet/pods/" + MountsDead + "/etc-hosts":   "",
		"var/lib/kubelet/pods/" + MountsLiving + "/etc-hosts": "",
		"proc/8/mountinfo": expand(strings.Join(kubelets, "")),
		"proc/self/ns/x":   "",
		"proc/8/ns/x":      "",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := &host.Host{Files: host.Files{Root: root}, Paths: host.Paths{InitPID: 7, KubeletRoot: "/var/lib/kubelet"}}
	links := map[string]string{"proc/self/ns/mnt": "mnt:[1]", "proc/8/ns/mnt": "mnt:[1]"}
	h.Kubelet.Process = func() (host.Process, error) { return host.Process{}, errors.New("not running") }
	if len(kubelets) > 0 {
		h.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: 8}, nil }
		links["proc/8/ns/mnt"] = "mnt:[2]"
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return hostscan.New(t.Context(), h, hostscan.Deadline{})
}
