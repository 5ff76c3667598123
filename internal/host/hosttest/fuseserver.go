package hosttest

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
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

	device *os.File
	kill   sync.Once
	served chan struct{}
}

// ServeFUSE mounts a FUSEServer. It ends with the test.
func ServeFUSE(t testing.TB, delay time.Duration, errno unix.Errno) *FUSEServer {
	t.Helper()
	need.Root(t, "mounts a FUSE filesystem")
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	need.Kernel(t, "/dev/fuse", err)
	s := &FUSEServer{Point: t.TempDir(), served: make(chan struct{})}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("nodeagent-fuse", s.Point, "fuse.test", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		t.Fatalf("mount fuse: %v", err)
	}
	s.device = os.NewFile(uintptr(fd), "/dev/fuse")
	go s.serve(delay, errno)
	t.Cleanup(func() {
		s.Kill()
		_ = unix.Unmount(s.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // a test may have unmounted it
	})
	return s
}

// Kill ends the server, and with its last descriptor the connection.
func (s *FUSEServer) Kill() {
	s.kill.Do(func() { s.device.Close() })
	<-s.served
}

func (s *FUSEServer) serve(delay time.Duration, errno unix.Errno) {
	defer close(s.served)
	buffer := make([]byte, 64<<10)
	n, err := s.device.Read(buffer)
	if err != nil || answerInit(s.device, buffer[:n]) != nil {
		return
	}
	for {
		n, err := s.device.Read(buffer)
		if err != nil {
			return
		}
		s.Requests.Add(1)
		native := binary.NativeEndian
		if op := native.Uint32(buffer[4:n]); op == fuseForget || op == fuseBatchForget || op == fuseInterrupt {
			continue // they have no answer
		}
		answer := make([]byte, 16)
		native.PutUint32(answer, 16)
		native.PutUint32(answer[4:], uint32(-int32(errno))) //nolint:gosec // a small negative number, as in struct fuse_out_header
		native.PutUint64(answer[8:], native.Uint64(buffer[8:]))
		time.AfterFunc(delay, func() { _, _ = s.device.Write(answer) })
	}
}
