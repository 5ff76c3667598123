package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
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
	exportPage = "1000"  // events
	maxLine    = 1 << 20 // of an export to be continued, in bytes
)

type export struct {
	*options
	cmd   *cobra.Command
	after uint64 // 0: from the oldest
	file  string

	journal string
	lost    bool
}

func newExport(o *options) *cobra.Command {
	e := &export{options: o}
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the journal as lines of JSON, for a data lake",
		Long: `Write the journal as lines of JSON: each is a CloudEvent, with the attributes centeroffset, centerreceived and
centerjournal. --file continues at the end of that file: an incomplete last line is written again. Events that cannot be
read any more are named on standard error, and the exit code is 1.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.cmd = cmd
			return e.run()
		},
	}
	cmd.Flags().Uint64Var(&e.after, "after", 0, "begin after this offset (default: with the oldest event)")
	cmd.Flags().StringVar(&e.file, "file", "", "append to this file, from where it ends (default: standard output)")
	return cmd
}

func (e *export) run() (err error) {
	out, after := e.cmd.OutOrStdout(), e.after
	if e.file != "" {
		var f *os.File
		if f, err = os.OpenFile(e.file, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Sync(), f.Close()) }()
		var end uint64
		if end, e.journal, err = ends(f); err != nil {
			return fmt.Errorf("--file %s: %w", e.file, err)
		}
		out, after = f, max(after, end)
	}
	buffered := bufio.NewWriterSize(out, 1<<16)
	err = errors.Join(e.write(buffered, after), buffered.Flush())
	return problemsOf(e.lost, err)
}

// write writes the events beyond after, up to those that are there at the start.
func (e *export) write(out *bufio.Writer, after uint64) error {
	for until := uint64(math.MaxUint64); after < until; {
		var list api.List
		q := url.Values{"after": {fmt.Sprint(after)}, "limit": {exportPage}, "journal": {e.journal}}
		if _, err := e.Ask(e.cmd, http.MethodGet, "/v1/events?"+q.Encode(), nil, &list); err != nil {
			return err
		}
		e.journal, until = list.Journal, min(until, list.Newest)
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
		if list.Next <= after && after < until {
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
	for name, value := range map[string]string{offsetAttribute: fmt.Sprint(item.Offset), journalAttribute: journal,
		receivedAttribute: item.Received.UTC().Format(time.RFC3339Nano)} {
		attributes[name] = json.RawMessage(strconv.Quote(value)) // has no character that JSON quotes otherwise
	}
	return json.Marshal(attributes)
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
	end := size - int64(len(tail)-whole)
	var last struct {
		Offset  uint64 `json:"centeroffset,string"`
		Journal string `json:"centerjournal"`
	}
	if whole > 0 {
		begin := bytes.LastIndexByte(tail[:whole-1], '\n') + 1
		if err = json.Unmarshal(tail[begin:whole], &last); err == nil && (last.Offset == 0 || last.Journal == "") {
			err = errors.New("it names no offset or no journal")
		}
		if err != nil {
			return 0, "", fmt.Errorf("its last line is not of an export: %w", err)
		}
	}
	if err := f.Truncate(end); err != nil {
		return 0, "", err
	}
	_, err = f.Seek(end, io.SeekStart)
	return last.Offset, last.Journal, err
}
