package replay

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
)

// usedFields are the fields of journalRecord.
var usedFields = []string{"_TRANSPORT", "SYSLOG_IDENTIFIER", "SYSLOG_FACILITY", "MESSAGE", "PRIORITY", "_SYSTEMD_UNIT", "_SYSTEMD_CGROUP",
	"_COMM", "_PID", "SYSLOG_PID", "CONTAINER_ID", "_BOOT_ID", "__REALTIME_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "_SOURCE_MONOTONIC_TIMESTAMP"}

// fieldReader converts journalctl -o export and -o verbose to -o json: a record in its first line, then an empty line
// for each further line, so that numbers of lines stay right.
//
//	__CURSOR=s=39;…                  Tue 2023-11-21 01:02:03.123456 UTC [s=39;…;b=0f3c…;m=3066ed41;t=60a9f0d6c0a40;x=1]
//	_TRANSPORT=kernel                    _TRANSPORT=kernel
//	MESSAGE                              MESSAGE=text
//	<8 bytes: size>text                          its second line
//
// Text of a message cannot pass for a field: export has the size of a message with line breaks, verbose indents each
// further line of a field by more than the name of the field.
type fieldReader struct {
	in      *bufio.Reader
	verbose bool

	ahead  []byte // the head of the next record; only with verbose
	record map[string]string
	lines  int  // of the record
	forged bool // the record has two values of a field that journald sets once
	out    bytes.Buffer
	err    error
}

// withFields returns r, or a fieldReader of it if r starts like a log of such a form.
func withFields(r *bufio.Reader) *bufio.Reader {
	start, _ := r.Peek(1024)
	for bytes.HasPrefix(start, []byte("-- ")) { // -- Logs begin at …
		_, start, _ = bytes.Cut(start, []byte("\n"))
	}
	verbose := verboseRecord.Regexp().Match(start)
	if !verbose && !bytes.HasPrefix(start, []byte("__CURSOR=")) && !bytes.HasPrefix(start, []byte("__REALTIME_TIMESTAMP=")) {
		return r
	}
	return bufio.NewReaderSize(&fieldReader{in: r, verbose: verbose}, maxLine)
}

// Read implements io.Reader.
func (f *fieldReader) Read(p []byte) (int, error) {
	for f.out.Len() == 0 {
		if f.err != nil {
			return 0, f.err
		}
		f.record, f.lines, f.forged = map[string]string{}, 0, false
		f.err = f.readRecord()
		if text, _ := json.Marshal(f.record); f.record["MESSAGE"] != "" && !f.forged {
			f.out.Write(text)
		}
		f.out.Write(bytes.Repeat([]byte("\n"), f.lines))
	}
	return f.out.Read(p)
}

func (f *fieldReader) readRecord() error {
	if f.ahead != nil {
		f.head(f.ahead)
		f.ahead, f.lines = nil, 1
	}
	for {
		line, err := f.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			line = bytes.Clone(line)
		}
		for errors.Is(err, bufio.ErrBufferFull) { // the rest of the line
			_, err = f.in.ReadSlice('\n')
		}
		if len(line) == 0 && err != nil {
			return err
		}
		line = stripColour(bytes.TrimRight(line, "\r\n"))
		if f.verbose && verboseRecord.Regexp().Match(line) && f.lines > 0 {
			f.ahead = bytes.Clone(line)
			return nil
		}
		f.lines++
		name, value, isField := bytes.Cut(line, []byte("="))
		switch {
		case f.verbose && f.lines == 1:
			f.head(line)
		case f.verbose:
			if name, ok := bytes.CutPrefix(name, []byte("    ")); ok && isField && !bytes.HasPrefix(name, []byte(" ")) {
				f.set(string(name), value)
			}
		case len(line) == 0:
			return nil
		case isField:
			f.set(string(name), value)
		default:
			if err := f.readSized(string(name)); err != nil {
				return err
			}
		}
	}
}

// head reads the cursor in the head of a verbose record.
func (f *fieldReader) head(line []byte) {
	for part := range strings.SplitSeq(strings.TrimSuffix(string(line[bytes.IndexByte(line, '[')+1:]), "]"), ";") {
		key, value, _ := strings.Cut(part, "=")
		us, err := strconv.ParseUint(value, 16, 53)
		switch {
		case key == "b":
			f.record["_BOOT_ID"] = value
		case key == "m" && err == nil:
			f.record["__MONOTONIC_TIMESTAMP"] = strconv.FormatUint(us, 10)
		case key == "t" && err == nil:
			f.record["__REALTIME_TIMESTAMP"] = strconv.FormatUint(us, 10)
		}
	}
}

// readSized reads the value of a field of several lines or bytes: its size in 8 bytes, the value, a line break.
func (f *fieldReader) readSized(name string) error {
	var size [8]byte
	if _, err := io.ReadFull(f.in, size[:]); err != nil {
		return fmt.Errorf("the log ends within field %.64q", name)
	}
	value := clipped{breaks: bytes.Count(size[:], []byte("\n"))}
	length := binary.LittleEndian.Uint64(size[:])
	if length > 1<<30 { // of journald: 768 MiB
		return fmt.Errorf("field %.64q has %d bytes: the log was changed after journalctl wrote it", name, length)
	}
	if _, err := io.CopyN(&value, f.in, int64(length)+1); err != nil {
		return fmt.Errorf("the log ends within field %.64q, which has %d bytes", name, length)
	}
	f.lines += value.breaks
	f.set(name, value.text[:min(length, uint64(len(value.text)))])
	return nil
}

// set keeps the first value of a field.
func (f *fieldReader) set(name string, value []byte) {
	if !slices.Contains(usedFields, name) {
		return
	}
	if _, ok := f.record[name]; ok {
		f.forged = f.forged || strings.HasPrefix(name, "_") && name != "_BOOT_ID"
		return
	}
	f.record[name] = string(value[:min(len(value), kernellog.MaxText)])
}

// clipped keeps the start of a text, and counts its line breaks.
type clipped struct {
	text   []byte
	breaks int
}

// Write implements io.Writer.
func (c *clipped) Write(p []byte) (int, error) {
	c.breaks += bytes.Count(p, []byte("\n"))
	c.text = append(c.text, p[:min(len(p), kernellog.MaxText-len(c.text))]...)
	return len(p), nil
}
