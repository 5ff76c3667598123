// Package client sends a command's requests to the running program of its directory: it reads the address and the
// token that the program wrote there.
package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	maxAnswer   = 64 << 20 // bytes of a response
	addressFile = "address"
	tokenFile   = "token"
	maxProblem  = 4096 // bytes of a refusal's text
)

// Client asks one program.
type Client struct {
	Dir     string // of the program's data
	Server  string // its address; empty: that in Dir, else Default
	Default string
	CA      string // file with the CA certificates of an https server; empty: the system's
	Token   string // file with a bearer token; empty: the program's own, in Dir
}

// Directory returns the data directory of a program: the one given, else that of $XDG_STATE_HOME, else PROGRAM-data in
// the working directory.
func Directory(program, given string) string {
	if given != "" {
		return given
	}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, program)
	}
	return program + "-data"
}

// Announce writes the program's address for other commands, and prints it for people.
func Announce(program, dir, address string, log *slog.Logger) {
	if err := os.WriteFile(filepath.Join(dir, addressFile), []byte(address+"\n"), 0o600); err != nil {
		log.Error("write the address for other commands failed: they need --server", "err", err)
	}
	fmt.Fprintf(os.Stderr, "%[1]s: listening on %[2]s; its token is in %[3]s; \"%[1]s login\" opens the pages\n", program, address,
		event.Plain(TokenFile(dir)))
}

// TokenFile returns the file with the program's own token.
func TokenFile(dir string) string { return filepath.Join(dir, tokenFile) }

// Address returns the address of the program, without a slash at its end.
func (c *Client) Address() string {
	if c.Server != "" {
		return strings.TrimSuffix(c.Server, "/")
	}
	if text, err := os.ReadFile(filepath.Join(c.Dir, addressFile)); err == nil {
		return strings.TrimSpace(string(text))
	}
	return c.Default
}

// RefusedError is an error response.
type RefusedError struct {
	Status int
	text   string
}

func (e *RefusedError) Error() string { return e.text }

// Send sends a request. The caller closes the response's body. A response other than 200 is a RefusedError.
func (c *Client) Send(ctx context.Context, method, path string, headers map[string]string, body io.Reader) (*http.Response,
	error) {
	request, err := http.NewRequestWithContext(ctx, method, c.Address()+path, body)
	if err != nil {
		return nil, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	client, err := c.client()
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
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxProblem))
	if json.Unmarshal(text, &problem) != nil || problem.Error == "" {
		problem.Error = strings.TrimSpace(string(text))
	}
	return nil, &RefusedError{response.StatusCode, fmt.Sprintf("%s%s: %s: %s", c.Address(), path, response.Status, problem.Error)}
}

func (c *Client) token() (string, error) {
	if c.Token != "" {
		text, err := os.ReadFile(c.Token)
		if err != nil {
			return "", fmt.Errorf("--token-file: %w", err)
		}
		return strings.TrimSpace(string(text)), nil
	}
	token, err := web.ReadToken(TokenFile(c.Dir))
	if err != nil {
		return "", fmt.Errorf("token of the program (--dir): %w", err)
	}
	return token, nil
}

func (c *Client) client() (*http.Client, error) {
	pool, err := web.Authorities(c.CA)
	if err != nil {
		return nil, fmt.Errorf("--ca: %w", err)
	}
	transport := &http.Transport{DisableKeepAlives: true} // no proxy: only the program may get the token
	if pool != nil {
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}, nil
}

// Decode sends a request and decodes the response into answer; text is the response unchanged.
func (c *Client) Decode(ctx context.Context, method, path string, body io.Reader, answer any) (text []byte, err error) {
	response, err := c.Send(ctx, method, path, nil, body)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(text) > maxAnswer {
		return nil, fmt.Errorf("%s: the answer has more than %d bytes", path, maxAnswer)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return text, nil
}

// Get is Decode of a GET request with a time limit.
func (c *Client) Get(ctx context.Context, limit time.Duration, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := c.Decode(ctx, http.MethodGet, path, nil, answer)
	return err
}

// Copy sends a GET request, and writes the response unchanged.
func (c *Client) Copy(ctx context.Context, to io.Writer, path string) error {
	response, err := c.Send(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(to, io.LimitReader(response.Body, maxAnswer))
	return err
}
