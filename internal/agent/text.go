package agent

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dropUnusedText lets go of the pages of the agent's own program, of which most was used at the start only. They are clean
// pages of a file: MADV_DONTNEED (madvise(2)) takes them out of this process alone, and what is used again comes back from
// the page cache. Where it does not work the agent is some megabytes larger.
func dropUnusedText() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(maps)) {
		if start, end, ok := programText(line, program); ok {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTNEED)
		}
	}
}

// programText returns the addresses of a line of /proc/PID/maps that maps the program and cannot be written: nothing in it
// differs from the file.
//
//	00400000-01a3b000 r-xp 00000000 fe:00 1234    /usr/bin/nodeagent
func programText(line, program string) (start, end uintptr, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || strings.Join(fields[5:], " ") != program || (fields[1] != "r-xp" && fields[1] != "r--p") {
		return 0, 0, false
	}
	from, to, _ := strings.Cut(fields[0], "-")
	a, errA := strconv.ParseUint(from, 16, 64)
	b, errB := strconv.ParseUint(to, 16, 64)
	return uintptr(a), uintptr(b), errA == nil && errB == nil && a < b
}
