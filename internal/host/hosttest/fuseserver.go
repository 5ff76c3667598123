package hosttest

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/test/need"
)

// FUSEServer is a filesystem in this process that answers every request with one error, after a delay. It is alive,
// whatever the error.
type FUSEServer struct {
	Point    string
	Requests atomic.Int64 // number of requests received

	connection fuseConnection
}

// ServeFUSE mounts a FUSEServer. It ends with the test.
func ServeFUSE(t testing.TB, delay time.Duration, errno unix.Errno) *FUSEServer {
	t.Helper()
	s := &FUSEServer{}
	s.connection = serveFUSE(t, "test", func(device *os.File, request []byte) {
		s.Requests.Add(1)
		switch binary.NativeEndian.Uint32(request[4:]) {
		case fuseForget, fuseBatchForget, fuseInterrupt: // they have no answer
			return
		}
		answer := fuseAnswer(request, errno, nil)
		time.AfterFunc(delay, func() { _, _ = device.Write(answer) })
	})
	s.Point = s.connection.point
	return s
}

// Kill ends the server, and with its last descriptor the connection.
func (s *FUSEServer) Kill() { s.connection.end() }

// fuseConnection is a FUSE filesystem that this process serves.
type fuseConnection struct {
	point  string
	device *os.File
	served <-chan struct{}
}

// end aborts the connection, like /sys/fs/fuse/connections/N/abort, but works without a fusectl mount too.
func (c fuseConnection) end() {
	c.device.Close()
	<-c.served
}

// serveFUSE mounts a filesystem, completes the kernel's handshake, and calls take for each further request until the
// test ends. Only for root, on a kernel with FUSE.
func serveFUSE(t testing.TB, kind string, take func(device *os.File, request []byte)) fuseConnection {
	t.Helper()
	need.Root(t, "mounts a FUSE filesystem")
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	need.Kernel(t, "/dev/fuse", err)
	point := t.TempDir()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("nodeagent-"+kind, point, "fuse."+kind, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		t.Fatalf("mount fuse: %v", err)
	}
	device := os.NewFile(uintptr(fd), "/dev/fuse") // Go's poller accepts the descriptor only now that it is connected
	shaken, served := make(chan error, 1), make(chan struct{})
	c := fuseConnection{point, device, served}
	go func() {
		defer close(served)
		buffer := make([]byte, 1<<20) // the kernel refuses reads into less than 8 KiB
		n, err := device.Read(buffer)
		if err == nil {
			err = answerInit(device, buffer[:n])
		}
		shaken <- err
		for err == nil {
			if n, err = device.Read(buffer); err == nil {
				take(device, buffer[:n])
			}
		}
	}()
	t.Cleanup(func() {
		c.end()
		// A test may have unmounted it (EINVAL).
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			t.Errorf("unmount %s: %v", point, err)
		}
	})
	if err := <-shaken; err != nil {
		t.Fatalf("fuse handshake: %v", err)
	}
	return c
}

// Operations of <linux/fuse.h>.
const (
	fuseLookup      = 1
	fuseForget      = 2
	fuseGetattr     = 3
	fuseOpen        = 14
	fuseRead        = 15
	fuseWrite       = 16
	fuseRelease     = 18
	fuseFsync       = 20
	fuseFlush       = 25
	fuseInit        = 26
	fuseInterrupt   = 36
	fuseBatchForget = 42

	fuseHeader = 40
	rootNode   = 1
	diskNode   = 2
)

// answerInit answers the first request. See struct fuse_in_header, fuse_init_in and fuse_init_out in <linux/fuse.h>.
func answerInit(device *os.File, request []byte) error {
	native := binary.NativeEndian
	if len(request) < fuseHeader+8 || native.Uint32(request[4:]) != fuseInit {
		return fmt.Errorf("first request is not INIT: % x", request)
	}
	const outHeader, outBody = 16, 64
	answer := make([]byte, outHeader+outBody)
	native.PutUint32(answer[0:], uint32(len(answer)))
	native.PutUint64(answer[8:], native.Uint64(request[8:])) // unique
	body := answer[outHeader:]
	native.PutUint32(body[0:], 7)  // major
	native.PutUint32(body[4:], 31) // minor: since 7.23 the answer has this size
	native.PutUint32(body[8:], native.Uint32(request[fuseHeader+8:]))
	native.PutUint16(body[16:], 12)   // max_background
	native.PutUint16(body[18:], 9)    // congestion_threshold
	native.PutUint32(body[20:], 4096) // max_write
	_, err := device.Write(answer)
	return err
}

// fuseAnswer returns struct fuse_out_header and the body.
func fuseAnswer(request []byte, errno unix.Errno, body []byte) []byte {
	answer := make([]byte, 16, 16+len(body))
	binary.NativeEndian.PutUint32(answer, uint32(16+len(body)))    //nolint:gosec // below 1 MiB
	binary.NativeEndian.PutUint32(answer[4:], uint32(-int(errno))) //nolint:gosec // a negative errno
	copy(answer[8:], request[8:16])
	return append(answer, body...)
}
