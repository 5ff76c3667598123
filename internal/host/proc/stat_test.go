package proc_test

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/files"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

func TestParseStat(t *testing.T) {
	for name, test := range map[string]struct {
		data string
		want proc.Stat
	}{
		"plain": {"1 (init) S 0" + hosttest.StatTail, proc.Stat{PID: 1, Comm: "init", State: 'S', Threads: 1,
			StartTime: 339, Flags: 4194560, CPUTicks: 11}},
		"hostile": {"12 (a) R (b\n c) D 3" + hosttest.StatTail, proc.Stat{PID: 12, PPID: 3, Comm: "a) R (b\n c",
			State: 'D', Threads: 1, StartTime: 339, Flags: 4194560, CPUTicks: 11}},
		"no name": {"12 () Z 3" + hosttest.StatTail + "\n", proc.Stat{PID: 12, PPID: 3, State: 'Z', Threads: 1,
			StartTime: 339, Flags: 4194560, CPUTicks: 11}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := proc.ParseStat([]byte(test.data))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, bad := range []string{"", "1", "1 (init", "1 (init)", "1 (init) S 0 1", "x (init) S 0" + hosttest.StatTail,
		"1 (init) SS 0" + hosttest.StatTail, "1 (init) S -1" + hosttest.StatTail,
		"1 (init) S 0 1 1 0 -1 4194560 2 0 0 0 5 6 0 0 20 0 1 0 x", "1 )init( S 0" + hosttest.StatTail} {
		if got, err := proc.ParseStat([]byte(bad)); err == nil {
			t.Errorf("ParseStat(%q) = %+v, want an error", bad, got)
		}
	}
}

// A process whose main thread has ended is alive until its last thread ends, and its threads show its files.
func TestMainThreadEnded(t *testing.T) {
	pid := thread.WithoutMain(t, nil)
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	stat, err := proc.Read(files.Tree{}, proc.File(pid, "stat"))
	if err != nil || stat.State != 'Z' || !proc.Alive(stat) {
		t.Errorf("%+v, %v", stat, err)
	}
	if name, id, err := proc.Namespace(files.Tree{}, pid, "mnt"); err != nil || name != own || id == pid {
		t.Errorf("mount namespace %q from %d of process %d, %v", name, id, pid, err)
	}
	threads, err := (&proc.Scan{}).IDs(proc.File(pid, "task"))
	if err != nil {
		t.Fatal(err)
	}
	var asked []int // the main thread, and then one that ends before it is read
	if err := proc.Shown(files.Tree{}, pid, func(id int) error {
		if asked = append(asked, id); len(asked) < 3 {
			return syscall.EINVAL
		}
		return nil
	}); err != nil || len(asked) != 3 || !slices.Equal(asked, slices.Compact(slices.Sorted(slices.Values(asked)))) {
		t.Errorf("asked %v of %v, %v", asked, threads, err)
	}
	denied := errors.New("denied")
	if err := proc.Shown(files.Tree{}, pid, func(id int) error {
		if id == pid {
			return fs.ErrNotExist
		}
		return denied
	}); !errors.Is(err, denied) {
		t.Errorf("a thread that cannot be read: %v", err)
	}
	if err := proc.Shown(files.Tree{}, pid, func(int) error { return fs.ErrNotExist }); !proc.Left(err) {
		t.Errorf("all have left: %v", err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for proc.Alive(stat) {
		if stat, err = proc.Read(files.Tree{}, proc.File(pid, "stat")); err != nil {
			t.Fatal(err)
		}
	}
	if _, id, err := proc.Namespace(files.Tree{}, pid, "mnt"); !proc.Gone(err) || id != pid {
		t.Errorf("of a zombie: %d, %v", id, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a) R (b\n c) D 3" + hosttest.StatTail))
	f.Fuzz(func(t *testing.T, data []byte) {
		if stat, err := proc.ParseStat(data); err != nil && stat != (proc.Stat{}) {
			t.Fatal("error and value")
		}
	})
}
