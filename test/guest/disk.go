package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Disk is a disk whose cache loses its content with the power: of the data written since the last flush any part may be
// there afterwards. A machine accesses it by the NBD protocol:
// https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md.
type Disk struct {
	file *os.File
	size int64 // bytes

	mu    sync.Mutex       // guards what follows
	cache map[int64][]byte // content at the last flush of each sector written since
}

const (
	sector = 512 // bytes, the unit of atomic writes

	nbdMagic, nbdOption, nbdOptionReply = 0x4e42444d41474943, 0x49484156454f5054, 0x3e889045565a9
	nbdRequest, nbdReply                = 0x25609513, 0x67446698
	nbdExportName, nbdUnsupported       = 1, 1<<31 + 1
	nbdFixed, nbdFlags                  = 1, 1 | 1<<2 // newstyle; it sends flags, and supports flushes
	nbdRead, nbdWrite, nbdEnd, nbdFlush = 0, 1, 2, 3
	maxTransfer                         = 64 << 20 // bytes
)

// NewDisk opens the file of a disk, whose size is a whole number of sectors.
func NewDisk(name string) (*Disk, error) {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Disk{file: file, size: info.Size(), cache: map[int64][]byte{}}, nil
}

// Close closes the file.
func (d *Disk) Close() error { return d.file.Close() }

// check runs the filesystem check that every distribution runs before it mounts a disk. Linux 6.1 does not mount an
// ext4 with a partially written last commit.
func (d *Disk) check(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "e2fsck", "-p", d.file.Name()).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil // it is repaired
	}
	if err != nil {
		return fmt.Errorf("check the file system: %w: %s", err, out)
	}
	return nil
}

// LosePower drops the lost part of the cache, and returns its number of sectors.
func (d *Disk) LosePower() (lost int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for at, before := range d.cache {
		if rand.IntN(2) == 0 {
			continue
		}
		if _, err := d.file.WriteAt(before, at); err != nil {
			return lost, err
		}
		lost++
	}
	clear(d.cache)
	return lost, nil
}

// serve serves the disk to a machine until the connection ends.
func (d *Disk) serve(conn net.Conn) error {
	defer conn.Close()
	err := d.negotiate(conn)
	for err == nil {
		err = d.answer(conn)
	}
	if slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, unix.ECONNRESET, unix.EPIPE},
		func(end error) bool { return errors.Is(err, end) }) {
		return nil // the machine was killed
	}
	return err
}

// negotiate ends with the only export, which has no name. It rejects all other options.
func (d *Disk) negotiate(conn net.Conn) error {
	hello := binary.BigEndian.AppendUint64(nil, nbdMagic)
	hello = binary.BigEndian.AppendUint64(hello, nbdOption)
	hello = binary.BigEndian.AppendUint16(hello, nbdFixed)
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	var flags uint32
	if err := binary.Read(conn, binary.BigEndian, &flags); err != nil {
		return err
	}
	for {
		var option struct {
			Magic         uint64
			Option, Bytes uint32
		}
		if err := binary.Read(conn, binary.BigEndian, &option); err != nil {
			return err
		}
		if option.Magic != nbdOption || option.Bytes > 4096 {
			return fmt.Errorf("nbd: option %+v", option)
		}
		if _, err := io.CopyN(io.Discard, conn, int64(option.Bytes)); err != nil {
			return err
		}
		if option.Option == nbdExportName {
			export := binary.BigEndian.AppendUint64(nil, uint64(d.size)) //nolint:gosec // of a file
			export = binary.BigEndian.AppendUint16(export, nbdFlags)
			_, err := conn.Write(append(export, make([]byte, 124)...))
			return err
		}
		refusal := binary.BigEndian.AppendUint64(nil, nbdOptionReply)
		for _, word := range []uint32{option.Option, nbdUnsupported, 0} {
			refusal = binary.BigEndian.AppendUint32(refusal, word)
		}
		if _, err := conn.Write(refusal); err != nil {
			return err
		}
	}
}

// answer serves one request.
func (d *Disk) answer(conn net.Conn) error {
	var request struct {
		Magic       uint32
		Flags, Type uint16
		Cookie      uint64
		Offset      int64
		Bytes       uint32
	}
	if err := binary.Read(conn, binary.BigEndian, &request); err != nil {
		return err
	}
	if request.Magic != nbdRequest || request.Bytes > maxTransfer {
		return fmt.Errorf("nbd: request %+v", request)
	}
	var data []byte
	var failed error
	switch request.Type {
	case nbdRead:
		data = make([]byte, request.Bytes)
		_, failed = d.file.ReadAt(data, request.Offset)
	case nbdWrite:
		written := make([]byte, request.Bytes)
		if _, err := io.ReadFull(conn, written); err != nil {
			return err // it may be cut off: none of it is written
		}
		failed = d.write(written, request.Offset)
	case nbdFlush:
		d.flush()
	case nbdEnd:
		return io.EOF
	default:
		failed = fmt.Errorf("nbd: type %d", request.Type)
	}
	if failed != nil {
		return failed // the guest would see a broken disk: the test ends
	}
	reply := binary.BigEndian.AppendUint32(nil, nbdReply)
	reply = binary.BigEndian.AppendUint64(append(reply, 0, 0, 0, 0), request.Cookie)
	_, err := conn.Write(append(reply, data...))
	return err
}

func (d *Disk) write(data []byte, at int64) error {
	if at%sector != 0 || len(data)%sector != 0 {
		return fmt.Errorf("%d bytes at %d: no whole sectors", len(data), at)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := at; i < at+int64(len(data)); i += sector {
		if _, ok := d.cache[i]; ok {
			continue
		}
		before := make([]byte, sector)
		if _, err := d.file.ReadAt(before, i); err != nil {
			return err
		}
		d.cache[i] = before
	}
	_, err := d.file.WriteAt(data, at)
	return err
}

func (d *Disk) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.cache)
}
