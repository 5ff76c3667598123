// Package kmsg reads and follows the kernel's log, /dev/kmsg. It never writes, and does not interpret the text.
//
// It has its own reader and parser: github.com/euank/go-kmsg-parser drops the flags of a record, and ends at the first
// overrun, because it compares the error with a bare EPIPE, which os.File wraps.
package kmsg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// KernelRecord is one record of the kernel's log.
type KernelRecord struct {
	Facility int    // 0 is the kernel itself; records that programs write to /dev/kmsg have another one
	Level    int    // of syslog(2): 0 emergency, 3 error, 4 warning, 7 debug
	Sequence uint64 // counts up by one from boot
	// Time is the kernel's local clock: time since boot without sleep, and on some machines off by seconds.
	Time time.Duration
	// Up is about the same moment on the clock of finding.Timestamp, sleep included; set by the reader of the log.
	Up time.Duration
	// Fragment marks the continuation of another task's line, whose beginning is unknown (kernels before 5.10).
	Fragment bool
	Text     string // valid UTF-8 without control characters
	// Lost is the minimum number of records that the kernel dropped just before this one, because they were read too
	// slowly.
	Lost uint64
}

// FromKernel reports whether the kernel itself wrote the record. Its text may still quote names that programs choose.
func (r KernelRecord) FromKernel() bool { return r.Facility == 0 }

// ParseKernelRecord parses the data of one read of /dev/kmsg:
//
//	6,339,5140900,-,caller=T1;EXT4-fs (vda): mounted filesystem
//	 SUBSYSTEM=block
//	 DEVICE=b254:0
//
// https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
func ParseKernelRecord(data []byte) (KernelRecord, error) {
	malformed := func(why string) (KernelRecord, error) {
		return KernelRecord{}, fmt.Errorf("kernel record %q: %s", hosterr.Clip(string(data)), why)
	}
	prefix, rest, ok := strings.Cut(string(data), ";")
	if !ok {
		return malformed("no semicolon")
	}
	head := strings.Split(prefix, ",")
	if len(head) < 3 {
		return malformed("fewer than 3 numbers")
	}
	priority, err := strconv.ParseUint(head[0], 10, 31)
	if err != nil {
		return malformed("bad priority")
	}
	sequence, err := strconv.ParseUint(head[1], 10, 64)
	if err != nil {
		return malformed("bad sequence number")
	}
	micros, err := strconv.ParseUint(head[2], 10, 53) // 285 years; more would overflow a Duration
	if err != nil {
		return malformed("bad time")
	}
	r := KernelRecord{
		Facility: int(priority >> 3), Level: int(priority & 7), Sequence: sequence, Time: time.Duration(micros) * time.Microsecond,
	}
	if len(head) > 3 {
		r.Fragment = head[3] == "c" || head[3] == "+"
	}
	text, _, _ := strings.Cut(rest, "\n") // the rest is a dictionary
	r.Text = printable(text)
	return r, nil
}

// printable undoes the kernel's \xNN, except for control characters: one line stays one line.
func printable(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+4 <= len(text) && text[i+1] == 'x' {
			if n, err := strconv.ParseUint(text[i+2:i+4], 16, 8); err == nil && n >= ' ' && n != 0x7f {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		if c < ' ' || c == 0x7f { // the kernel escapes these; the kernel itself did not write this one
			fmt.Fprintf(&out, `\x%02x`, c)
			continue
		}
		out.WriteByte(c)
	}
	return strings.ToValidUTF8(out.String(), "\uFFFD")
}

// KernelLog calls each for every record of this boot that the kernel still has, the oldest first, and returns.
func KernelLog(ctx context.Context, each func(KernelRecord)) error {
	reader, err := openKernelLog(slog.New(slog.DiscardHandler), each)
	if err != nil {
		return err
	}
	defer unix.Close(reader.fd)
	return reader.readKept(ctx)
}

// WatchKernelLog calls each for every record of this boot that the kernel still has, the oldest first, then caughtUp,
// and then each for every new record, until ctx ends; then it returns nil. It makes one call at a time. It logs and
// skips a malformed record. The Lost field of the next record counts the records that the kernel dropped.
func WatchKernelLog(ctx context.Context, log *slog.Logger, each func(KernelRecord), caughtUp func()) error {
	reader, err := openKernelLog(log, each)
	if err != nil {
		return err
	}
	if err := reader.readKept(ctx); err != nil {
		unix.Close(reader.fd)
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	caughtUp()
	// os.OpenFile would make it blocking; Go's poller waits for a non-blocking descriptor, without a thread.
	file := os.NewFile(uintptr(reader.fd), kernelLogFile)
	defer file.Close()
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		err := reader.add(file.Read(reader.buffer))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

const kernelLogFile = "/dev/kmsg"

// ErrNoKernelLog means that there is no kernel log here: the kernel creates its device on every machine, but containers
// have none, or a pipe in its place.
var ErrNoKernelLog = errors.New("no kernel log")

// kernelLogReader reads records, one per read.
type kernelLogReader struct {
	fd   int
	log  *slog.Logger
	each func(KernelRecord)
	// how far the kernel's local clock is behind the time since boot: each sleep adds to it
	slept      func() time.Duration
	buffer     []byte
	next, lost uint64 // expected sequence number, 0 if unknown; records dropped since the last one
}

func openKernelLog(log *slog.Logger, each func(KernelRecord)) (*kernelLogReader, error) {
	var stat unix.Stat_t
	if err := unix.Stat(kernelLogFile, &stat); errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%s: %w", kernelLogFile, ErrNoKernelLog)
	} else if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return nil, fmt.Errorf("%s is not a device: %w", kernelLogFile, ErrNoKernelLog)
	}
	fd, err := unix.Open(kernelLogFile, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", kernelLogFile, err)
	}
	// A record is at most 8 KiB; a longer one could never be read.
	return &kernelLogReader{fd: fd, log: log, each: each, slept: timeAsleep, buffer: make([]byte, 16<<10)}, nil
}

// readKept reads the records that the kernel still has.
func (k *kernelLogReader) readKept(ctx context.Context) error {
	for ctx.Err() == nil {
		n, err := unix.Read(k.fd, k.buffer)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err := k.add(n, err); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// add handles the result of one read.
func (k *kernelLogReader) add(n int, err error) error {
	switch {
	case errors.Is(err, unix.EPIPE): // overwritten before it was read; the next read continues with the oldest one left
		k.lost++
		return nil
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", kernelLogFile, err)
	case n <= 0:
		return fmt.Errorf("read %s: %w", kernelLogFile, io.ErrUnexpectedEOF)
	}
	record, err := ParseKernelRecord(bytes.TrimSuffix(k.buffer[:n], []byte("\n")))
	if err != nil {
		k.log.Warn("skip kernel record", "err", err)
		k.next = 0
		return nil
	}
	if k.lost > 0 && k.next > 0 && record.Sequence > k.next {
		k.lost = record.Sequence - k.next
	}
	record.Lost, k.lost, k.next = k.lost, 0, record.Sequence+1
	record.Up = record.Time + k.slept()
	k.each(record)
	return nil
}

// timeAsleep is how long the machine has slept since boot: CLOCK_MONOTONIC, like the kernel's own log, leaves that out.
func timeAsleep() time.Duration {
	var boot, monotonic unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC,
		&monotonic) != nil {
		return 0
	}
	return max(time.Duration(boot.Nano()-monotonic.Nano()), 0)
}
