package probe

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Each card of this machine gives the same answer as ethtool. Loopback has no counters, which is an answer too.
func TestDriverCounters(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		counters, err := driverCounters(fd, e.Name())
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s: %v", e.Name(), err)
		}
		for name := range counters {
			if name == "" || strings.ContainsAny(name, "\x00/") {
				t.Errorf("%s: counter %q", e.Name(), name)
			}
		}
		t.Logf("%s: %d counters", e.Name(), len(counters))
	}
	if _, err := driverCounters(fd, "absent"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("absent: %v", err)
	}
	if _, err := driverCounters(fd, strings.Repeat("x", 20)); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a name that is too long: %v", err)
	}
}

func TestProbeFabric(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"mlx5_0/ports/1/state": "4: ACTIVE\n", "mlx5_0/ports/1/counters/link_downed": "3\n", "mlx5_0/node_guid": "0\n",
		"efa_0/ports/1/state": "4: ACTIVE\n", "efa_0/ports/1/hw_counters/rx_drops": strings.Repeat("9", 100),
		"bare/node_guid": "0",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := probeFabric(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"mlx5_0/1/state": "4: ACTIVE", "mlx5_0/1/link_downed": "3", "efa_0/1/state": "4: ACTIVE",
	}
	if diff := cmp.Diff(want, answer.Values); diff != "" {
		t.Error(diff)
	}
	if answer, err := probeFabric(filepath.Join(dir, "absent")); err != nil || answer.Errno != int(unix.ENOENT) {
		t.Errorf("absent: %+v, %v", answer, err)
	}
}
