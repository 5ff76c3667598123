package checks

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
)

// A volume unmounted while the check runs makes it neither uncertain nor faulty.
func TestUnmountedMeanwhile(t *testing.T) {
	const root = "27 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
	for name, line := range map[string]string{
		"filesystem-readonly": "28 27 8:16 / /volume rw - xfs /dev/sdb rw\n",
		"disk-space":          "28 27 8:16 / /volume rw - xfs /dev/sdb rw\n",
		"hung-mounts":         "28 27 0:50 / /volume rw - nfs4 far:/ rw\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Host(t)
			put := func(file, text string) {
				file = filepath.Join(h.Files.Root, file)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, device := range []string{"8:1", "8:16"} {
				put("sys/dev/block/"+device+".d/size", "100")
				if err := os.Symlink(device+".d", filepath.Join(h.Files.Root, "sys/dev/block", device)); err != nil {
					t.Fatal(err)
				}
			}
			put("proc/1/mountinfo", root+line)
			asked := false
			h.Prober.Do = func(_ context.Context, r probe.ProbeRequest) (probe.ProbeAnswer, error) {
				if r.Path != "/volume" {
					return probe.ProbeAnswer{FreeBytes: 50, RootBytes: 50, TotalBytes: 100}, nil
				}
				asked = true
				put("proc/1/mountinfo", root)
				return probe.ProbeAnswer{Errno: int(syscall.ENOENT)}, nil
			}
			findings, err := fresh(t, name).Run(t.Context(), h)
			if len(findings) > 0 || err != nil || !asked {
				t.Errorf("asked %v: %+v, %v", asked, findings, err)
			}
		})
	}
}
