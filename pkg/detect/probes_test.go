package detect

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// A volume that is unmounted during the look is no doubt, and no fault.
func TestUnmountedMeanwhile(t *testing.T) {
	const root = "27 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
	for name, line := range map[string]string{
		filesystemReadonlyID: "28 27 8:16 / /volume rw - xfs /dev/sdb rw\n",
		diskSpaceID:          "28 27 8:16 / /volume rw - xfs /dev/sdb rw\n",
		hungMountsID:         "28 27 0:50 / /volume rw - nfs4 far:/ rw\n",
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
			h.Prober.Do = func(_ context.Context, r host.ProbeRequest) (host.ProbeAnswer, error) {
				if r.Path != "/volume" {
					return host.ProbeAnswer{FreeBytes: 50, RootBytes: 50, TotalBytes: 100}, nil
				}
				asked = true
				put("proc/1/mountinfo", root)
				return host.ProbeAnswer{Errno: int(syscall.ENOENT)}, nil
			}
			findings, err := fresh(t, name).Run(t.Context(), h)
			if len(findings) > 0 || err != nil || !asked {
				t.Errorf("asked %v: %+v, %v", asked, findings, err)
			}
		})
	}
}

// Of a filesystem that hung and is gone nothing is kept once the kernel has let its probe go.
func TestHungProbesAreForgotten(t *testing.T) {
	h, ended := hosttest.Host(t), make(chan struct{})
	h.Prober.Batch = func(context.Context, time.Duration, []host.ProbeRequest) []host.ProbeResult {
		return []host.ProbeResult{{Err: host.ErrHung, Ended: ended}}
	}
	hung := hungProbes{}
	hung.all(t.Context(), h, time.Second, []string{"8:1 27"}, []host.ProbeRequest{{Path: "/volume"}})
	if len(hung) != 1 {
		t.Fatalf("%d probes hang, want 1", len(hung))
	}
	close(ended)
	hung.all(t.Context(), h, time.Second, nil, nil)
	if len(hung) != 0 {
		t.Errorf("%d probes that have ended are remembered", len(hung))
	}
}
