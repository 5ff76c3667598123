package discover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// MaxSocketPath is the size of sun_path, less the NUL at its end: see unix(7).
const MaxSocketPath = 107

// CheckSocket reports why a path cannot be that of a socket: it is relative, or too long for unix(7).
func CheckSocket(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("socket %q: not an absolute path", path)
	}
	if len(path) > MaxSocketPath {
		return fmt.Errorf("socket %q: longer than %d bytes", path, MaxSocketPath)
	}
	return nil
}

// SocketOwner finds the process that listens on a Unix socket. SO_PEERCRED of a new connection names the caller of
// listen(2); with socket activation that is systemd, and a daemon that handed its socket to a successor may be long
// gone. So the process must really hold the listening socket; if it does not, SocketOwner searches for one that does.
// An error that wraps fs.ErrNotExist or syscall.ECONNREFUSED means that no process listens.
func SocketOwner(ctx context.Context, files host.Files, socket string) (host.Process, error) {
	h := &host.Host{Files: files}
	pid, err := peerPID(ctx, socket)
	if err != nil {
		return host.Process{}, err
	}
	inodes, err := listeningInodes(files, socket)
	if err != nil {
		return host.Process{}, err
	}
	if pid <= 1 && len(inodes) == 0 {
		return host.Process{}, fmt.Errorf("owner of %s: held by PID %d for another process", socket, pid)
	}
	if holds, _ := HoldsSocket(h, pid, inodes); pid > 1 && (holds || len(inodes) == 0) && rootsOwn(h, pid) {
		return process(h, pid)
	}
	pids, err := h.PIDs()
	if err != nil {
		return host.Process{}, err
	}
	var unread error
	for _, pid := range pids {
		if ctx.Err() != nil {
			return host.Process{}, fmt.Errorf("owner of %s: %w", socket, ctx.Err())
		}
		holds, err := HoldsSocket(h, pid, inodes)
		switch {
		case pid > 1 && holds && rootsOwn(h, pid):
			return process(h, pid)
		case proc.UnlessGone(err) != nil:
			unread = err
		}
	}
	if unread != nil {
		return host.Process{}, fmt.Errorf("owner of %s: %w", socket, unread)
	}
	return host.Process{}, fmt.Errorf("owner of %s: no process but the one that activates it: %w", socket,
		fs.ErrNotExist)
}

// peerPID returns the process that called listen(2) on the socket, 0 if it is in another PID namespace.
func peerPID(ctx context.Context, socket string) (int, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return RootsPeer(conn, socket)
}

// ErrNotRoots means that a server runs as another user than root: it is not the node's.
var ErrNotRoots = errors.New("only a server of root's is believed")

// RootsPeer returns the process that called listen(2), which must have been root's.
func RootsPeer(conn net.Conn, socket string) (int, error) {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("peer of %s: %w", socket, err)
	}
	var peer *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		peer, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, optErr); err != nil {
		return 0, fmt.Errorf("peer of %s: %w", socket, err)
	}
	if !owned.UID(peer.Uid) {
		return 0, fmt.Errorf("process %d of user %d listens on %s: %w", peer.Pid, peer.Uid, socket, ErrNotRoots)
	}
	return int(peer.Pid), nil
}

// listeningInodes reads the inodes of sockets that listen on path from /proc/net/unix:
//
//	Num       RefCount Protocol Flags    Type St Inode Path
//	ffff…: 00000002 00000000 00010000 0001 01 8893347 /run/containerd/containerd.sock
//
// There may be several: a socket that was unlinked and bound again still has its name. Flag 0x10000 is __SO_ACCEPTCON.
// Names are as given to bind(2), so a name through a symbolic link (/var/run) is compared by its target too.
func listeningInodes(files host.Files, path string) (map[string]bool, error) {
	data, err := files.Read("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(files.Path(path))
	if err != nil {
		real = path
	}
	inodes := make(map[string]bool)
	ParseListening(string(data), func(inode, name string) {
		if name == path || name == real || strings.HasPrefix(name, "/var/run/") &&
			strings.TrimPrefix(name, "/var") == real {
			inodes[inode] = true
		}
	})
	return inodes, nil
}

// ParseListening calls each for the listening sockets with a name in the text of /proc/net/unix (proc_net(5)).
func ParseListening(table string, each func(inode, name string)) {
	for line := range strings.Lines(table) {
		fields, name := cutFields(strings.TrimSuffix(line, "\n"), 7)
		if len(fields) < 7 || name == "" {
			continue // the head line, and sockets without a name
		}
		flags, err := strconv.ParseUint(fields[3], 16, 32)
		if err == nil && flags&0x10000 != 0 {
			each(fields[6], name)
		}
	}
}

// cutFields returns the first n blank-separated fields of a line, and the rest after the one blank that follows.
func cutFields(line string, n int) (fields []string, rest string) {
	for len(fields) < n {
		line = strings.TrimLeft(line, " ")
		if line == "" {
			return fields, ""
		}
		field, after, _ := strings.Cut(line, " ")
		fields, line = append(fields, field), after
	}
	return fields, line
}

// HoldsSocket reports whether a process has one of the sockets with these inodes open.
func HoldsSocket(h *host.Host, pid int, inodes map[string]bool) (bool, error) {
	dir := proc.File(pid, "fd")
	names, err := h.Files.List(dir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		target, err := h.Files.Link(dir + "/" + name)
		if err != nil {
			continue // closed meanwhile
		}
		inode, ok := strings.CutPrefix(target, "socket:[")
		if ok && inodes[strings.TrimSuffix(inode, "]")] {
			return true, nil
		}
	}
	return false, nil
}

// process reads the identity of a process. The arguments are bounded by ProcArgs.
func process(h *host.Host, pid int) (host.Process, error) {
	stat, err := h.ProcStat(pid)
	if err != nil {
		return host.Process{}, err
	}
	p := processOf(stat)
	if p.Args, err = h.ProcArgs(pid); err != nil {
		return host.Process{}, err
	}
	return p, nil
}

// processOf is a process without its arguments.
func processOf(stat proc.Stat) host.Process {
	return host.Process{PID: stat.PID, StartTime: stat.StartTime, Comm: stat.Comm}
}
