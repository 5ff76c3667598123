package mutate

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/need"
)

// lockPaths returns the names that a test locks: a file in a directory that a service manager may remove, and another
// directory.
func lockPaths(t *testing.T) (file, dir string) {
	t.Helper()
	root := t.TempDir()
	dir = filepath.Join(root, "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "run", "release.lock"), dir
}

func take(t *testing.T, names ...string) *ReleaseLock {
	t.Helper()
	l, err := Lock(names...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Unlock() })
	return l
}

func TestLockOnce(t *testing.T) {
	file, dir := lockPaths(t)
	first := take(t, file, dir)
	if err := first.Held(); err != nil {
		t.Error(err)
	}
	for _, names := range [][]string{{file}, {dir}, {file, dir}, {dir, file}, {filepath.Join(dir, "other"), dir}} {
		if _, err := Lock(names...); !errors.Is(err, ErrBusy) {
			t.Errorf("%q a second time: %v", names, err)
		}
	}
	if err := first.Unlock(); err != nil {
		t.Error(err)
	}
	take(t, file, dir)
	if _, err := Lock(); err == nil {
		t.Error("a lock of nothing")
	}
}

// Locking is all or nothing.
func TestLockAllOrNothing(t *testing.T) {
	file, dir := lockPaths(t)
	other := take(t, dir)
	if _, err := Lock(file, dir); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	other.Unlock()
	take(t, file)
}

// systemd removes a service's runtime directory with all its content when the service ends, even if the lock is held.
func TestLockFileRemoved(t *testing.T) {
	for name, remake := range map[string]func(t *testing.T, file string){
		"removed": func(*testing.T, string) {},
		"removed and made again": func(t *testing.T, file string) {
			if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			file, dir := lockPaths(t)
			first := take(t, file, dir)
			if err := os.RemoveAll(filepath.Dir(file)); err != nil {
				t.Fatal(err)
			}
			remake(t, file)
			if err := first.Held(); !errors.Is(err, ErrChanged) {
				t.Errorf("the first believes to hold it: %v", err)
			}
			if _, err := Lock(file, dir); !errors.Is(err, ErrBusy) {
				t.Errorf("a second holder: %v", err)
			}
			if err := first.Held(); !errors.Is(err, ErrChanged) {
				t.Errorf("the first believes to hold it: %v", err)
			}
		})
	}
}

// If the file is removed after it was opened and before it is locked, the lock is worthless.
func TestLockTakesWhatIsNamed(t *testing.T) {
	file, _ := lockPaths(t)
	opened := 0
	locked, err := lockOne(file, func(name string) (*os.File, error) {
		f, err := openLock(name)
		if opened++; opened == 1 {
			os.Remove(name)
		}
		return f, err
	})
	if err != nil || opened != 2 {
		t.Fatalf("opened %d times: %v", opened, err)
	}
	defer locked.Close()
	if _, err := Lock(file); !errors.Is(err, ErrBusy) {
		t.Errorf("a second holder: %v", err)
	}
}

func TestLockFollowsNoLink(t *testing.T) {
	file, dir := lockPaths(t)
	os.Mkdir(filepath.Dir(file), 0o700)
	if err := os.Symlink(dir, file); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(file); err == nil || errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
}

// If another process holds the lock, the error names that process.
func TestLockNamesItsHolder(t *testing.T) {
	file, _ := lockPaths(t)
	take(t, file).Unlock()
	holder := exec.Command("flock", "--exclusive", file, "--command", "echo locked; read line")
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	need.Kernel(t, "flock", holder.Start())
	t.Cleanup(func() { in.Close(); holder.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, err = Lock(file)
	if want := fmt.Sprintf("by process %d (\"flock\")", holder.Process.Pid); !errors.Is(err, ErrBusy) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
