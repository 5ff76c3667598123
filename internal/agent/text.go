package agent

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// span is a part of the address space.
type span struct{ start, end uintptr }

// programText returns where the agent's own program lies in memory; nothing where that cannot be found out.
func programText() (text []span) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(maps)) {
		if part, ok := textOf(line, program); ok {
			text = append(text, part)
		}
	}
	return text
}

// drop lets go of pages of the agent's own program. They are clean pages of a file: MADV_DONTNEED (madvise(2)) takes them
// out of this process alone, and what is used again comes back from the page cache, sixteen pages and more at a time
// (fault_around_bytes). Where it does not work the agent is some megabytes larger.
func drop(text []span) {
	for _, part := range text {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, part.start, part.end-part.start, unix.MADV_DONTNEED)
	}
}

// textOf returns the addresses of a line of /proc/PID/maps that maps the program and cannot be written: nothing in it
// differs from the file.
//
//	00400000-01a3b000 r-xp 00000000 fe:00 1234    /usr/bin/nodeagent
func textOf(line, program string) (span, bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || strings.Join(fields[5:], " ") != program || (fields[1] != "r-xp" && fields[1] != "r--p") {
		return span{}, false
	}
	from, to, _ := strings.Cut(fields[0], "-")
	a, errA := strconv.ParseUint(from, 16, 64)
	b, errB := strconv.ParseUint(to, 16, 64)
	return span{uintptr(a), uintptr(b)}, errA == nil && errB == nil && a < b
}
