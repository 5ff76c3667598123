package lab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// mount is one line of /proc/PID/mountinfo, see proc_pid_mountinfo(5):
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
type mount struct {
	ID, Parent   int
	Major, Minor uint32
	Root, Point  string // unescaped
	Shared       bool
	Type, Source string
}

func parseMountinfo(text string) ([]mount, error) {
	var mounts []mount
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		m, err := parseMount(line)
		if err != nil {
			return nil, fmt.Errorf("mountinfo line %q: %w", line, err)
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

func parseMount(line string) (mount, error) {
	left, right, ok := strings.Cut(line, " - ")
	fields, tail := strings.Fields(left), strings.Fields(right)
	if !ok || len(fields) < 6 || len(tail) < 1 {
		return mount{}, fmt.Errorf("too few fields")
	}
	m := mount{Root: unescape(fields[3]), Point: unescape(fields[4]), Type: tail[0]}
	if len(tail) > 1 { // an empty source leaves two blanks after the type
		m.Source = unescape(tail[1])
	}
	var err error
	if m.ID, err = strconv.Atoi(fields[0]); err != nil {
		return mount{}, err
	}
	if m.Parent, err = strconv.Atoi(fields[1]); err != nil {
		return mount{}, err
	}
	major, minor, _ := strings.Cut(fields[2], ":")
	for text, into := range map[string]*uint32{major: &m.Major, minor: &m.Minor} {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return mount{}, err
		}
		*into = uint32(n)
	}
	for _, option := range fields[6:] {
		m.Shared = m.Shared || strings.HasPrefix(option, "shared:")
	}
	return m, nil
}

// unescape decodes the kernel's \ooo for blanks, tabs, newlines, backslashes and '#'.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func readMounts() ([]mount, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountinfo(string(data))
}

// mountsWithin returns the mounts on and below dir, the topmost first.
func mountsWithin(mounts []mount, dir string) []mount {
	var found []mount
	for i := len(mounts) - 1; i >= 0; i-- { // the kernel lists a parent before its children
		if within(mounts[i].Point, dir) {
			found = append(found, mounts[i])
		}
	}
	return found
}

// mountOf returns the mount that path is on; path must not contain symbolic links.
func mountOf(mounts []mount, path string) (mount, bool) {
	best, ok := mount{}, false
	for _, m := range mounts {
		if within(path, m.Point) && (!ok || len(m.Point) >= len(best.Point)) {
			best, ok = m, true
		}
	}
	return best, ok
}
