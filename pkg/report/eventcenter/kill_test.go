package eventcenter_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// An agent killed at any moment loses no stored event and leaves no unnamed gap in a stream, and the same event has the
// same content each time.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("EVENTCENTER_KILLED"); dir != "" {
		sendUntilKilled(t, dir, os.Getenv("EVENTCENTER_URL"))
		return
	}
	c, dir := &center{kills: true}, t.TempDir()
	away := func(requests int) { // the center accepts one of this many requests
		c.answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
			if c.requests%requests != 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			return false
		})
	}
	away(20) // most events wait longer than the delay before storing
	server := httptest.NewServer(c)
	defer server.Close()
	for round := range 4 {
		if round == 3 {
			away(1e9) // stored events stay
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestKilled$")
		cmd.Env = append(os.Environ(), "EVENTCENTER_KILLED="+dir, "EVENTCENTER_URL="+server.URL)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		must(t, err)
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "stored\n" {
			t.Fatalf("nothing is stored: %q %v", line, err)
		}
		time.Sleep(time.Duration(round*130) * time.Millisecond) // the writer never stops by itself
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
	}
	known := map[string]bool{} // streams of the starts that stored an event
	s := openStore(t, dir)
	for key := range content(t, s) {
		_, id, _ := strings.Cut(key, "-")
		stream, _, _ := strings.Cut(id, "-")
		known[stream] = true
	}
	if len(known) == 0 {
		t.Fatal("nothing was stored")
	}
	c.answers(nil)
	r := eventcenter.New(realConfig(s, server.URL))
	done, cancel := runReal(t, r)
	eventually(t, "what was stored is not sent", func() bool {
		return len(content(t, s)) == 0 && slices.ContainsFunc(c.received(), func(e event.Event) bool {
			return e.Type == event.AgentStarted && !known[e.Stream] // the last sorts last
		})
	})
	cancel()
	<-done
	c.check(t)
	contents, streams := map[string]string{}, map[string]bool{}
	for _, e := range c.received() {
		text := fmt.Sprintf("%+v", e)
		if old, ok := contents[e.ID()]; ok && old != text {
			t.Errorf("%s had another content:\n%s\n%s", e.ID(), old, text)
		}
		contents[e.ID()] = text
		streams[e.Stream] = true
	}
	for stream := range known {
		if !streams[stream] {
			t.Errorf("nothing of start %s arrived", stream)
		}
	}
}

// openStore opens the agent's real store.
func openStore(t *testing.T, dir string) report.Store {
	t.Helper()
	s, err := store.Open(filepath.Join(dir, "state.db"))
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s.Bucket("eventcenter")
}

func realConfig(s report.Store, url string) eventcenter.Config {
	return eventcenter.Config{
		Settings: eventcenter.Settings{Endpoints: []string{url}, Cluster: "prod"}, Node: "node-1", Boot: "boot-1",
		Store: s, ReadFile: os.ReadFile, Rand: func() float64 { return 0.01 },
	}
}

// told is a store that reports each write.
type told struct{ report.Store }

func (s told) PutAll(values map[string][]byte) error {
	err := s.Store.PutAll(values)
	if err == nil {
		fmt.Println("stored")
	}
	return err
}

func sendUntilKilled(t *testing.T, dir, url string) {
	r := eventcenter.New(realConfig(told{openStore(t, dir)}, url))
	runReal(t, r)
	w := reporttest.NewWorld()
	for i := 0; ; i++ {
		r.Update(w.Run("a", nil, fmt.Sprint("Reason", i)))
		time.Sleep(2 * time.Millisecond)
	}
}
