package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

const askLimit = 30 * time.Second

// get sends a GET request to the center. The caller closes the response body.
func (o *options) get(ctx context.Context, path string, headers map[string]string) (*http.Response, error) {
	return o.send(ctx, http.MethodGet, path, headers, nil)
}

func (o *options) send(ctx context.Context, method, path string, headers map[string]string,
	body io.Reader) (*http.Response, error) {
	return o.remote().Send(ctx, method, path, headers, body)
}

// remote is the center to query.
func (o *options) remote() *client.Client {
	return &client.Client{Dir: o.directory(), Server: o.server, Default: "http://" + defaultListen, CA: o.ca}
}

// ask decodes a response; with -o json it prints it unchanged, and printed is true.
func (o *options) ask(ctx context.Context, w io.Writer, path string, answer any) (printed bool, err error) {
	return o.call(ctx, w, http.MethodGet, path, nil, answer)
}

// call is ask for any method, with a body.
func (o *options) call(ctx context.Context, w io.Writer, method, path string, body io.Reader, answer any) (printed bool,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	text, err := o.remote().Decode(ctx, method, path, body, answer)
	if err != nil {
		return false, err
	}
	if o.json() {
		_, err = w.Write(text)
	}
	return o.json(), err
}

// table prints rows in columns. Text from senders cannot control the terminal.
func table(w io.Writer, rows [][]string) error {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = event.Plain(cell)
		}
		fmt.Fprintln(out, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return out.Flush()
}

// ago returns the time since a moment.
func ago(at time.Time) string { return web.Ago(time.Now(), at) }
