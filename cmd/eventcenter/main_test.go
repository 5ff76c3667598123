package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
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

	client *http.Client // nil: the default one
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
	p := &process{t: t, dir: dir, log: &syncedLog{}, url: "http://" + address}
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
	if !eventually(patience, func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "address"))
		p.url = strings.TrimSpace(string(text))
		return err == nil && len(text) > 0
	}) {
		p.stop(syscall.SIGKILL)
		t.Fatalf("it does not say its address: %s", p.log)
	}
	return p
}

// eventually waits until is returns true, and reports whether that happens in time.
func eventually(within time.Duration, is func() bool) bool {
	for end := time.Now().Add(within); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
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
	return p.ask(cmp.Or(p.client, http.DefaultClient), p.token(), method, path, media, body)
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

func (p *process) post(events ...event.Event) error {
	var texts []json.RawMessage
	for _, e := range events {
		text, err := e.Encode()
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	body, err := json.Marshal(texts)
	if err != nil {
		return err
	}
	status, answer, err := p.do(http.MethodPost, "/v1/events", "application/cloudevents-batch+json", body)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d: %s", status, answer)
	}
	return err
}

// newest returns the newest offset.
func (p *process) newest() (uint64, error) {
	var answer api.List
	status, body, err := p.do(http.MethodGet, "/v1/events?limit=1", "", nil)
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err != nil || status != http.StatusOK {
		return 0, fmt.Errorf("%d: %s: %w", status, body, err)
	}
	return answer.Newest, nil
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

func TestVerbs(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir)
	hostile := raised("node-1", 1)
	fault := hostile.Data.(event.Fault)
	fault.Message = "evil\x1b[31m\r\nline\u202e"
	hostile.Data = fault
	must(t, p.post(hostile, raised("node-2", 1)))
	for _, test := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"nodes"}, exitProblems, []string{"CLUSTER", "node-1", "node-2"}},
		{[]string{"nodes", "--cluster", "other"}, exitFine, nil},
		{[]string{"faults", "--node", "node-1"}, exitProblems, []string{"Slow", "evil?[31m??line?"}},
		{[]string{"faults", "--severity", "fatal"}, exitFine, nil},
		{[]string{"faults", "-o", "json"}, exitProblems, []string{`"total":2`}},
		{[]string{"events"}, exitFine, []string{"fault.raised.v1", "dns Slow server 1", "node-2"}},
		{[]string{"events", "--after", "1", "-o", "json"}, exitFine, []string{`"next":"2"`}},
		{[]string{"events", "--after", "x"}, exitCouldNotTell, []string{"want an offset"}},
		{[]string{"node", "node-1"}, exitProblems, []string{"Slow", "fault.raised.v1"}},
		{[]string{"node", "node-3"}, exitCouldNotTell, []string{"has never received an event"}},
		{[]string{"report", "daily"}, exitProblems, []string{"PARTIAL", "needs people", "Slow", "evil?[31m??line?", "2 at the end"}},
		{[]string{"report", "daily", "-o", "table", "--date", "today"}, exitProblems, []string{"NEEDS PEOPLE FOR"}},
		{[]string{"report", "weekly", "-o", "json"}, exitProblems, []string{`"period":"weekly"`, `"found":2`}},
		{[]string{"report", "daily", "-o", "html"}, exitFine, []string{"<!doctype html>", p.url + "/events?"}},
		{[]string{"report", "daily", "--date", "2001-01-01"}, exitCouldNotTell, []string{"404", "there are of"}},
		{[]string{"report", "daily", "--date", "soon"}, exitCouldNotTell, []string{"want a day as"}},
		{[]string{"report", "daily", "-o", "text/html"}, exitCouldNotTell, []string{"must be text or table or json or html"}},
		{[]string{"nodes", "-o", "html"}, exitCouldNotTell, []string{"must be text or json"}},
		{[]string{"nodes", "--agent", "other-version"}, exitFine, nil},
		{[]string{"serve", "--timezone", "Europe/Nowhere"}, exitCouldNotTell, []string{"--timezone"}},
		{[]string{"verify"}, exitFine, []string{"offsets 1 to 2"}},
		{[]string{"nodes", "--server", "http://127.0.0.1:1"}, exitCouldNotTell, []string{"refused"}},
		{[]string{"nodes", "-o", "yaml"}, exitCouldNotTell, []string{"must be text or json"}},
		{[]string{"serve", "--listen", "127.0.0.1:0"}, exitCouldNotTell, []string{"in use by another process"}},
		{[]string{"serve", "--listen", "0.0.0.0:0"}, exitCouldNotTell, []string{"needs --tls-cert"}},
		{[]string{"serve", "--listen", ":0"}, exitCouldNotTell, []string{"needs --tls-cert"}},
	} {
		out, code := cli(t, append(test.args, "--dir", dir)...)
		if code != test.code {
			t.Errorf("%v: exit code %d, want %d: %s", test.args, code, test.code, out)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%v: no %q in\n%s", test.args, want, out)
			}
		}
		if strings.ContainsAny(out, "\x1b\r") {
			t.Errorf("%v: control characters in %q", test.args, out)
		}
	}
	p.stop(syscall.SIGTERM) // its log is complete
	if strings.Contains(p.log.String(), "evil") {
		t.Errorf("the log repeats what a node said: %s", p.log)
	}
}

