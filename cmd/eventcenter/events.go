package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/web/client"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

func newEvents(o *options) *cobra.Command {
	cmd := command.Verb[api.List]{Use: "events", Short: "List events in the order in which they arrived",
		Flags: func(flags *pflag.FlagSet) {
			flags.String("after", "", "begin after this offset (default: with the oldest event)")
			flags.String("cel", "", "only events for which this CEL expression is true, such as severity == \"fatal\" && "+
				"data.facts.device == \"sda\"")
			flags.String("limit", "100", "maximum number of events; not with --follow")
			addFilter(flags, "cluster", "node", "type", "severity", "check", "reason")
		},
		Problem: func(answer *api.List) bool { return len(answer.Gaps) > 0 }}.Command(&o.Asker)
	list, follow := cmd.RunE, false
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new events, until interrupted")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if follow {
			return o.follow(cmd, command.Parameters(cmd))
		}
		return list(cmd, args)
	}
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
	row := []string{fmt.Sprint(l.Offset), l.Received.Format(time.RFC3339), t, l.Severity, l.Node, about, api.Clip(l.Message, 120)}
	for i, cell := range row {
		row[i] = event.Plain(cell)
	}
	return row
}

// folded returns the lines of events, without repetition.
func folded(items []api.Item) (rows []string) {
	for _, f := range api.Fold(items) {
		rows = append(rows, strings.Join(eventRow(f.Line, f.More), "\t"))
	}
	return rows
}

// follow prints events as they come: it asks for new ones each second. If the center does not answer, it asks again.
func (o *options) follow(cmd *cobra.Command, query url.Values) error {
	for begun := false; ; {
		var list api.List
		_, err := o.Ask(cmd, http.MethodGet, "/v1/events?"+query.Encode(), nil, &list)
		refused, _ := errors.AsType[*client.RefusedError](err)
		switch {
		case cmd.Context().Err() != nil:
			return nil //nolint:nilerr // interrupted: the normal end
		case err != nil && (!begun || refused != nil && refused.Status < 500):
			return err
		case err != nil:
			fmt.Fprintln(cmd.ErrOrStderr(), "eventcenter: no answer, asking again:", event.Plain(err.Error()))
		default:
			if err := o.printNew(cmd.OutOrStdout(), list); err != nil {
				return err
			}
			begun = true
			query.Set("after", fmt.Sprint(list.Next))
			query.Set("journal", list.Journal)
			if list.Next < list.Newest {
				continue
			}
		}
		select {
		case <-time.After(time.Second):
		case <-cmd.Context().Done():
			return nil
		}
	}
}

// printNew prints each event, and each gap, as a line.
func (o *options) printNew(w io.Writer, list api.List) error {
	lines := json.NewEncoder(w)
	print := func(of any, text string) error {
		if o.Output == "json" {
			return lines.Encode(of)
		}
		_, err := fmt.Fprintln(w, text)
		return err
	}
	for _, g := range list.Gaps {
		if err := print(g, fmt.Sprintf("GAP  offsets %d to %d: %s", g.From, g.To, event.Plain(g.Reason))); err != nil {
			return err
		}
	}
	for _, i := range list.Events {
		if err := print(i, strings.Join(eventRow(api.LineOf(i), 0), "  ")); err != nil {
			return err
		}
	}
	return nil
}
