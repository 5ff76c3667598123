package mutate_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// RemovePodLogs removes the logs of one pod, rotated ones included. A directory stays complete if it has other content,
// is mounted elsewhere, is another directory by now, or contains an open file.
func TestRemovePodLogs(t *testing.T) {
	n := mutatetest.New(t)
	logs := n.Mkdir(filepath.Join(n.Dir, "pod-logs"))
	n.Host.Paths.PodLogs = logs
	canary := n.Write(filepath.Join(n.Dir, "kubelet/pods/data"), "a living pod's")
	made := func(change func(dir string)) mutate.PodLogs {
		uid := mutatetest.UID(t)
		dir := filepath.Join(logs, "default_job_"+uid)
		for _, name := range []string{"app/0.log", "app/1.log", "app/0.log.20260102-150405", "init/0.log.20260102-150405.gz"} {
			n.Write(filepath.Join(dir, name), "a line of "+name)
		}
		l := mutate.PodLogs{Dir: dir, UID: uid, File: mutatetest.FileID(t, dir)}
		if change != nil {
			change(dir)
		}
		return l
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	gone := made(nil)
	again, foreign, elsewhere := made(nil), made(nil), made(nil)
	again.File.Inode++
	foreign.UID = gone.UID
	elsewhere.Dir = filepath.Join(n.Dir, "elsewhere", filepath.Base(elsewhere.Dir))
	n.Write(filepath.Join(elsewhere.Dir, "app/0.log"), "not a log")
	elsewhere.File = mutatetest.FileID(t, elsewhere.Dir)
	tests := map[string]struct {
		logs mutate.PodLogs
		want error // nil: a refusal
	}{
		"made again": {again, mutate.ErrChanged}, "of another pod": {foreign, nil}, "elsewhere": {elsewhere, nil},
		"another file":           {made(func(dir string) { n.Write(filepath.Join(dir, "app/data"), "") }), nil},
		"not in a folder":        {made(func(dir string) { n.Write(filepath.Join(dir, "0.log"), "") }), nil},
		"deeper":                 {made(func(dir string) { n.Write(filepath.Join(dir, "app/old/0.log"), "") }), nil},
		"a link":                 {made(func(dir string) { must(os.Symlink(canary, filepath.Join(dir, "app/2.log"))) }), nil},
		"another name of a file": {made(func(dir string) { must(os.Link(canary, filepath.Join(dir, "app/2.log"))) }), nil},
		"a pipe":                 {made(func(dir string) { must(unix.Mkfifo(filepath.Join(dir, "app/2.log"), 0o600)) }), nil},
		"a mount in it": {made(func(dir string) {
			n.Mount(n.Write(filepath.Join(dir, "app/2.log"), ""), filepath.Join(dir, "app/1.log"), "", unix.MS_BIND)
		}), nil},
		"a directory mounted in it": {made(func(dir string) {
			n.Mount("tmpfs", filepath.Join(dir, "side"), "tmpfs", 0)
		}), nil},
		"mounted elsewhere": {made(func(dir string) {
			n.Mount(dir, n.Mkdir(filepath.Join(n.Dir, "collector")), "", unix.MS_BIND)
		}), nil},
		"open": {made(func(dir string) {
			f, err := os.Open(filepath.Join(dir, "app/0.log"))
			must(err)
			t.Cleanup(func() { f.Close() })
		}), mutate.ErrBusy},
		"open in a thread": {made(func(dir string) {
			f, err := os.Open(filepath.Join(dir, "app/0.log"))
			must(err)
			thread.WithoutMain(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{f} })
			f.Close()
		}), mutate.ErrBusy},
	}
	before := mutatetest.Snapshot(t, n.Dir)
	for name, test := range tests {
		err := n.Mutator.RemovePodLogs(t.Context(), test.logs)
		if test.want != nil && !errors.Is(err, test.want) || test.want == nil && !errors.As(err, new(mutate.Refusal)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff(before, mutatetest.Snapshot(t, n.Dir)); diff != "" {
		t.Errorf("something was changed: %s", diff)
	}
	for range 2 { // the second time it is gone
		must(n.Mutator.RemovePodLogs(t.Context(), gone))
	}
	for name := range before {
		if _, err := os.Lstat(name); (err != nil) != (name == gone.Dir || filepath.Dir(name) == gone.Dir ||
			filepath.Dir(filepath.Dir(name)) == gone.Dir) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
