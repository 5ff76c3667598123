package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// probeName is what a probe child finds as its own name. It stands in process lists, so that people know what it is.
const probeName = "nodeagent-probe"

// ProbeMain makes this process a probe child if it was started as one: it does the one request of its argument, writes
// the answer to standard output and exits. Otherwise it returns at once. It is the first call of main, and of TestMain
// where a package's tests probe: the child is the program itself, and nothing of it shall have run before.
func ProbeMain() {
	if len(os.Args) == 2 && os.Args[0] == probeName {
		_ = os.WriteFile("/proc/self/comm", []byte(probeName), 0) // it was started as "exe"; a hung one shall be known by its name
		if err := serveProbe(os.Args[1], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(0)
	}
}

func serveProbe(request string, out io.Writer) error {
	var r ProbeRequest
	if err := json.Unmarshal([]byte(request), &r); err != nil {
		return fmt.Errorf("probe request: %w", err)
	}
	do := map[ProbeOp]func(path string) (ProbeAnswer, error){
		ProbeStatfs: probeStatfs, ProbeAllowances: probeAllowances, ProbeFabric: probeFabric,
	}[r.Op]
	if do == nil {
		return fmt.Errorf("unknown probe %q", r.Op)
	}
	answer, err := do(r.Path)
	if err != nil {
		return fmt.Errorf("probe %s %s: %w", r.Op, r.Path, err)
	}
	return json.NewEncoder(out).Encode(answer)
}

// probeStatfs asks a mounted filesystem whether it still answers. The path is held by a descriptor first, so that all
// calls speak of the same file. What is mounted on a file (a bind) cannot be opened as a directory; there the attributes,
// which the filesystem is asked for too, must do: opening could wake a device or a pipe.
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
	answer := ProbeAnswer{
		Flags:      fs.Flags,
		Type:       fs.Type,
		FreeBytes:  fs.Bavail * uint64(fs.Frsize),
		TotalBytes: fs.Blocks * uint64(fs.Frsize),
	}
	var stat unix.Stat_t
	if err = unix.Fstat(fd, &stat); err == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		var dir int
		if dir, err = unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
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

// refusal makes an answer of the kernel's refusal.
func refusal(err error) (ProbeAnswer, error) {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return ProbeAnswer{Errno: int(errno)}, nil
	}
	return ProbeAnswer{}, err
}
