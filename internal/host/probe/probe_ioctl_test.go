package probe_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// A device that does not know a command refuses it, and a file that is not a device gets none.
func TestProbeOfDevicesThatDoNotKnow(t *testing.T) {
	prober := probe.NewProber()
	for _, op := range []probe.ProbeOp{probe.ProbeNVMeHealth, probe.ProbeNVMeEBS, probe.ProbeATAHealth,
		probe.ProbeSCSIHealth, probe.ProbeThinPools, probe.ProbeMultipath} {
		answer, err := prober.Do(t.Context(), probe.ProbeRequest{Op: op, Path: "/dev/null"})
		if err != nil || syscall.Errno(answer.Errno) != syscall.ENOTTY {
			t.Errorf("%s of /dev/null: %+v, %v", op, answer, err)
		}
		answer, err = prober.Do(t.Context(), probe.ProbeRequest{Op: op, Path: "/dev/absent"})
		if err != nil || syscall.Errno(answer.Errno) != syscall.ENOENT {
			t.Errorf("%s of what is not there: %+v, %v", op, answer, err)
		}
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := prober.Do(t.Context(), probe.ProbeRequest{Op: op, Path: file}); err == nil ||
			!strings.Contains(err.Error(), "is no device") {
			t.Errorf("%s of a file: %v", op, err)
		}
	}
}
