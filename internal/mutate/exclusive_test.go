package mutate_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/test/need"
)

// hangingVolume binds a filesystem whose server never answers into a pod's directory. It removes the original mount
// unless shared: then that stays as another user's.
func hangingVolume(t *testing.T, n *mutatetest.Node, uid string, shared bool) mutate.Mount {
	t.Helper()
	origin := hosttest.HangingFUSE(t)
	m := n.Mount(origin, n.PodDir(uid, "volumes/kubernetes.io~nfs/data"), "", unix.MS_BIND)
	if !shared {
		if err := unix.Unmount(origin, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			t.Fatal(err)
		}
		// The fixture unmounts this at its end.
		if err := unix.Mount("tmpfs", origin, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// The Mutator itself must not hang on such a mount, however it is unmounted.
func TestForceAndLazyOnHangingFUSE(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := hangingVolume(t, n, uid, false)
	holder, err := unix.Open(m.Point, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(holder)
	if err := n.Mutator.Unmount(t.Context(), uid, m, mutate.Forced); !errors.Is(err, mutate.ErrBusy) {
		t.Fatalf("forced: %v, want busy", err)
	}
	if err := n.Mutator.Unmount(t.Context(), uid, m, mutate.Lazy); err != nil {
		t.Fatalf("lazy: %v", err)
	}
	if left := n.Mounts(m.Point); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// A change to the whole filesystem must not affect a mount of it elsewhere.
func TestExclusive(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := hangingVolume(t, n, uid, true)
	var refusal mutate.Refusal
	if err := n.Mutator.Exclusive(uid, m); !errors.As(err, &refusal) {
		t.Errorf("mounted elsewhere too: %v", err)
	}
	for _, way := range []mutate.Way{mutate.Forced, mutate.Lazy} {
		if err := n.Mutator.Unmount(t.Context(), uid, m, way); !errors.As(err, &refusal) {
			t.Errorf("way %d: %v", way, err)
		}
	}
	if left := n.Mounts(m.Point); len(left) != 1 {
		t.Errorf("left: %+v", left)
	}
}

// A bind of kubelet's directory in the pod's own directory shows other pods' volumes: those are not the pod's.
func TestExclusiveOtherPodBelow(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := n.Mount("tmpfs", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
	n.Mount(m.Point, n.PodDir(uid, "volume-subpaths/v/c/0/pods", mutatetest.UID(t), "volumes/x/y"), "", unix.MS_BIND)
	var refusal mutate.Refusal
	if err := n.Mutator.Exclusive(uid, m); !errors.As(err, &refusal) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A process whose main thread has ended holds a copy in another mount namespace.
func TestExclusiveSeesNamespacesOfThreads(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := n.Mount("tmpfs", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
	thread.WithoutMain(t, func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS} })
	var refusal mutate.Refusal
	if err := n.Mutator.Exclusive(uid, m); !errors.As(err, &refusal) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A process of the pod itself is no other user, nor is it without its main thread.
func TestExclusiveWithoutMainThread(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := n.Mount("tmpfs", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
	into := mutatetest.IntoV1(n.Cgroups(uid, ""))
	thread.WithoutMain(t, func(c *exec.Cmd) {
		into(c)
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	})
	if err := n.Mutator.Exclusive(uid, m); err != nil {
		t.Error(err)
	}
}

// A thread that ends while it is read does not hide the mounts that the others of its process see.
func TestExclusiveSeesOtherThreads(t *testing.T) {
	h := hosttest.Host(t)
	h.Paths.CRISocket = ""
	hosttest.WriteHostFile(t, h, "proc/1/mountinfo", "25 1 254:1 / / rw - ext4 /dev/vda1 rw\n")
	thread.Ending(t, h.Files.Root, "900 1 0:9 / / rw - tmpfs tmpfs rw\n901 900 0:77 / /y rw - nfs4 server:/ rw\n")
	d, err := mutate.New(h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	err = d.Exclusive(mutatetest.UID(t), mutate.Mount{Point: "/var/lib/kubelet/pods/x", Device: "0:77"})
	if want := fmt.Sprintf("process %d,", thread.EndingPID); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// A process in another mount namespace may hold the last copy.
func TestExclusiveSeesOtherNamespaces(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := n.Mount("tmpfs", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
	if err := n.Mutator.Exclusive(uid, m); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("/usr/bin/unshare", "-m", "--propagation", "private", "/bin/sh", "-c",
		"echo ready; exec sleep 60")
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	need.Kernel(t, "unshare", other.Start())
	defer func() { other.Process.Kill(); other.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	var refusal mutate.Refusal
	if err := n.Mutator.Exclusive(uid, m); !errors.As(err, &refusal) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// Children that hang in the kernel are abandoned, and beyond a limit no more are started.
func TestAbandonedChildren(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := hangingVolume(t, n, uid, false)
	var errs []error
	for range 4 {
		errs = append(errs, mutate.RunChild(t.Context(), n.Mutator, 2*time.Second, "/bin/ls", m.Point))
	}
	if !errors.Is(errs[3], mutate.ErrTooManyAbandoned) {
		t.Errorf("got %v", errs)
	}
	for _, err := range errs[:3] {
		if err == nil || errors.Is(err, mutate.ErrTooManyAbandoned) {
			t.Errorf("got %v", errs)
		}
	}
}
