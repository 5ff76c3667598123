package eventcenter_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// An agent that is killed at any moment loses nothing that was written, leaves no gap in a stream that is not named,
// and the same event has the same content each time.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("EVENTCENTER_KILLED"); dir != "" {
		sendUntilKilled(t, dir, os.Getenv("EVENTCENTER_URL"))
		return
	}
	c, dir := &center{kills: true}, t.TempDir()
	away := func(requests int) { // the center takes one of so many requests
		c.answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
			if c.requests%requests != 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			return false
		})
	}
	away(20) // so that most wait longer than what is stored waits
	server := httptest.NewServer(c)
	defer server.Close()
	known := map[string]bool{} // streams of the starts of which something was stored
	for round := range 4 {
		if round == 3 {
			away(1e9) // what is stored stays
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestKilled$")
		cmd.Env = append(os.Environ(), "EVENTCENTER_KILLED="+dir, "EVENTCENTER_URL="+server.URL)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "nothing is stored", func() bool {
			note(known, dir)
			return len(known) > round
		})
		time.Sleep(time.Duration(round*130) * time.Millisecond) // of a writer that never stops by itself
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
	}
	stored, err := os.ReadDir(dir)
	if err != nil || len(stored) == 0 {
		t.Fatalf("nothing was stored: %v", err)
	}
	c.answers(nil)
	r := eventcenter.New(realConfig(dir, server.URL))
	done, cancel := runReal(t, r)
	eventually(t, "what was stored is not sent", func() bool {
		return r.Stats().DiskBytes == 0 && slices.ContainsFunc(c.received(), func(e event.Event) bool {
			return e.Type == event.AgentStarted && !known[e.Stream] // the last goes last
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

// note adds the streams of which something is stored.
func note(known map[string]bool, dir string) {
	_ = filesIn(dir).Scan(func(name string, data []byte, _ error) {
		if stream, _, _ := strings.Cut(name, "-"); len(data) > 0 {
			known[stream] = true
		}
	})
}

func realConfig(dir, url string) eventcenter.Config {
	return eventcenter.Config{
		Settings: eventcenter.Settings{Endpoints: []string{url}, Cluster: "prod"}, Node: "node-1", Boot: "boot-1",
		Files: filesIn(dir), ReadFile: os.ReadFile, Rand: func() float64 { return 0.01 },
	}
}

func sendUntilKilled(t *testing.T, dir, url string) {
	r := eventcenter.New(realConfig(dir, url))
	runReal(t, r)
	w := reporttest.NewWorld()
	for i := 0; ; i++ {
		r.Update(w.Run("a", nil, fmt.Sprint("Reason", i)))
		time.Sleep(2 * time.Millisecond)
	}
}
