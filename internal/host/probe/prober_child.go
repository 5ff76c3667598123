package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ChildName is the name of a probe child in process lists, so that people can recognize it.
const ChildName = "nodeagent-probe"

// init makes this process a probe child if it was started as one: it runs the requests in its argument, writes the
// answers to standard output and exits. Otherwise it returns at once. Packages that come later are not initialized in a
// child: all of them would cost twice as much processor time as the rest of a probe. The packages that a child needs
// are dependencies of this one, and so are ready.
func init() {
	if len(os.Args) == 2 && os.Args[0] == ChildName {
		nameThreads()
		var batch probeBatch
		if err := json.Unmarshal([]byte(os.Args[1]), &batch); err != nil {
			fmt.Fprintln(os.Stderr, "probe request:", err)
			os.Exit(2)
		}
		if err := batch.serve(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(0)
	}
}

// nameThreads gives each thread the child's name: it was started as "exe", any thread may hang, and a hanging one
// should be recognizable. Threads that start later inherit the name.
func nameThreads() {
	threads, _ := os.ReadDir("/proc/self/task") // only for display
	for _, thread := range threads {
		_ = os.WriteFile("/proc/self/task/"+thread.Name()+"/comm", []byte(ChildName), 0)
	}
}

// answer runs one request.
func (r wireRequest) answer() (ProbeAnswer, error) {
	path := string(r.Path)
	switch r.Op {
	case ProbeStatfs:
		return probeStatfs(path)
	case ProbeAllowances:
		return probeAllowances(path)
	case ProbeFabric:
		return probeFabric(path)
	case ProbeJournals:
		return probeJournals(path)
	case ProbeNVMeHealth:
		return withDevice(path, func(fd int) ([]byte, error) { return nvmeLog(fd, nvmeWholeDevice, 0x02, 512) })
	case ProbeNVMeEBS:
		return withDevice(path, nvmeEBS)
	case ProbeATAHealth:
		return withDevice(path, ataHealth)
	case ProbeSCSIHealth:
		return withDevice(path, scsiHealth)
	case ProbeThinPools:
		return withDevice(path, describeMapped("thin-pool", 0, unix.DM_STATUS_TABLE_FLAG))
	case ProbeMultipath:
		return withDevice(path, describeMapped("multipath", 0))
	}
	return ProbeAnswer{}, fmt.Errorf("unknown probe %q", r.Op)
}

// probeStatfs tests whether a mounted filesystem still answers. It first holds the path by a descriptor, so that all
// calls refer to the same file, and triggers no automount. A mount on a file (a bind) cannot be opened as a directory;
// for it fstat, which also asks the filesystem, must be enough: opening it could wake a device or a pipe.
func probeStatfs(path string) (ProbeAnswer, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return refusal(err)
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return refusal(err)
	}
	unit := uint64(fs.Frsize)
	answer := ProbeAnswer{
		Flags: fs.Flags, Type: fs.Type,
		FreeBytes: fs.Bavail * unit, TotalBytes: fs.Blocks * unit, RootBytes: fs.Bfree * unit,
		FreeInodes: fs.Ffree, Inodes: fs.Files,
	}
	if fs.Type == unix.AUTOFS_SUPER_MAGIC {
		return answer, nil // opening it would trigger the mount
	}
	var stat unix.Stat_t
	if err = unix.Fstat(fd, &stat); err == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		var dir int
		if dir, err = unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC,
			0); err == nil {
			err = unix.Close(dir)
		}
	}
	if err != nil {
		refused, err := refusal(err)
		answer.Errno = refused.Errno
		return answer, err
	}
	return answer, nil
}

// refusal turns the kernel's refusal into an answer.
func refusal(err error) (ProbeAnswer, error) {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return ProbeAnswer{Errno: int(errno)}, nil
	}
	return ProbeAnswer{}, err
}
