package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
)

// The attributes that a line of an export has in addition to the event's.
const (
	offsetAttribute   = "centeroffset"
	receivedAttribute = "centerreceived"
	journalAttribute  = "centerjournal"
)

const (
	exportPage = 1000
	maxLine    = 1 << 20 // of an export to be continued, in bytes
)

type export struct {
	*options
	cmd          *cobra.Command
	after, until string
	from, to     string
	file         string

	journal string
	lost    bool
}

func newExport(o *options) *cobra.Command {
	e := &export{options: o}
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the journal as lines of JSON, for a data lake",
		Long: `Write the journal as lines of JSON: each is a CloudEvent, with the attributes centeroffset, centerreceived and
centerjournal. --file continues at the end of that file: an incomplete last line is written again; a file that is no
export is refused. Events that cannot be read any more are named on standard error, and the exit code is 1.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.cmd = cmd
			return e.run()
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&e.after, "after", "", "begin after this offset (default: with the oldest event)")
	flags.StringVar(&e.until, "until", "", "end with this offset (default: the newest at the start)")
	flags.StringVar(&e.from, "from", "", "begin with events received at this time: 2006-01-02 (UTC) or RFC 3339")
	flags.StringVar(&e.to, "to", "", "end before events received at this time")
	flags.StringVar(&e.file, "file", "", "append to this file, from where it ends (default: standard output)")
	cmd.MarkFlagsMutuallyExclusive("after", "from")
	cmd.MarkFlagsMutuallyExclusive("until", "to")
	return cmd
}

// page reads a page of the journal, or with a limit of 1 one event.
func (e *export) page(after uint64, limit int) (list api.List, err error) {
	q := url.Values{"after": {strconv.FormatUint(after, 10)}, "limit": {strconv.Itoa(limit)}}
	if e.journal != "" {
		q.Set("journal", e.journal)
	}
	_, err = e.Ask(e.cmd, http.MethodGet, "/v1/events?"+q.Encode(), nil, &list)
	return list, err
}

func (e *export) run() (err error) {
	var out io.Writer = e.cmd.OutOrStdout()
	resume := uint64(0)
	if e.file != "" {
		var f *os.File
		if f, err = os.OpenFile(e.file, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Sync(), f.Close()) }()
		if resume, e.journal, err = ends(f); err != nil {
			return fmt.Errorf("--file %s: %w", e.file, err)
		}
		out = f
	}
	after, until, err := e.span()
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(out, 1<<16)
	err = errors.Join(e.write(buffered, max(after, resume), until), buffered.Flush())
	return problemsOf(e.lost, err)
}

// span returns the requested offsets: after the first, up to the last.
func (e *export) span() (after, until uint64, err error) {
	bounds, err := e.page(0, 1)
	if err != nil {
		return 0, 0, err
	}
	e.journal = bounds.Journal
	oldest, newest := bounds.Oldest, bounds.Newest
	if oldest == 0 {
		return 0, 0, errors.New("the answer names no oldest offset: it is not an event center's")
	}
	after, until = oldest-1, newest
	offset := func(text string) (uint64, error) {
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			err = errors.New("want an offset, in decimal digits")
		}
		return n, err
	}
	moment := func(text string) (uint64, error) {
		at, err := time.Parse(time.DateOnly, text)
		if err != nil {
			at, err = time.Parse(time.RFC3339, text)
		}
		if err != nil {
			return 0, errors.New("want a day as 2006-01-02, or a time as RFC 3339 has it")
		}
		return e.before(at, oldest-1, newest)
	}
	for _, one := range []struct {
		flag, text string
		to         *uint64
		read       func(text string) (uint64, error)
	}{{"after", e.after, &after, offset}, {"until", e.until, &until, offset}, {"from", e.from, &after, moment},
		{"to", e.to, &until, moment}} {
		if one.text == "" {
			continue
		}
		if *one.to, err = one.read(one.text); err != nil {
			return 0, 0, fmt.Errorf("--%s %q: %w", one.flag, one.text, err)
		}
	}
	return after, min(until, newest), nil
}

// before returns the last offset received before a moment, by binary search.
func (e *export) before(at time.Time, low, high uint64) (uint64, error) {
	for low < high {
		middle := low + (high-low)/2
		list, err := e.page(middle, 1)
		if err != nil {
			return 0, err
		}
		if len(list.Events) == 0 || !list.Events[0].Received.Before(at) {
			high = middle
			continue
		}
		if list.Events[0].Offset <= low {
			return 0, fmt.Errorf("after %d: the center has offset %d next", low, list.Events[0].Offset)
		}
		low = list.Events[0].Offset
	}
	return low, nil
}

// write writes the events beyond after, up to until.
func (e *export) write(out *bufio.Writer, after, until uint64) error {
	for after < until {
		list, err := e.page(after, int(min(exportPage, until-after)))
		if err != nil {
			return err
		}
		for _, g := range list.Gaps {
			e.lost = true
			fmt.Fprintf(e.cmd.ErrOrStderr(), "eventcenter: LOST: offsets %d to %d: %s\n", g.From, g.To, event.Plain(g.Reason))
		}
		for _, item := range list.Events {
			line, err := lineOf(item, list.Journal)
			if err != nil {
				return fmt.Errorf("offset %d: %w", item.Offset, err)
			}
			if _, err := out.Write(append(line, '\n')); err != nil {
				return err
			}
		}
		if list.Next <= after {
			return fmt.Errorf("after %d: the center reports %d as next", after, list.Next)
		}
		after = list.Next
	}
	return nil
}

// lineOf returns an event with its offset, journal and time of receipt. They replace attributes of the same names.
func lineOf(item api.Item, journal string) ([]byte, error) {
	var attributes map[string]json.RawMessage
	if err := json.Unmarshal(item.Event, &attributes); err != nil {
		return nil, err
	}
	for name, value := range map[string]string{offsetAttribute: strconv.FormatUint(item.Offset, 10), journalAttribute: journal,
		receivedAttribute: item.Received.UTC().Format(time.RFC3339Nano)} {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		attributes[name] = text
	}
	return json.Marshal(attributes)
}

// isCut reports whether a text may be the cut-off beginning of a line of an export. A line begins with its journal or, in
// alphabetical order, with an attribute before it: bootid of our agents, any of others.
func isCut(text []byte, behindLine bool) bool {
	if behindLine {
		return bytes.HasPrefix(text, []byte(`{"`)) || string(text) == "{" || len(text) == 0
	}
	for _, first := range []string{`{"` + journalAttribute + `":"`, `{"bootid":"`} {
		if n := min(len(text), len(first)); string(text[:n]) == first[:n] {
			return true
		}
	}
	return bytes.HasPrefix(text, []byte(`{"`)) && bytes.Contains(text, []byte(`,"`+journalAttribute+`":"`))
}

// ends returns the last offset of an export, and positions the file there. It cuts off an incomplete line.
func ends(f *os.File) (offset uint64, journal string, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, "", err
	}
	size := info.Size()
	tail := make([]byte, min(size, maxLine))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil {
		return 0, "", err
	}
	whole := bytes.LastIndexByte(tail, '\n') + 1
	if whole == 0 && int64(len(tail)) < size {
		return 0, "", fmt.Errorf("its last %d bytes contain no complete line: it is not an export", maxLine)
	}
	if rest := tail[whole:]; !isCut(rest, whole > 0) {
		return 0, "", fmt.Errorf("its end %.40q is not of an export", rest)
	}
	end := size - int64(len(tail)-whole)
	var last map[string]json.RawMessage
	var text string
	if whole > 0 {
		begin := bytes.LastIndexByte(tail[:whole-1], '\n') + 1
		err = errors.Join(json.Unmarshal(tail[begin:whole], &last), json.Unmarshal(last[offsetAttribute], &text),
			json.Unmarshal(last[journalAttribute], &journal))
		if err == nil {
			offset, err = strconv.ParseUint(text, 10, 64)
		}
		if err != nil {
			return 0, "", fmt.Errorf("its last line is not of an export: %w", err)
		}
	}
	if err := f.Truncate(end); err != nil {
		return 0, "", err
	}
	_, err = f.Seek(end, io.SeekStart)
	return offset, journal, err
}
