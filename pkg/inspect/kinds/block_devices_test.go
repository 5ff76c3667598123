package kinds_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/need"
)

// Real loop devices: of a living pod, of a deleted one, without an owner, and of an administrator.
func TestRealLoopDevices(t *testing.T) {
	n := newNode(t)
	need.Program(t, "losetup")
	attach := func(file string) string {
		t.Helper()
		if err := os.Truncate(n.Write("", file), 1<<20); err != nil {
			t.Fatal(err)
		}
		file = filepath.Join(n.Host.Paths.KubeletRoot, file)
		out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
		need.Kernel(t, "a free loop device", err)
		device := strings.TrimSpace(string(out))
		t.Cleanup(func() {
			if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
				t.Errorf("%s", out)
			}
		})
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		return device
	}
	want := map[string]object.Verdict{attach("pods/" + living + "/disk"): object.Live,
		attach("pods/" + dead + "/disk"):                             object.Leftover,
		attach("plugins/kubernetes.io/csi/volumeDevices/publish/pv"): object.Unowned}
	attach("../admin")
	report := n.ripen(t, object.History{}, n.inspector())
	if diff := cmp.Diff(want, verdictsByName(report, object.BlockDevice,
		func(o object.Assessment) string { return o.ID })); diff != "" {
		t.Errorf("%s\n%+v", diff, report.Errors)
	}
}
