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

// While one test program owns the machine, others wait.
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
	alone, order := filepath.Join(folder("test/need"), "alone"), filepath.Join(dir, "order")
	lock, err := os.Create(filepath.Join(folder(".cache"), "alone.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := errors.Join(os.Symlink(script, alone), unix.Flock(int(lock.Fd()), unix.LOCK_EX)); err != nil {
		t.Fatal(err)
	}
	note := func(name, shell string, argv ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), shell, append(argv, "-c", "echo "+name+" $NODEAGENT_ALONE $GOGC >>"+order)...)
		cmd.Env = append(os.Environ(), "GOGC=400")
		return cmd
	}
	waits := note("waits", alone, "sh")
	err = waits.Start()
	const often = 20 // rounds in which the other one would also have got it
	for range often {
		err = errors.Join(err, note("holds", "sh").Run())
	}
	if err := errors.Join(err, unix.Flock(int(lock.Fd()), unix.LOCK_UN), waits.Wait()); err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("holds 400\n", often) + "waits 1\n"
	if got, err := os.ReadFile(order); string(got) != want {
		t.Errorf("they ran in this order: %q, %v", got, err)
	}
}
