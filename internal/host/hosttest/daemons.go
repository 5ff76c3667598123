package hosttest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// RootsDaemons completes the processes of a fixture tree to those of a healthy node: unless the fixture defines it
// otherwise, kubelets, runtimes and all its other processes belong to root, are in the cgroup of a service and in the
// host's namespaces, and run a program of root's. A fixture needs to contain only its own subject.
func RootsDaemons(t testing.TB, root string) {
	t.Helper()
	if info, err := os.Stat(filepath.Join(root, "proc")); err == nil && !info.IsDir() {
		return // a broken fixture needs it so
	}
	stats, err := filepath.Glob(filepath.Join(root, "proc/[0-9]*/stat"))
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range []string{"1", "self"} { // they stand for the host
		if err := absent(filepath.Join(root, "proc", process, "ns/mnt"), hostMounts); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range stats {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		stat, err := proc.ParseStat(data)
		if err != nil {
			continue // a broken fixture needs it so
		}
		if err := completeProcess(root, filepath.Dir(file), stat.Comm); err != nil {
			t.Fatalf("complete the fixture: %v", err)
		}
	}
}

func completeProcess(root, dir, comm string) error {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if !bytes.Contains(status, []byte("Uid:")) {
		status = append([]byte("Uid:\t0\t0\t0\t0\n"), status...)
		if err := os.WriteFile(filepath.Join(dir, "status"), status, 0o644); err != nil {
			return err
		}
	}
	program := "/usr/bin/" + strings.ReplaceAll(comm, "/", "-")
	if err := absent(filepath.Join(dir, "cgroup"), func(name string) error {
		return os.WriteFile(name, []byte(fmt.Sprintf("0::/system.slice/%s.service\n", filepath.Base(program))), 0o644)
	}); err != nil {
		return err
	}
	if err := absent(filepath.Join(dir, "ns/mnt"), hostMounts); err != nil {
		return err
	}
	return absent(filepath.Join(dir, "exe"), func(name string) error {
		if err := os.Symlink(program, name); err != nil {
			return err
		}
		return absent(filepath.Join(root, program), func(name string) error {
			return executable.Write(name, []byte("\x7fELF"))
		})
	})
}

func hostMounts(name string) error { return os.Symlink("mnt:[4026531841]", name) }

// absent creates a file that does not exist.
func absent(name string, write func(name string) error) error {
	if _, err := os.Lstat(name); !os.IsNotExist(err) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return write(name)
}
