package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	askLimit  = 30 * time.Second
	maxAnswer = 64 << 20 // bytes
)

// get sends a GET request to the center. The caller closes the response body.
func (o *options) get(ctx context.Context, path string, headers map[string]string) (*http.Response, error) {
	return o.send(ctx, http.MethodGet, path, headers, nil)
}

func (o *options) send(ctx context.Context, method, path string, headers map[string]string,
	body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, o.address()+path, body)
	if err != nil {
		return nil, err
	}
	token, err := web.ReadToken(filepath.Join(o.directory(), "token"))
	if err != nil {
		return nil, fmt.Errorf("token of the center (--dir): %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	var problem struct{ Error string }
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	if json.Unmarshal(text, &problem) != nil || problem.Error == "" {
		problem.Error = string(text)
	}
	return nil, &refusedError{response.StatusCode, fmt.Sprintf("%s%s: %s: %s", o.address(), path, response.Status,
		problem.Error)}
}

// refusedError is an error response of the center.
type refusedError struct {
	status int
	text   string
}

func (e *refusedError) Error() string { return e.text }

func (o *options) client() (*http.Client, error) {
	transport := &http.Transport{} // no proxy: only the center may get the token
	if o.ca != "" {
		pem, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca %s: no certificate in it", o.ca)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}, nil
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
	response, err := o.send(ctx, method, path, nil, body)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if len(text) > maxAnswer {
		return false, fmt.Errorf("%s: the answer has more than %d bytes", path, maxAnswer)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
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
