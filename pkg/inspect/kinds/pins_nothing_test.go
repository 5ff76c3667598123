package kinds_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/need"
)

// An inspection keeps no object busy: during successive passes, volumes of a living and of dead pods, root filesystems
// and a sandbox's shm are unmounted, and their mount points removed, at the first try. An open file would rarely be
// caught in that instant; but an unread event of fanotify(7) keeps the file's mount busy.
func TestPinsNothing(t *testing.T) {
	n := newNode(t)
	n.Sandbox(living, sandbox)
	state := n.Host.Paths.ContainerdState
	places := []string{filepath.Join(state, "io.containerd.grpc.v1.cri/sandboxes", newSandbox, "shm"),
		filepath.Join(state, "io.containerd.runtime.v2.task/k8s.io", newSandbox, "rootfs")}
	for volume := range 8 {
		for _, uid := range []string{living, dead, other} {
			places = append(places, filepath.Join(n.Host.Paths.KubeletRoot, "pods", uid, "volumes/kubernetes.io~empty-dir",
				fmt.Sprintf("data-%d", volume)))
		}
	}
	opened, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_NONBLOCK|unix.FAN_CLOEXEC, unix.O_RDONLY)
	need.Kernel(t, "fanotify", err)
	defer unix.Close(opened)
	t.Cleanup(func() {
		for _, place := range places {
			_ = unix.Unmount(place, unix.MNT_DETACH) // if the test has failed
		}
	})
	const rounds = 12
	passed, removed := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(removed)
		for range rounds {
			for _, place := range places {
				if err := errors.Join(os.MkdirAll(place, 0o755), unix.Mount("tmpfs", place, "tmpfs", 0, "size=64k"),
					os.WriteFile(filepath.Join(place, "file"), []byte("data"), 0o600),
					unix.FanotifyMark(opened, unix.FAN_MARK_ADD|unix.FAN_MARK_MOUNT, unix.FAN_OPEN|unix.FAN_ONDIR,
						unix.AT_FDCWD, place)); err != nil {
					removed <- err
					return
				}
			}
			<-passed // during the next pass:
			for _, place := range places {
				if err := errors.Join(unix.Unmount(place, 0), os.Remove(place)); err != nil {
					removed <- fmt.Errorf("%s: %w", place, err)
					return
				}
			}
		}
	}()
	i, history, seen := n.inspector(), object.History{}, map[object.Kind]int{}
	var report object.Report
	for passes := 1; ; passes++ {
		report, history = i.Pass(t.Context(), history)
		n.After(settings().Grace / 4)
		for _, o := range report.Objects {
			seen[o.Kind]++
		}
		select {
		case passed <- struct{}{}:
		case err := <-removed:
			if err != nil {
				t.Error(err)
			}
			for _, kind := range []object.Kind{object.Mount, object.SandboxDirectory, object.Rootfs, object.PodDirectory} {
				if seen[kind] < rounds {
					t.Errorf("%d of kind %s: this test proves little", seen[kind], kind)
				}
			}
			t.Logf("seen in %d passes: %v", passes, seen)
			return
		default:
		}
	}
}
