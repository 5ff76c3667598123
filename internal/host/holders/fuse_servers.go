package holders

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// FUSEServers returns the processes that may serve a FUSE connection, which is named by the minor number of the
// filesystem's anonymous device: all that hold /dev/fuse open, except those whose
// connection the kernel shows to be another one (Linux 6.16 has fuse_connection in /proc/PID/fdinfo). When the last of
// them is gone the kernel ends the connection. It is an error if the files of one process could not be read.
func FUSEServers(ctx context.Context, h *host.Host, connection int) ([]int, error) {
	pids, err := h.PIDs()
	if err != nil {
		return nil, err
	}
	var servers []int
	left := maxHolderFiles
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		serves, err := servesFUSE(h, pid, connection, &left)
		if err != nil {
			return nil, fmt.Errorf("open files of process %d: %w", pid, err)
		}
		if serves {
			servers = append(servers, pid)
		}
	}
	return servers, nil
}

// ServesFUSE reports whether a process may serve any FUSE connection.
func ServesFUSE(h *host.Host, pid int) (bool, error) {
	left := maxHolderFiles
	return servesFUSE(h, pid, anyConnection, &left)
}

// anyConnection stands for whatever connection it is.
const anyConnection = -1

// servesFUSE checks the open files of all threads.
func servesFUSE(h *host.Host, pid, connection int, left *int) (bool, error) {
	return anyFile(h, pid, left, func(dir, fd string) (bool, error) { return isFUSE(h, dir, fd, connection) })
}

// anyFile reports whether one of the open files of a process matches: of all its threads, which may have their own, or
// have outlived the first one.
func anyFile(h *host.Host, pid int, left *int, match func(dir, fd string) (bool, error)) (bool, error) {
	threads, err := h.Files.List(proc.File(pid, "task"))
	if err != nil {
		return false, proc.UnlessGone(err)
	}
	var before []string
	for _, thread := range threads {
		dir := proc.File(pid, path.Join("task", thread))
		files, err := h.Files.List(dir + "/fd")
		if proc.UnlessGone(err) != nil {
			return false, err
		}
		slices.Sort(files)
		if slices.Equal(files, before) {
			continue // most threads share theirs
		}
		before = files
		if *left -= len(files); *left < 0 {
			return false, fmt.Errorf("more than %d on this machine", maxHolderFiles)
		}
		for _, fd := range files {
			if found, err := match(dir, fd); found || err != nil {
				return found, err
			}
		}
	}
	return false, nil
}

// isFUSE reports whether an open file may be the server's end of a FUSE connection.
func isFUSE(h *host.Host, dir, fd string, connection int) (bool, error) {
	name, err := h.Files.Link(dir + "/fd/" + fd)
	if err != nil || !strings.HasPrefix(name, "/") {
		return false, proc.UnlessGone(err) // sockets and the like have no path
	}
	info, err := h.Files.Read(dir + "/fdinfo/" + fd)
	if err != nil {
		return false, proc.UnlessGone(err)
	}
	if number, ok := fuseConnection(info); ok {
		return connection == anyConnection || number == connection, nil
	}
	return path.Base(strings.TrimSuffix(name, " (deleted)")) == "fuse", nil
}

// fuseConnection finds the connection in the content of a file in /proc/PID/fdinfo:
//
//	pos:	0
//	flags:	02100002
//	fuse_connection:	45
func fuseConnection(info []byte) (int, bool) {
	for line := range bytes.Lines(info) {
		if value, ok := bytes.CutPrefix(line, []byte("fuse_connection:")); ok {
			number, err := strconv.Atoi(string(bytes.TrimSpace(value)))
			return number, err == nil
		}
	}
	return 0, false
}
