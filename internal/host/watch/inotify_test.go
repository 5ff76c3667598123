package watch_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/watch"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestProbeInotify(t *testing.T) {
	got, err := watch.ProbeInotify()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(watch.InotifyRoom{Instances: true, Watches: true}, got); diff != "" {
		t.Error(diff)
	}
}

// A dedicated user takes all of its instances, and releases them.
func TestProbeInotifyExhausted(t *testing.T) {
	need.Root(t, "becomes another user, whose limit affects no other process")
	type answer struct {
		full, after watch.InotifyRoom
		err         error
	}
	done := make(chan answer)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its user
		var a answer
		const unusedUID = 987654321
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, unusedUID, unusedUID, unusedUID); errno != 0 {
			a.err = errno
			done <- a
			return
		}
		var fds []int
		for {
			fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if errors.Is(err, unix.EMFILE) {
				break
			}
			if a.err = err; err != nil {
				break
			}
			fds = append(fds, fd)
		}
		if a.err == nil {
			a.full, a.err = watch.ProbeInotify()
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
		var err error
		a.after, err = watch.ProbeInotify()
		a.err = errors.Join(a.err, err)
		done <- a
	}()
	a := <-done
	if a.err != nil {
		t.Fatal(a.err)
	}
	if a.full.Instances || !a.after.Instances {
		t.Errorf("%+v", a)
	}
}
