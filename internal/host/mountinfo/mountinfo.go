// Package mountinfo parses mount tables of the kernel.
package mountinfo

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Mount is one line of a mount table, with all escapes undone:
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//
// See proc_pid_mountinfo(5). A device number is that of the superblock: binds of one filesystem share it, and btrfs
// shows an anonymous one (major 0) that belongs to no block device.
type Mount struct {
	ID, Parent   int // the kernel reuses the ID of an unmounted mount
	Major, Minor int
	Root         string // mounted part of the filesystem; "/" unless it is a bind
	Point        string // mount point; "//deleted" is appended if the directory below the mount was removed
	FSType       string // "fuse.sshfs" style subtypes included
	Source       string
	Options      []string // of this mount: "ro" here does not mean that the filesystem is read-only
	SuperOptions []string // of the filesystem
	Optional     string   // propagation: "shared:1 master:2", blank separated; unknown tags are kept

	// Parsed from Optional: numbers of peer groups, the same in all mount namespaces; 0 for none. See
	// mount_namespaces(7).
	Shared int // all mounts of this group propagate mounts and unmounts below them to one another
	// unmounts below a member of this group propagate to it, but not vice versa
	Master        int
	PropagateFrom int // if Master cannot be seen from here: the nearest visible group above it
}

// Device returns the number of the superblock in the kernel's form: "98:0".
func (m Mount) Device() string { return strconv.Itoa(m.Major) + ":" + strconv.Itoa(m.Minor) }

// Parse reads a complete mount table. A malformed line is an error that quotes it.
//
// The usual parser (moby/sys/mountinfo) does not fit: it reads a malformed number as 0, which here would be another
// filesystem's identity, and fails on lines above 64 KiB, which overlayfs with many layers can have.
func Parse(r io.Reader) ([]Mount, error) { return new(Reader).read(r) }

// Reader reads one mount table repeatedly. It parses only lines that differ, in any byte, from those of the last time,
// and returns the same table if no line does. The zero value and nil are ready for use.
type Reader struct {
	mu      sync.Mutex // guards the fields below
	input   *bufio.Reader
	long    []byte // a line that does not fit into input
	last    lines
	options map[string][]string // equal ones are stored once
	kept    kept
	going   *going // a reading that takes long

	Cost   func() time.Duration // processor time that the calling thread has used; nil: by the kernel's clock
	budget budget               // guards itself
}

// lines are a mount table and the index of each line of the text in it.
type lines struct {
	table []Mount
	at    map[string]int
}

// Read is Parse. The table is shared: it must not be modified.
func (r *Reader) Read(from io.Reader) ([]Mount, error) {
	if r == nil || !r.mu.TryLock() { // another caller reads, and may hang in the kernel
		return Parse(from)
	}
	defer r.mu.Unlock()
	return r.read(from)
}

func (r *Reader) read(from io.Reader) ([]Mount, error) {
	if r.input == nil {
		r.input = bufio.NewReader(nil) // a page, the kernel's unit
	}
	r.input.Reset(from)
	defer r.input.Reset(nil)
	var p pass
	if _, err := p.advance(r, r.input, func() bool { return true }); err != nil {
		return nil, err
	}
	return p.end(r), nil
}

// first returns a copy of the first n lines.
func (l lines) first(n int) lines {
	fresh := lines{append(make([]Mount, 0, len(l.table)+8), l.table[:n]...), make(map[string]int, len(l.table)+8)}
	for line, at := range l.at {
		if at < n {
			fresh.at[line] = at
		}
	}
	return fresh
}

// line returns the next line. It is valid until the next call; the last one may come without an end. io.EOF comes
// alone.
func (r *Reader) line(input *bufio.Reader) ([]byte, error) {
	line, err := input.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		r.long = r.long[:0]
		for ; errors.Is(err, bufio.ErrBufferFull); line, err = input.ReadSlice('\n') {
			r.long = append(r.long, line...)
		}
		r.long = append(r.long, line...)
		line = r.long
	}
	if err == io.EOF && len(line) > 0 {
		err = nil // the next call finds the end
	}
	return bytes.TrimSuffix(line, []byte("\n")), err
}

// Mounts of containers have individual options; most others have few different ones.
const (
	maxSharedOptions = 128 // bytes
	maxOptions       = 1024
)

// parse parses a new line.
func (r *Reader) parse(line string) (Mount, error) {
	m, err := parseMount(line)
	m.Options, m.SuperOptions = r.shared(m.Options), r.shared(m.SuperOptions)
	return m, err
}

// shared returns one slice for equal options.
func (r *Reader) shared(options []string) []string {
	key := strings.Join(options, ",")
	if len(key) > maxSharedOptions {
		return options
	}
	if known, ok := r.options[key]; ok && slices.Equal(known, options) {
		return known
	}
	if r.options == nil || len(r.options) >= maxOptions {
		r.options = make(map[string][]string)
	}
	r.options[key] = options
	return options
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

// setPropagation parses the optional fields. An unknown tag is no error, but an invalid number is.
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

// separator returns the index of the dash that ends the optional fields, or -1. A tag is never a lone dash, so the
// first one counts: the source may be a dash too.
func separator(fields []string) int {
	for i := 6; i+3 < len(fields); i++ {
		if fields[i] == "-" {
			return i
		}
	}
	return -1
}

// splitOptions splits at commas; the kernel escapes a comma in a value.
func splitOptions(text string) []string {
	options := strings.Split(text, ",")
	for i, option := range options {
		options[i] = unescape(option)
	}
	return options
}

// unescape undoes the kernel's \ooo. Some filesystems (CIFS) print sources and options with bare backslashes, so a
// backslash that begins no escape stays.
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
