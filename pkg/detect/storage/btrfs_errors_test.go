package storage

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func FuzzBtrfsStats(f *testing.F) {
	f.Add("write_errs 0\nread_errs 1\n")
	f.Add("invalid\n")
	f.Fuzz(func(t *testing.T, text string) {
		if counters, err := parseBtrfsStats(text); err != nil && counters != nil {
			t.Fatal("error and value")
		}
	})
}

// btrfsReasons runs the check and returns its findings about the test's filesystem, by the device behind it.
func btrfsReasons(t *testing.T, check detect.Check, device string) []string {
	t.Helper()
	findings, err := check.Run(t.Context(), &host.Host{Clock: host.Now})
	if _, none := errors.AsType[*finding.NotApplicableError](err); err != nil && !none {
		t.Fatal(err)
	}
	var reasons []string
	for _, f := range findings {
		if f.Facts["devices"] == device {
			reasons = append(reasons, string(f.Severity)+" "+f.Reason)
		}
	}
	return reasons
}

// Data that were changed behind the back of btrfs are noticed when they are read, counted, and reported until a person
// resets the counters.
func TestRealBtrfsErrors(t *testing.T) {
	btrfs, check := hosttest.NewLoopFS(t, "btrfs"), BtrfsErrors()
	need.Program(t, "btrfs")
	dir := t.TempDir()
	file, text := dir+"/file", bytes.Repeat([]byte("what was written "), 1000)
	btrfs.Mount(dir, "rw")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	btrfs.Unmount(dir)
	btrfs.Released()
	damage(t, btrfs.Image, text)
	btrfs.Mount(dir, "rw")
	expect := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, btrfsReasons(t, check, btrfs.Name())); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	expect()
	if _, err := os.ReadFile(file); !errors.Is(err, syscall.EIO) {
		t.Fatalf("read of damaged data: %v", err)
	}
	expect("warning " + reasonBtrfsErrors)
	check = BtrfsErrors() // another agent, which has not seen them rise
	expect("info " + reasonBtrfsRecorded)
	if out, err := exec.Command("btrfs", "device", "stats", "-z", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	expect()
}

// damage changes a byte of a text in an image.
func damage(t *testing.T, image string, text []byte) {
	t.Helper()
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	buffer := make([]byte, 4<<20)
	for at := int64(0); ; at += int64(len(buffer) - len(text)) { // the pieces overlap
		n, err := file.ReadAt(buffer, at)
		if i := bytes.Index(buffer[:n], text); i >= 0 {
			if _, err := file.WriteAt([]byte("X"), at+int64(i)); err != nil {
				t.Fatal(err)
			}
			return
		}
		if err != nil {
			t.Fatalf("the text is not in the image: %v", err)
		}
	}
}
