package need

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// While a test program has the machine, others wait, but for those that have all of their own.
func TestAlone(t *testing.T) {
	dir := t.TempDir()
	folder := func(name string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(name, 0o755); err != nil {
			t.Fatal(err)
		}
		return name
	}
	script, err := filepath.Abs("alone")
	if err != nil {
		t.Fatal(err)
	}
	alone := filepath.Join(folder("test/need"), "alone")
	lock, err := os.Create(filepath.Join(folder(".cache"), "alone.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := errors.Join(os.Symlink(script, alone), unix.Flock(int(lock.Fd()), unix.LOCK_EX), os.WriteFile(
		filepath.Join(folder("apart"), "main_test.go"), []byte("mutatetest.SharedRoot()"), 0o600)); err != nil {
		t.Fatal(err)
	}
	run := func(pkg string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), alone, "sh", "-c", "echo "+pkg+" $NODEAGENT_ALONE $GOGC >>../order")
		cmd.Dir, cmd.Env = folder(pkg), append(os.Environ(), "GOGC=400")
		return cmd
	}
	whole := run("whole")
	err = whole.Start()
	const often = 20 // in which the other one would have come to it, too
	for range often {
		err = errors.Join(err, run("apart").Run())
	}
	if err := errors.Join(err, unix.Flock(int(lock.Fd()), unix.LOCK_UN), whole.Wait()); err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("apart 1\n", often) + "whole 1\n"
	if order, err := os.ReadFile(filepath.Join(dir, "order")); string(order) != want {
		t.Errorf("they ran in this order: %q, %v", order, err)
	}
}
