package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A slow disk has slower flushes: each fsync and fdatasync of a program waits before it enters the kernel. A seccomp
// filter passes those calls to a helper process, which lets them continue (seccomp_unotify(2)); the program is
// otherwise unaffected. O_SYNC writes are not delayed: in nats-server these are small files besides the messages.

const (
	slowVerb = "slow"
	diskVerb = "disk"
)

// slowly runs a command, not started yet, on such a disk.
func slowly(cmd *exec.Cmd, delay time.Duration) (started func() error, err error) {
	if delay == 0 {
		return func() error { return nil }, nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "filter"), os.NewFile(uintptr(pair[1]), "filter")
	own, err := os.Executable()
	if err != nil {
		return nil, errors.Join(err, ours.Close(), theirs.Close())
	}
	// A process of its own: in this one, ten thousand nodes would delay a flush for much longer.
	disk := exec.Command(own, diskVerb, delay.String())
	disk.Stderr, disk.ExtraFiles = os.Stderr, []*os.File{ours}
	disk.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Args = append([]string{os.Args[0], slowVerb, cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.ExtraFiles = own, []*os.File{theirs}
	err = disk.Start()
	if closed := ours.Close(); err != nil || closed != nil {
		return nil, errors.Join(err, closed, theirs.Close())
	}
	go func() { _ = disk.Wait() }() // it ends with the program
	return theirs.Close, nil
}

// runDisk lets the flushes of another process continue, each after the delay, until that process ends.
func runDisk(_ context.Context, args []string) error {
	delay, err := time.ParseDuration(strings.Join(args, ""))
	if err != nil {
		return err
	}
	from := os.NewFile(3, "filter")
	defer from.Close()
	filter, err := receiveFile(from)
	if err != nil {
		return fmt.Errorf("the filter of flushes: %w", err)
	}
	defer filter.Close()
	delayAll(int(filter.Fd()), delay)
	return nil
}

func receiveFile(from *os.File) (*os.File, error) {
	conn, err := net.FileConn(from)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) == 0 {
		return nil, errors.Join(errors.New("no file came"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("no file came"), err)
	}
	return os.NewFile(uintptr(fds[0]), "filter"), nil
}

// runSlow is the started program until it executes the real one.
func runSlow(_ context.Context, args []string) error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	verdict := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jt: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jt: 1},
		verdict(unix.SECCOMP_RET_ALLOW), verdict(unix.SECCOMP_RET_USER_NOTIF),
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&prog)))
	if failed != 0 {
		return fmt.Errorf("seccomp: %w", failed)
	}
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return err
	}
	if err := errors.Join(unix.Close(3), unix.Close(int(fd))); err != nil {
		return err
	}
	return syscall.Exec(args[0], args, os.Environ())
}

// notification and reply are struct seccomp_notif and seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	data       [64]byte
}

type reply struct {
	id           uint64
	value        int64
	error, flags uint32
}

// delayAll lets each call continue after the delay, until the program ends.
func delayAll(fd int, delay time.Duration) {
	for {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			if ready[0].Revents != 0 {
				return
			}
			continue
		}
		var n notification
		if _, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV,
			uintptr(unsafe.Pointer(&n))); err != 0 {
			continue // the caller is gone
		}
		time.AfterFunc(delay, func() {
			r := reply{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
			_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
		})
	}
}
