package hosttest

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/test/need"
)

// HangingDisk is a real block device that stops answering on request: a loop device on a file served by our FUSE
// server. Requests meanwhile wait in the kernel, as with a disk whose controller is gone.
type HangingDisk struct {
	LoopFS

	image   *os.File
	mu      sync.Mutex // guards the two fields below
	hanging bool
	held    []func() // the answers waiting for Recover
}

const diskSize = 32 << 20

// NewHangingDisk makes a disk with an empty ext4 filesystem. When the test ends, the disk answers again and is removed.
// Only for root, on a kernel with FUSE and loop devices.
func NewHangingDisk(t testing.TB) *HangingDisk {
	t.Helper()
	need.Root(t, "mounts a FUSE filesystem")
	need.Program(t, "losetup", "mkfs.ext4")
	d := &HangingDisk{LoopFS: LoopFS{FSType: "ext4", Image: filepath.Join(t.TempDir(), "image"), t: t}}
	image, err := os.Create(d.Image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { image.Close() })
	if err := image.Truncate(diskSize); err != nil {
		t.Fatal(err)
	}
	d.image = image
	d.run("mkfs.ext4", "-q", d.Image)
	point := serveFUSE(t, "disk", d.take).point
	d.Device = strings.TrimSpace(d.run("losetup", "--find", "--show", filepath.Join(point, "disk")))
	t.Cleanup(func() {
		d.Recover()
		d.run("losetup", "--detach", d.Device)
	})
	return d
}

// Hang makes the disk stop answering.
func (d *HangingDisk) Hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hanging = true
}

// Recover makes the disk answer again, starting with the waiting requests.
func (d *HangingDisk) Recover() {
	d.mu.Lock()
	held := d.held
	d.hanging, d.held = false, nil
	d.mu.Unlock()
	for _, answer := range held {
		answer()
	}
}

// Waiting returns the number of requests that wait for the disk.
func (d *HangingDisk) Waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.held)
}

// take answers a request, or holds it while the disk hangs.
func (d *HangingDisk) take(device *os.File, buffer []byte) {
	request := bytes.Clone(buffer)
	answer := func() { d.answer(device, request) }
	d.mu.Lock()
	op := binary.NativeEndian.Uint32(request[4:])
	hold := d.hanging && (op == fuseRead || op == fuseWrite || op == fuseFsync)
	if hold {
		d.held = append(d.held, answer)
	}
	d.mu.Unlock()
	if !hold {
		answer()
	}
}

// answer answers one request. Structures: struct fuse_entry_out, fuse_attr_out, fuse_open_out, fuse_read_in,
// fuse_write_in.
func (d *HangingDisk) answer(device *os.File, request []byte) {
	native := binary.NativeEndian
	reply := func(errno unix.Errno, out []byte) { _, _ = device.Write(fuseAnswer(request, errno, out)) }
	op, node, body := native.Uint32(request[4:]), native.Uint64(request[16:]), request[fuseHeader:]
	switch op {
	case fuseForget, fuseBatchForget, fuseInterrupt: // they have no answer
	case fuseLookup:
		out := make([]byte, 40+88)
		native.PutUint64(out, diskNode)
		putAttributes(out[40:], diskNode)
		reply(0, out)
	case fuseGetattr:
		out := make([]byte, 16+88)
		putAttributes(out[16:], node)
		reply(0, out)
	case fuseOpen:
		reply(0, make([]byte, 16))
	case fuseRead:
		out := make([]byte, native.Uint32(body[16:]))
		n, _ := d.image.ReadAt(out, int64(native.Uint64(body[8:]))) //nolint:gosec // an offset within the image
		reply(0, out[:n])
	case fuseWrite:
		size := native.Uint32(body[16:])
		_, err := d.image.WriteAt(body[40:40+size], int64(native.Uint64(body[8:]))) //nolint:gosec // an offset within the image
		if err != nil {
			reply(unix.EIO, nil)
			return
		}
		out := make([]byte, 8)
		native.PutUint32(out, size)
		reply(0, out)
	case fuseRelease, fuseFsync, fuseFlush:
		reply(0, nil)
	default:
		reply(unix.ENOSYS, nil)
	}
}

// putAttributes fills struct fuse_attr.
func putAttributes(out []byte, node uint64) {
	native := binary.NativeEndian
	mode, size := uint32(unix.S_IFREG|0o600), uint64(diskSize)
	if node == rootNode {
		mode, size = unix.S_IFDIR|0o700, 0
	}
	native.PutUint64(out, node)
	native.PutUint64(out[8:], size)
	native.PutUint64(out[16:], size/512)
	native.PutUint32(out[60:], mode)
	native.PutUint32(out[64:], 1)
	native.PutUint32(out[80:], 4096)
}

// Mount mounts the disk's filesystem on a directory until the test ends.
func (d *HangingDisk) Mount(dir string) {
	d.t.Helper()
	d.LoopFS.Mount(dir, "rw")
	d.t.Cleanup(d.Recover) // before it is unmounted
}
