package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

// TestMain lets the test binary act as the program itself: tests start it as a separate process.
func TestMain(m *testing.M) {
	if os.Getenv("EVENTCENTER_TEST_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// process is a running "eventcenter serve".
type process struct {
	t   testing.TB
	dir string
	cmd *exec.Cmd
	url string
	log *syncedLog

	client *http.Client
}

// syncedLog collects the output of processes, for concurrent reads.
type syncedLog struct {
	mu   sync.Mutex // guards text
	text []byte
}

func (l *syncedLog) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, data...)
	return len(data), nil
}

func (l *syncedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

func program(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), "EVENTCENTER_TEST_MAIN=1")
	return cmd
}

func start(t testing.TB, dir string, flags ...string) *process {
	t.Helper()
	return startAs(t, os.Args[0], dir, flags...)
}

// launch starts a center, without waiting for it.
func launch(t testing.TB, binary, dir, address string, flags ...string) *process {
	t.Helper()
	p := &process{t: t, dir: dir, log: &syncedLog{}, url: "http://" + address, client: http.DefaultClient}
	p.cmd = program(context.Background(), append([]string{"serve", "--dir", dir, "--listen", address}, flags...)...)
	p.cmd.Path, p.cmd.Stderr = binary, p.log
	must(t, p.cmd.Start())
	t.Cleanup(func() { p.stop(syscall.SIGKILL) })
	return p
}

// startAs is start for another build of the program.
func startAs(t testing.TB, binary, dir string, flags ...string) *process {
	t.Helper()
	_ = os.Remove(filepath.Join(dir, "address"))
	p := launch(t, binary, dir, "127.0.0.1:0", flags...)
	await(t, func() error {
		text, err := os.ReadFile(filepath.Join(dir, "address"))
		p.url = strings.TrimSpace(string(text))
		return unless(err == nil && len(text) > 0, "no address: %s", p.log)
	})
	return p
}

// patience is the limit for steps that take a moment on an idle machine, and a minute on an emulated one.
const patience = 10 * time.Minute

// eventually waits until is returns true, and reports whether that happens in time.
func eventually(within time.Duration, is func() bool) bool {
	for end := time.Now().Add(within); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// await waits until try succeeds. If it does not in time, the test ends with the last error.
func await(t testing.TB, try func() error) {
	t.Helper()
	var err error
	if !eventually(patience, func() bool { err = try(); return err == nil }) {
		t.Fatal(err)
	}
}

// unless returns an error unless ok.
func unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// contains returns an error unless a text has all parts.
func contains(text string, parts ...string) error {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return fmt.Errorf("no %q in\n%s", part, text)
		}
	}
	return nil
}

func (p *process) stop(signal syscall.Signal) {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Signal(signal)
		_ = p.cmd.Wait()
	}
}

// token returns the local token.
func (p *process) token() string {
	text, err := os.ReadFile(filepath.Join(p.dir, "token"))
	if err != nil {
		p.t.Error(err)
	}
	return strings.TrimSpace(string(text))
}

// do sends a request with the local token.
func (p *process) do(method, path, media string, body []byte) (int, []byte, error) {
	return p.ask(p.client, p.token(), method, path, media, body)
}

// ask sends a request with a token, if any.
func (p *process) ask(client *http.Client, token, method, path, media string, body []byte) (int, []byte, error) {
	request, err := http.NewRequestWithContext(context.Background(), method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	request.Header.Set("Content-Type", media)
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

// answer returns the body of an answer, which must have a status.
func (p *process) answer(want int, method, path, media string, body []byte) ([]byte, error) {
	status, answer, err := p.do(method, path, media, body)
	if err == nil && status != want {
		err = fmt.Errorf("%s: %d, want %d: %.500s", path, status, want, answer)
	}
	return answer, err
}

// has returns an error unless a GET is answered with a status and these texts.
func (p *process) has(path string, status int, texts ...string) error {
	body, err := p.answer(status, http.MethodGet, path, "", nil)
	return errors.Join(err, contains(string(body), texts...))
}

// get decodes the answer to a GET.
func (p *process) get(path string, into any) error {
	body, err := p.answer(http.StatusOK, http.MethodGet, path, "", nil)
	return errors.Join(err, json.Unmarshal(body, into))
}

// contents returns the answer to a GET without the journal's UUID, and that.
func (p *process) contents(path string) (answer map[string]any, uuid any) {
	p.t.Helper()
	must(p.t, p.get(path, &answer))
	uuid = answer["journal"]
	delete(answer, "journal")
	return answer, uuid
}

// send makes a POST, which has to succeed.
func (p *process) send(path, media string, body []byte) error {
	_, err := p.answer(http.StatusOK, http.MethodPost, path, media, body)
	return err
}

func (p *process) post(events ...event.Event) error {
	return p.send("/v1/events", event.BatchMediaType, batch(events...))
}

// batch encodes events for one request.
func batch(events ...event.Event) []byte {
	var texts [][]byte
	for _, e := range events {
		texts = append(texts, mustEncode(e))
	}
	return slices.Concat([]byte("["), bytes.Join(texts, []byte(",")), []byte("]"))
}

func mustEncode(e event.Event) []byte {
	data, err := e.Encode()
	if err != nil {
		return []byte(err.Error())
	}
	return data
}

// newest returns the newest offset.
func (p *process) newest() (uint64, error) {
	var answer api.List
	err := p.get("/v1/events?limit=1", &answer)
	return answer.Newest, err
}

const exitFine, exitProblems, exitCouldNotTell = command.Fine, command.Problems, command.CouldNotTell

const testStream = "01J9ZZZZZZZZZZZZZZZZZZZZZZ"

func raised(node string, sequence uint64) event.Event {
	fault := event.Fault{ID: "x", Check: "dns", Subject: finding.Subject{Kind: "server", Name: fmt.Sprint(sequence)},
		Severity: finding.Warning, Reason: "Slow", Message: "the name server is slow"}
	return event.Event{Type: event.FaultRaised, Cluster: "prod", Node: node, Time: time.Unix(1, 0).UTC(),
		Severity: finding.Warning, Stream: testStream, Sequence: sequence, Data: fault,
		Subject: event.Subject{Check: "dns", Reason: "Slow", Kind: "server", Name: fmt.Sprint(sequence)}}
}

// cli runs a verb and returns its output and exit code.
func cli(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := program(t.Context(), args...)
	out, err := cmd.CombinedOutput()
	if _, exited := err.(*exec.ExitError); err != nil && !exited { //nolint:errorlint // Run wraps nothing
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// expect runs a verb, which must end with a code and print a text.
func expect(t *testing.T, want int, has string, args ...string) string {
	t.Helper()
	out, code := cli(t, args...)
	if err := contains(out, has); code != want || err != nil {
		t.Fatalf("%v: exit code %d, want %d: %v", args, code, want, err)
	}
	return out
}

// put writes a file, and returns its name.
func put(t testing.TB, dir, name, text string) string {
	t.Helper()
	name = filepath.Join(dir, name)
	must(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	must(t, err)
	return data
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
