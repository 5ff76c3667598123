package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

func newEvents(o *options) *cobra.Command {
	var follow bool
	var after, cel string
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
			if cel != "" {
				values.Set("cel", cel)
			}
			if follow {
				return o.follow(cmd, "/v1/events?"+values.Encode())
			}
			values.Set("limit", strconv.Itoa(limit))
			return show(o, cmd, "/v1/events?"+values.Encode(), "events", func(api.List) bool { return false })
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "continue with new events, until interrupted")
	flags.StringVar(&after, "after", "", "begin after this offset (default: with the oldest event)")
	flags.StringVar(&cel, "cel", "", "only events for which this CEL expression is true, such as severity == \"fatal\" && "+
		"data.facts.device == \"sda\"")
	flags.IntVar(&limit, "limit", 100, "maximum number of events; not with --follow")
	addFilter(flags, filter, "cluster", "node", "type", "severity", "check", "reason")
	return cmd
}

// eventRow returns an event as the cells of a line for people.
func eventRow(l api.Line, more int) []string {
	t, about := l.Type, l.Subject
	if l.Detector != "" {
		t += " (by " + l.Detector + ")"
	}
	if l.Inferred {
		t += " (inferred)"
	}
	if more > 0 {
		about += fmt.Sprintf(" and %d more", more)
	}
	row := []string{l.Offset, l.Received.Format(time.RFC3339), t, l.Severity, l.Node, about, api.Clip(l.Message, 120)}
	for i, cell := range row {
		row[i] = event.Plain(cell)
	}
	return row
}

// folded returns the lines of events, without repetition.
func folded(items []api.Item) (rows []string) {
	var lines []api.Line
	for _, i := range items {
		lines = append(lines, api.LineOf(i))
	}
	for _, f := range api.Fold(lines) {
		rows = append(rows, strings.Join(eventRow(f.Line, f.More), "\t"))
	}
	return rows
}

// follow prints new events. If the connection ends, it reconnects at the same position.
func (o *options) follow(cmd *cobra.Command, path string) error {
	last := ""
	for {
		err := o.followOnce(cmd, path, &last)
		if cmd.Context().Err() != nil {
			return nil //nolint:nilerr // interrupted: the normal end
		}
		if refused, ok := errors.AsType[*client.RefusedError](err); ok && refused.Status < 500 || last == "" {
			return err
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "eventcenter: the stream ended, reconnecting:", event.Plain(fmt.Sprint(err)))
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
	response, err := o.Send(cmd.Context(), http.MethodGet, path, headers, nil)
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
	case o.Output == "json":
		_, err := fmt.Fprintln(w, data)
		return err
	case kind != "":
		_, err := fmt.Fprintln(w, strings.ToUpper(event.Plain(kind)), event.Plain(data))
		return err
	}
	var i api.Item
	if err := json.Unmarshal([]byte(data), &i); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, strings.Join(eventRow(api.LineOf(i), 0), "  "))
	return err
}
