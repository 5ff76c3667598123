// Package hosttest makes real faults for tests. It removes all of them when the test ends.
package hosttest

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/test/need"
)

// HangingFUSE mounts a filesystem whose server completes the kernel's handshake and then never answers again: every
// process that touches it waits in the kernel, in state D and immune to SIGKILL, as with a dead NFS server or a crashed
// FUSE daemon. The connection is aborted when the test ends, which frees all waiting processes. Only for root, on a
// kernel with FUSE.
func HangingFUSE(t testing.TB) (mountpoint string) {
	t.Helper()
	need.Root(t, "mounts a FUSE filesystem")
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	need.Kernel(t, "/dev/fuse", err)
	mountpoint = t.TempDir()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("nodeagent-hang", mountpoint, "fuse.hang", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		t.Fatalf("mount fuse: %v", err)
	}
	device := os.NewFile(uintptr(fd), "/dev/fuse") // Go's poller accepts the descriptor only now that it is connected
	served := make(chan error, 1)
	t.Cleanup(func() {
		// Closing the server's only descriptor aborts the connection, like /sys/fs/fuse/connections/N/abort, but works
		// without a fusectl mount too.
		device.Close()
		if err := unix.Unmount(mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			t.Errorf("unmount %s: %v", mountpoint, err)
		}
		<-served
	})
	shaken := make(chan error, 1)
	go serveHang(device, shaken, served)
	if err := <-shaken; err != nil {
		t.Fatalf("fuse handshake: %v", err)
	}
	return mountpoint
}

// serveHang answers INIT and swallows everything else: after the server has read a request, a signal can no longer
// interrupt it.
func serveHang(device *os.File, shaken, served chan<- error) {
	buffer := make([]byte, 64<<10) // the kernel refuses reads into less than 8 KiB
	n, err := device.Read(buffer)
	if err == nil {
		err = answerInit(device, buffer[:n])
	}
	shaken <- err
	for err == nil {
		_, err = device.Read(buffer)
	}
	served <- err
}

// answerInit answers the first request. See struct fuse_in_header, fuse_init_in and fuse_init_out in <linux/fuse.h>.
func answerInit(device *os.File, request []byte) error {
	const headerSize, opInit = 40, 26
	native := binary.NativeEndian
	if len(request) < headerSize+8 || native.Uint32(request[4:]) != opInit {
		return fmt.Errorf("first request is not INIT: % x", request)
	}
	const outHeader, outBody = 16, 64
	answer := make([]byte, outHeader+outBody)
	native.PutUint32(answer[0:], uint32(len(answer)))
	native.PutUint64(answer[8:], native.Uint64(request[8:])) // unique
	body := answer[outHeader:]
	native.PutUint32(body[0:], 7)  // major
	native.PutUint32(body[4:], 31) // minor: since 7.23 the answer has this size
	native.PutUint32(body[8:], native.Uint32(request[headerSize+8:]))
	native.PutUint16(body[16:], 12)   // max_background
	native.PutUint16(body[18:], 9)    // congestion_threshold
	native.PutUint32(body[20:], 4096) // max_write
	_, err := device.Write(answer)
	return err
}

// HungProgram starts a program that hangs in a mountpoint of HangingFUSE, and kills it: it stays in state D until the
// connection is aborted. It is a child of the test, named "stat".
func HungProgram(t testing.TB, mountpoint string) (pid int) {
	t.Helper()
	program := need.Program(t, "stat")
	// Not with the test's context: waiting for it before the connection is aborted would take forever.
	cmd := exec.Command(program, "-f", mountpoint)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it was killed
	}()
	wchan := fmt.Sprintf("/proc/%d/wchan", cmd.Process.Pid)
	for range 6000 {
		if where, err := os.ReadFile(wchan); err == nil && strings.Contains(string(where), "request_wait_answer") {
			_ = cmd.Process.Kill()
			return cmd.Process.Pid
		}
		select {
		case <-ended:
			t.Fatalf("%s -f %s has ended", program, mountpoint)
		case <-time.After(10 * time.Millisecond):
		}
	}
	_ = cmd.Process.Kill()
	t.Fatalf("%s -f %s does not wait for the filesystem", program, mountpoint)
	return 0
}
