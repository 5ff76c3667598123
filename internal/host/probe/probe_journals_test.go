package probe

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestProbeJournals(t *testing.T) {
	dir := t.TempDir()
	answer, err := probeJournals(dir)
	if diff := cmp.Diff(ProbeAnswer{Values: map[string]string{}}, answer); diff != "" || err != nil {
		t.Errorf("empty: error %v (-want +got):\n%s", err, diff)
	}
	for _, name := range []string{"system.journal", "system@1-2.journal", "system@3-4.journal~",
		"user-0@5-6.journal~"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	answer, err = probeJournals(dir)
	if diff := cmp.Diff(ProbeAnswer{Values: map[string]string{"system@3-4.journal~": "", "user-0@5-6.journal~": ""}},
		answer); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	answer, err = probeJournals(filepath.Join(dir, "none"))
	if diff := cmp.Diff(ProbeAnswer{Errno: int(unix.ENOENT)}, answer); diff != "" || err != nil {
		t.Errorf("none: error %v (-want +got):\n%s", err, diff)
	}
}
