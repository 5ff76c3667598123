package holders

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// FUSEServers returns the processes that may serve a FUSE connection, identified by the minor number of the
// filesystem's anonymous device: all that hold /dev/fuse open, except those for which the kernel shows another
// connection (Linux 6.16 has fuse_connection in /proc/PID/fdinfo). When the last of them is gone the kernel ends the
// connection. It is an error if the files of one process could not be read.
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

// ServesConnection reports whether a process may serve a FUSE connection: see FUSEServers. If it may serve a connection
// that does not exist, the kernel does not show which one it serves.
func ServesConnection(h *host.Host, pid, connection int) (bool, error) {
	left := maxHolderFiles
	return servesFUSE(h, pid, connection, &left)
}

// anyConnection matches every connection.
const anyConnection = -1

// servesFUSE checks the open files of all threads.
func servesFUSE(h *host.Host, pid, connection int, left *int) (bool, error) {
	return anyFile(h, pid, left, func(dir, fd string) (bool, error) { return isFUSE(h, dir, fd, connection) })
}

// Opens returns the first open file of a process, in any of its threads, for whose target match is true, such as
// "/dev/fuse" or "socket:[20511]"; "" if there is none, or the process is gone.
func Opens(h *host.Host, pid int, match func(target string) bool) (file string, err error) {
	left := math.MaxInt
	_, err = anyFile(h, pid, &left, func(dir, fd string) (bool, error) {
		target, err := h.Files.Link(dir + "/fd/" + fd)
		if errors.Is(err, syscall.ENAMETOOLONG) { // a path of more than 4095 bytes: any program can make one
			return false, nil
		}
		if err != nil || !match(target) {
			return false, proc.UnlessGone(err)
		}
		file = target
		return true, nil
	})
	return file, err
}

// anyFile reports whether one of the open files of a process matches. It checks all threads, which may have their own
// files, or have outlived the first one.
func anyFile(h *host.Host, pid int, left *int, match func(dir, fd string) (bool, error)) (bool, error) {
	search := fileSearch{host: h, left: left, match: match, asked: map[string]bool{}}
	for range maxThreadListings {
		threads, err := h.Files.List(proc.File(pid, "task"))
		if err != nil {
			return false, proc.UnlessGone(err)
		}
		slices.Sort(threads)
		found, again, err := search.in(pid, threads)
		if found || err != nil || !again {
			return found, err
		}
	}
	if search.checked != "" && !search.ended(pid, search.checked) {
		return false, nil // new threads have the checked one's files
	}
	return false, errors.New("its threads end faster than their open files can be read")
}

// maxThreadListings bounds how often the threads of a process are listed for one search.
const maxThreadListings = 16

// fileSearch is the search of one process.
type fileSearch struct {
	host    *host.Host
	left    *int
	match   func(dir, fd string) (bool, error)
	asked   map[string]bool // threads
	checked string          // the last thread whose open files were checked
	before  []string        // these files
}

// in searches the files of threads not asked before. If one of them had none, again is true: it may have started others,
// and have ended, since they were listed.
func (s *fileSearch) in(pid int, threads []string) (found, again bool, err error) {
	for _, thread := range threads {
		if s.asked[thread] {
			continue
		}
		s.asked[thread] = true
		if s.checked != "" && shareFiles(s.host, s.checked, thread) {
			continue
		}
		dir := proc.File(pid, path.Join("task", thread))
		files, err := s.host.Files.List(dir + "/fd")
		if proc.UnlessGone(err) != nil {
			return false, false, err
		}
		again = again || len(files) == 0
		if *s.left -= len(files); *s.left < 0 {
			return false, false, errManyFiles
		}
		slices.Sort(files)
		if slices.Equal(files, s.before) {
			continue // the kernel cannot compare them
		}
		s.before, s.checked = files, thread
		for _, fd := range files {
			if found, err := s.match(dir, fd); found || err != nil {
				return found, false, err
			}
		}
		if s.ended(pid, thread) { // some of its files may not have been shown
			again, s.checked, s.before = true, "", nil
		}
	}
	return false, again, nil
}

// ended reports whether a thread does not run any more, or is exiting.
func (s *fileSearch) ended(pid int, thread string) bool {
	stat, err := proc.Read(s.host.Files, proc.File(pid, path.Join("task", thread, "stat")))
	return err != nil || proc.Exiting(stat)
}

var errManyFiles = errors.New("more files are open than are looked at")

// shareFiles reports whether two threads are known to have the same open files: kcmp(2), if the kernel has it.
func shareFiles(h *host.Host, thread, other string) bool {
	if h.Files.Root != "" {
		return false // another /proc: its threads are not those of this machine
	}
	a, errA := strconv.Atoi(thread)
	b, errB := strconv.Atoi(other)
	const kcmpFiles = 2 // include/uapi/linux/kcmp.h
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	return errA == nil && errB == nil && errno == 0 && order == 0
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
