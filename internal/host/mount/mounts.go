// Package mount reads mount tables, and says what an unmount would take along.
package mount

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Mount is one line of a mount table, with all escapes undone:
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//
// See proc_pid_mountinfo(5). A device number is that of the superblock: binds of one filesystem share it, and btrfs
// shows an anonymous one (major 0) that belongs to no block device.
type Mount struct {
	ID, Parent   int // the kernel gives the ID of an unmounted mount to a new one
	Major, Minor int
	Root         string // what of the filesystem is mounted; "/" unless it is a bind
	Point        string // where; "//deleted" is appended when the directory below the mount was removed
	FSType       string // "fuse.sshfs" style subtypes included
	Source       string
	Options      []string // of this mount: "ro" here does not say that the filesystem is read-only
	SuperOptions []string // of the filesystem
	Optional     string   // propagation: "shared:1 master:2", blank separated; unknown tags are kept

	// What Optional says: numbers of peer groups, the same in all mount namespaces; 0 for none. See
	// mount_namespaces(7).
	Shared int // it and all others of this group pass mounts and unmounts below them on to one another
	// what is unmounted below a member of this group is unmounted below it too, not the other way round
	Master        int
	PropagateFrom int // where Master cannot be seen from here: the nearest group above it that can
}

// Device is the number of the superblock as the kernel writes it: "98:0".
func (m Mount) Device() string { return fmt.Sprintf("%d:%d", m.Major, m.Minor) }

// ParseMounts reads a whole mount table. A malformed line is an error that quotes it.
//
// The field's usual parser (moby/sys/mountinfo) is not used because it takes a malformed number for 0, which here
// would be another filesystem's identity, and fails on lines above 64 KiB, which overlayfs with many layers can have.
func ParseMounts(r io.Reader) ([]Mount, error) {
	var mounts []Mount
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if text := strings.TrimSuffix(line, "\n"); text != "" {
			m, parseErr := parseMount(text)
			if parseErr != nil {
				return nil, fmt.Errorf("mount table line %q: %w", hosterr.Clip(text), parseErr)
			}
			mounts = append(mounts, m)
		}
		if err == io.EOF {
			return mounts, nil
		}
		if err != nil {
			return nil, fmt.Errorf("mount table: %w", err)
		}
	}
}

// parseMount parses one line. Fields are separated by single blanks, and the source may be empty.
func parseMount(line string) (Mount, error) {
	fields := strings.Split(line, " ")
	dash := separator(fields)
	if dash < 0 {
		return Mount{}, fmt.Errorf("want 6 fields, any number of tags, a dash and 3 fields")
	}
	m := Mount{
		FSType:   unescape(fields[dash+1]),
		Source:   unescape(fields[dash+2]),
		Options:  splitOptions(fields[5]),
		Optional: strings.Join(fields[6:dash], " "),
		// Old kernels let the options of CIFS contain blanks.
		SuperOptions: splitOptions(strings.Join(fields[dash+3:], " ")),
	}
	major, minor, _ := strings.Cut(fields[2], ":")
	for _, number := range []struct {
		text string
		into *int
	}{{fields[0], &m.ID}, {fields[1], &m.Parent}, {major, &m.Major}, {minor, &m.Minor}} {
		n, err := strconv.ParseUint(number.text, 10, 32)
		if err != nil {
			return Mount{}, fmt.Errorf("number %q: %w", number.text, err)
		}
		*number.into = int(n)
	}
	m.Root, m.Point = unescape(fields[3]), unescape(fields[4])
	if !strings.HasPrefix(m.Point, "/") {
		return Mount{}, fmt.Errorf("mount point %q is not absolute", m.Point)
	}
	return m, m.setPropagation(fields[6:dash])
}

// setPropagation parses the optional fields. A tag that is not known is no error, a number that is none is.
func (m *Mount) setPropagation(tags []string) error {
	for _, tag := range tags {
		name, value, _ := strings.Cut(tag, ":")
		var into *int
		switch name {
		case "shared":
			into = &m.Shared
		case "master":
			into = &m.Master
		case "propagate_from":
			into = &m.PropagateFrom
		default:
			continue
		}
		group, err := strconv.ParseUint(value, 10, 31)
		if err != nil || group == 0 {
			return fmt.Errorf("peer group %q", tag)
		}
		*into = int(group)
	}
	return nil
}

// separator returns the index of the dash that ends the optional fields, or -1. A tag is never a lone dash, so that the
// first one counts: the source may be a dash too.
func separator(fields []string) int {
	for i := 6; i+3 < len(fields); i++ {
		if fields[i] == "-" {
			return i
		}
	}
	return -1
}

// splitOptions splits at commas; one that belongs to a value is escaped by the kernel.
func splitOptions(text string) []string {
	options := strings.Split(text, ",")
	for i, option := range options {
		options[i] = unescape(option)
	}
	return options
}

// unescape undoes the kernel's \ooo. Some filesystems (CIFS) print sources and options with bare backslashes, so that
// one which begins no escape stands for itself.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+4 <= len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

// errNoMounts is what a process sees that changed its root to a plain directory.
var errNoMounts = errors.New("empty mount table")

// Table returns the mount table of the host: that of the process which stands for init.
func Table(h *host.Host) ([]Mount, error) { return TableOf(h, max(h.Paths.InitPID, 1)) }

// TableOf returns the mount table that a process sees. It works without touching any of the mounts.
func TableOf(h *host.Host, pid int) ([]Mount, error) {
	name := fmt.Sprintf("/proc/%d/mountinfo", pid)
	file, err := os.Open(h.Files.Path(name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	limited := &io.LimitedReader{R: file, N: host.MaxFile + 1}
	mounts, err := ParseMounts(limited)
	switch {
	case limited.N == 0:
		return nil, fmt.Errorf("read %s: larger than %d bytes", name, host.MaxFile)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", name, err)
	case len(mounts) == 0:
		// Even an empty container has a root: a table without any mount proves nothing.
		return nil, fmt.Errorf("read %s: %w", name, errNoMounts)
	}
	return mounts, nil
}

// Below reports whether name is dir or lies below it, by whole path components. Neither is looked up.
func Below(name, dir string) bool {
	name, dir = path.Clean(name), path.Clean(dir)
	return name == dir || dir == "/" && strings.HasPrefix(name, "/") || strings.HasPrefix(name, dir+"/")
}
