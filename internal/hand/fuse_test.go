package hand_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/hand"
	"github.com/nodeagent/nodeagent/internal/hand/handtest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// hangingVolume binds a filesystem whose server never answers into a pod's directory. The original mount is taken away,
// unless it shall stay as somebody else's.
func hangingVolume(t *testing.T, n *handtest.Node, uid string, shared bool) hand.Mount {
	t.Helper()
	origin := hosttest.HangingFUSE(t)
	m := n.Mount(origin, n.PodDir(uid, "volumes/kubernetes.io~nfs/data"), "", unix.MS_BIND)
	if !shared {
		if err := unix.Unmount(origin, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			t.Fatal(err)
		}
		// What the fixture unmounts at its end.
		if err := unix.Mount("tmpfs", origin, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestAbortFUSEFreesProcess(t *testing.T) {
	n, uid := handtest.New(t), handtest.UID(t)
	m := hangingVolume(t, n, uid, false)
	fuseControl(t)
	stuck := exec.Command("/bin/ls", m.Point)
	if err := stuck.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- stuck.Wait() }()
	waitD(t, n, stuck.Process.Pid)
	if err := n.Hand.AbortFUSE(uid, m); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("the process still hangs")
	}
	if err := n.Hand.Unmount(t.Context(), uid, m, hand.Plain); err != nil {
		t.Error(err)
	}
}

// fuseControl mounts the control filesystem of FUSE where systemd has not done so.
func fuseControl(t *testing.T) {
	t.Helper()
	const dir = "/sys/fs/fuse/connections"
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return
	}
	if err := unix.Mount("fusectl", dir, "fusectl", 0, ""); err != nil {
		t.Skipf("needs fusectl: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// waitD waits until a process hangs in the kernel.
func waitD(t *testing.T, n *handtest.Node, pid int) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		stat, err := n.Host.ProcStat(pid)
		if err != nil {
			t.Fatal(err)
		}
		where, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
		if strings.Contains(string(where), "fuse") || strings.Contains(string(where), "request_wait") {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("process %d is in state %c in %s", pid, stat.State, where)
		case <-tick.C:
		}
	}
}

// The hand itself must not hang on such a mount, whichever way it is unmounted.
func TestForceAndLazyOnHangingFUSE(t *testing.T) {
	n, uid := handtest.New(t), handtest.UID(t)
	m := hangingVolume(t, n, uid, false)
	holder, err := unix.Open(m.Point, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(holder)
	if err := n.Hand.Unmount(t.Context(), uid, m, hand.Forced); !errors.Is(err, hand.ErrBusy) {
		t.Fatalf("forced: %v, want busy", err)
	}
	if err := n.Hand.Unmount(t.Context(), uid, m, hand.Lazy); err != nil {
		t.Fatalf("lazy: %v", err)
	}
	if left := n.Mounts(m.Point); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// What is done to the whole filesystem must not hit a mount of it elsewhere.
func TestExclusive(t *testing.T) {
	n, uid := handtest.New(t), handtest.UID(t)
	m := hangingVolume(t, n, uid, true)
	var refusal hand.Refusal
	if err := n.Hand.Exclusive(uid, m); !errors.As(err, &refusal) {
		t.Errorf("mounted elsewhere too: %v", err)
	}
	if err := n.Hand.AbortFUSE(uid, m); !errors.As(err, &refusal) {
		t.Errorf("abort: %v", err)
	}
}

// A process in another mount namespace may hold the last copy.
func TestExclusiveSeesOtherNamespaces(t *testing.T) {
	n, uid := handtest.New(t), handtest.UID(t)
	m := n.Mount("tmpfs", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
	if err := n.Hand.Exclusive(uid, m); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("/usr/bin/unshare", "-m", "--propagation", "private", "/bin/sh", "-c", "echo ready; exec sleep 60")
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Skipf("needs unshare: %v", err)
	}
	defer func() { other.Process.Kill(); other.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	var refusal hand.Refusal
	if err := n.Hand.Exclusive(uid, m); !errors.As(err, &refusal) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// Children that hang in the kernel are given up, and above a number of them no more are started.
func TestAbandonedChildren(t *testing.T) {
	n, uid := handtest.New(t), handtest.UID(t)
	m := hangingVolume(t, n, uid, false)
	var errs []error
	for range 4 {
		errs = append(errs, hand.RunChild(t.Context(), n.Hand, 300*time.Millisecond, "/bin/ls", m.Point))
	}
	if !errors.Is(errs[3], hand.ErrTooManyAbandoned) {
		t.Errorf("got %v", errs)
	}
	for _, err := range errs[:3] {
		if err == nil || errors.Is(err, hand.ErrTooManyAbandoned) {
			t.Errorf("got %v", errs)
		}
	}
}
