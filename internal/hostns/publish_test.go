package hostns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

// makeDirs makes a runtime directory and a state directory like those of a node.
func makeDirs(t *testing.T) (dir, keep string) {
	t.Helper()
	t.Cleanup(ownedtest.Temp())
	base, err := os.MkdirTemp("", "publish")
	if err != nil {
		t.Fatal(err)
	}
	dir, keep = filepath.Join(base, "run"), filepath.Join(base, "state")
	if err := os.Mkdir(keep, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir, keep
}

// The link on the host leads to this program, even after its process was killed and its PID reused: no part of the path
// leads through /proc.
func TestPublishOutlivesTheProcess(t *testing.T) {
	dir, keep := makeDirs(t)
	if _, err := Publish(dir, keep); err != nil {
		t.Fatal(err)
	}
	path, err := filepath.EvalSymlinks(filepath.Join(dir, "nodeagent"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || path != filepath.Join(keep, "nodeagent") || info.Mode() != 0o755 {
		t.Fatalf("the program is %s, %v, %v", path, info, err)
	}
	if err := owned.Program(filepath.Join(dir, "nodeagent")); err != nil {
		t.Error(err)
	}
	got, err1 := os.ReadFile(path)
	want, err2 := os.ReadFile("/proc/self/exe")
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(got, want) {
		t.Errorf("it is not this program: %d bytes, want %d, %v", len(got), len(want), err)
	}
	out, err := exec.CommandContext(t.Context(), path, "-test.list=^TestEnter$").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "TestEnter") {
		t.Errorf("it cannot be run: %v: %s", err, out)
	}
}

func TestPublish(t *testing.T) {
	dir, keep := makeDirs(t)
	link, program := filepath.Join(dir, "nodeagent"), filepath.Join(keep, "nodeagent")
	remove, err := Publish(dir, keep)
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Publish(dir, keep)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := os.Stat(program); err != nil || !os.SameFile(first, second) {
		t.Errorf("the same program was written once more: %v", err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(link); err != nil {
		t.Errorf("another agent's program was taken away: %v", err)
	}
	if err := again(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{link, program} {
		if _, err := os.Lstat(name); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
}

// An existing file in place of the copy is never trusted, and a link of an earlier agent is removed.
func TestPublishReplacesWhatIsThere(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	other := append([]byte("x"), self[1:]...)
	for name, put := range map[string]func(t *testing.T, program string){
		"another program of the same size": func(t *testing.T, program string) { write(t, program, other, 0o755) },
		"one that others may write":        func(t *testing.T, program string) { write(t, program, self, 0o777) },
		"a link": func(t *testing.T, program string) {
			if err := os.Symlink("/proc/self/exe", program); err != nil {
				t.Fatal(err)
			}
		},
		"a link where the copy is made": func(t *testing.T, program string) {
			if err := os.Symlink("/etc/hostname", program+".new"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, keep := makeDirs(t)
			program := filepath.Join(keep, "nodeagent")
			put(t, program)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(fmt.Sprintf("/proc/%d/exe", os.Getpid()),
				filepath.Join(dir, "nodeagent")); err != nil {
				t.Fatal(err)
			}
			if _, err := Publish(dir, keep); err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(program)
			if err != nil || info.Mode() != 0o755 {
				t.Fatalf("%v, %v", info, err)
			}
			if got, err := os.ReadFile(program); err != nil || !bytes.Equal(got, self) {
				t.Errorf("it is not this program: %v", err)
			}
			if to, err := os.Readlink(filepath.Join(dir, "nodeagent")); to != program {
				t.Errorf("the link leads to %s, %v", to, err)
			}
		})
	}
}

// If no copy can be kept safely, there is none, and no old link to a process either.
func TestPublishRefuses(t *testing.T) {
	dir, keep := makeDirs(t)
	if err := os.Chmod(keep, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "nodeagent")
	if err := os.Symlink("/proc/1/exe", link); err != nil {
		t.Fatal(err)
	}
	if _, err := Publish(dir, keep); !errors.Is(err, owned.ErrOthers) {
		t.Errorf("published where all may write: %v", err)
	}
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Errorf("the link to a process is still there: %v", err)
	}
}

func write(t *testing.T, name string, data []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}
