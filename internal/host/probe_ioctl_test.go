package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Devices that do not know a command refuse it, and what is no device is not asked.
func TestProbeOfDevicesThatDoNotKnow(t *testing.T) {
	prober := host.NewProber()
	for _, op := range []host.ProbeOp{host.ProbeNVMeHealth, host.ProbeNVMeEBS, host.ProbeATAHealth, host.ProbeSCSIHealth, host.ProbeThinPools, host.ProbeMultipath} {
		answer, err := prober.Do(t.Context(), host.ProbeRequest{Op: op, Path: "/dev/null"})
		if err != nil || syscall.Errno(answer.Errno) != syscall.ENOTTY {
			t.Errorf("%s of /dev/null: %+v, %v", op, answer, err)
		}
		answer, err = prober.Do(t.Context(), host.ProbeRequest{Op: op, Path: "/dev/absent"})
		if err != nil || syscall.Errno(answer.Errno) != syscall.ENOENT {
			t.Errorf("%s of what is not there: %+v, %v", op, answer, err)
		}
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := prober.Do(t.Context(), host.ProbeRequest{Op: op, Path: file}); err == nil || !strings.Contains(err.Error(), "is no device") {
			t.Errorf("%s of a file: %v", op, err)
		}
	}
}
