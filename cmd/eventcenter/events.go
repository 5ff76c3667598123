package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
)

func newEvents(o *options) *cobra.Command {
	var follow bool
	var after string
	var limit int
	filter := map[string]*[]string{}
	cmd := &cobra.Command{
		Use:   "events",
		Short: "List events in the order in which they arrived",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			values := query(filter)
			if after != "" {
				values.Set("after", after)
			}
			if follow {
				return o.follow(cmd, "/v1/events?"+values.Encode())
			}
			values.Set("limit", strconv.Itoa(limit))
			var answer api.List
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/events?"+values.Encode(), &answer)
			if err != nil || printed {
				return err
			}
			return printEvents(cmd.OutOrStdout(), answer)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "go on with what comes, until interrupted")
	flags.StringVar(&after, "after", "", "begin after this offset (default: at the oldest)")
	flags.IntVar(&limit, "limit", 100, "at most so many; not with --follow")
	addFilter(cmd, filter, "cluster", "node", "type", "severity", "check", "reason")
	return cmd
}

func eventHead() []string {
	return []string{"OFFSET", "RECEIVED", "TYPE", "SEVERITY", "NODE", "SUBJECT", "MESSAGE"}
}

// eventRow is an event in a line for people.
func eventRow(i api.Item) []string {
	var e struct {
		Type, Source, Subject, Severity, Partitionkey string
		Inferred                                      bool
		Data                                          struct{ Message string }
	}
	_ = json.Unmarshal(i.Event, &e) // a foreign event's data may have any form: what can be read is shown
	node := e.Partitionkey
	if node == "" {
		node = e.Source
	}
	t := strings.TrimPrefix(e.Type, "io.github.nodeagent.")
	if e.Inferred {
		t += " (inferred)"
	}
	return []string{i.Offset, i.Received.Format(time.RFC3339), t, e.Severity, node, subject(e.Subject),
		clip(e.Data.Message, 120)}
}

// wholeID is the ID of a container or sandbox: its first 13 digits are enough for people.
var wholeID = regexp.MustCompile(`\b([0-9a-f]{13})[0-9a-f]{51}\b`)

// subject returns the subject of an agent's event (check/reason/kind/name, each percent-encoded) for people: without a
// reason that says the same as the type. That of any other event is returned as it is.
func subject(text string) string {
	parts := strings.Split(text, "/")
	if len(parts) != 4 {
		return clip(text, 80)
	}
	name, err := url.PathUnescape(parts[3])
	if err != nil {
		name = parts[3]
	}
	words := []string{parts[0], parts[1], parts[2], wholeID.ReplaceAllString(name, "$1")}
	if strings.HasPrefix(parts[1], "Leftover") || strings.HasPrefix(parts[1], "Action") {
		words = append(words[:1], words[2:]...)
	}
	return clip(strings.Join(words, " "), 80)
}

// clip returns at most so many characters of a text; the end of a name says more than its beginning.
func clip(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most/2]) + "…" + string(runes[len(runes)-most/2:])
}

// folded are the rows of events. Those of one type, check and reason (or kind of leftover) that follow each other on a
// node are one row.
func folded(items []api.Item) [][]string {
	var rows [][]string
	same := 0
	var run string
	for _, i := range items {
		row := eventRow(i)
		words := strings.Fields(row[5])
		key := strings.Join(append(row[2:5:5], words[:min(2, len(words))]...), "|")
		if key != run || len(words) == 0 {
			rows, run, same = append(rows, row), key, 0
			continue
		}
		same++
		last := rows[len(rows)-1]
		last[5] = strings.TrimSuffix(last[5], fmt.Sprintf(" and %d more", same-1)) + fmt.Sprintf(" and %d more", same)
	}
	return rows
}

func printEvents(w io.Writer, answer api.List) error {
	rows := append([][]string{eventHead()}, folded(answer.Events)...)
	for _, g := range answer.Gaps {
		rows = append(rows, []string{fmt.Sprintf("%d-%d", g.From, g.To), "", "LOST", "", "", "", g.Reason})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	if answer.Next != answer.Newest {
		fmt.Fprintf(w, "more: --after %s\n", answer.Next)
	}
	return nil
}

// follow prints events as they come. A connection that ends is made again where it was.
func (o *options) follow(cmd *cobra.Command, path string) error {
	last := ""
	for {
		err := o.followOnce(cmd, path, &last)
		if cmd.Context().Err() != nil {
			return nil //nolint:nilerr // interrupted: that is how it ends
		}
		if refused, ok := errors.AsType[*refusedError](err); ok && refused.status < 500 || last == "" {
			return err
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "eventcenter: the stream ended, and is opened again:", plain(fmt.Sprint(err)))
		select {
		case <-time.After(time.Second):
		case <-cmd.Context().Done():
			return nil
		}
	}
}

func (o *options) followOnce(cmd *cobra.Command, path string, last *string) error {
	headers := map[string]string{"Accept": "text/event-stream"}
	if *last != "" {
		headers["Last-Event-ID"] = *last
	}
	response, err := o.get(cmd.Context(), path, headers)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(make([]byte, 1<<16), 1<<20)
	var id, kind, data string
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			data = value
		case "":
			if id != "" {
				*last = id
			}
			if err := o.printStreamed(cmd.OutOrStdout(), kind, data); err != nil {
				return err
			}
			kind, data = "", ""
		}
	}
	return errors.Join(lines.Err(), io.EOF)
}

func (o *options) printStreamed(w io.Writer, kind, data string) error {
	switch {
	case data == "" || kind == "bookmark":
		return nil
	case o.json():
		_, err := fmt.Fprintln(w, data)
		return err
	case kind != "":
		_, err := fmt.Fprintln(w, strings.ToUpper(plain(kind)), plain(data))
		return err
	}
	var i api.Item
	if err := json.Unmarshal([]byte(data), &i); err != nil {
		return err
	}
	row := eventRow(i)
	for n, cell := range row {
		row[n] = plain(cell)
	}
	_, err := fmt.Fprintln(w, strings.Join(row, "  "))
	return err
}