// A backup of a running center is restored unchanged; the journal gets another UUID.
func TestBackupRestore(t *testing.T) {
	dir, archive, restored := t.TempDir(), filepath.Join(t.TempDir(), "b.tar"), filepath.Join(t.TempDir(), "r")
	p := start(t, dir)
	must(t, p.post(raised("node-1", 1), raised("node-1", 2)))
	p.stop(syscall.SIGTERM) // writes a checkpoint
	p = start(t, dir)
	must(t, p.post(raised("node-1", 3)))
	if out, code := cli(t, "backup", archive, "--dir", dir); code != exitFine {
		t.Fatal(out)
	}
	if out, code := cli(t, "restore", archive, "--dir", restored); code != exitFine {
		t.Fatal(out)
	}
	if out, code := cli(t, "restore", archive, "--dir", restored); code != exitCouldNotTell ||
		!strings.Contains(out, "there is a journal already") {
		t.Errorf("restored over a journal: %d %s", code, out)
	}
	before, _ := cli(t, "faults", "-o", "json", "--dir", dir)
	start(t, restored)
	after, _ := cli(t, "faults", "-o", "json", "--dir", restored)
	cut := func(s string) string { // without the UUID
		head, rest, _ := strings.Cut(s, `"journal":"`)
		_, tail, _ := strings.Cut(rest, `"`)
		return head + tail
	}
	if before == after || cut(before) != cut(after) || !strings.Contains(after, `"total":3`) {
		t.Errorf("before %s\nafter %s", before, after)
	}
	if out, _ := cli(t, "report", "daily", "-o", "json", "--dir", restored); !strings.Contains(out, `"found":3`) {
		t.Errorf("the report is another one: %s", out)
	}
	data, err := os.ReadFile(archive)
	must(t, err)
	at := bytes.Index(data, []byte("SQLite format 3")) + 4000
	for name, damaged := range map[string][]byte{"cut off": data[:len(data)/2],
		"another byte": append(append(bytes.Clone(data[:at]), data[at]^1), data[at+1:]...)} {
		must(t, os.WriteFile(archive, damaged, 0o600))
		empty := filepath.Join(t.TempDir(), "e")
		if out, code := cli(t, "restore", archive, "--dir", empty); code != exitCouldNotTell {
			t.Errorf("%s: %s", name, out)
		}
		if _, err := os.Stat(filepath.Join(empty, "journal")); err == nil {
			t.Errorf("%s: a journal was made", name)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
