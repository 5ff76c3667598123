package eventcenter_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/eventtest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/test/need"
)

// A day of storm without the center: the backlog stays below 8 MiB, all fatal events are kept, and dropped ones are
// named.
func TestDayWithoutTheCenter(t *testing.T) {
	need.Nothing(t)
	bubble(t, func(t *testing.T, k *kit) {
		k.away()
		k.start()
		for round := range 160 {
			time.Sleep(9 * time.Minute)
			k.storm(250, 50, fmt.Sprint("Round", round), "")
		}
		time.Sleep(time.Minute)
		if size, kept := sizeOf(t, k.store), k.r.Stats().Bytes; size > 12<<20 || kept > 8<<20 || kept < 6<<20 {
			t.Errorf("%d bytes in the outbox, %d in the store", kept, size)
		}
		k.startAgain() // all of it survives a restart
		got := 0
		for _, f := range data[event.Fault](k.c) {
			if f.Severity == finding.Fatal {
				got++
			}
		}
		if got != 160*5 {
			t.Errorf("%d of %d fatal events arrived", got, 160*5)
		}
		if size := sizeOf(t, k.store); size > 0 {
			t.Errorf("%d bytes are kept of what has arrived", size)
		}
	})
}

func sizeOf(t *testing.T, store *reporttest.Store) (size int) {
	t.Helper()
	for key, value := range content(t, store) {
		size += len(key) + len(value)
	}
	return size
}

func content(t *testing.T, store report.Store) map[string][]byte {
	t.Helper()
	values := map[string][]byte{}
	err := store.ForEach(func(key string, value []byte) error {
		values[key] = slices.Clone(value)
		return nil
	})
	must(t, err)
	return values
}

// stored returns a store with values.
func stored(t *testing.T, values map[string][]byte) *reporttest.Store {
	t.Helper()
	store := reporttest.NewStore()
	must(t, store.PutAll(values))
	return store
}

// After a crash, an event that has arrived is not reported as lost: neither one never stored, nor one no longer stored.
func TestNothingThatCameIsCalledLost(t *testing.T) {
	need.Nothing(t)
	bubble(t, func(t *testing.T, k *kit) {
		k.config.Settings.Mode = event.Structured
		k.start()
		k.find("One")
		time.Sleep(time.Minute)
		var taken atomic.Int64 // how many more events are accepted
		k.c.Answers(func(w http.ResponseWriter, _ *http.Request, events []cloudevents.Event) bool {
			refused := events[0].Type() != string(event.NodeSnapshot) && taken.Add(-1) < 0
			if refused {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return refused
		})
		for _, reason := range []string{"Two", "Three", "Four"} {
			k.find(reason)
		}
		time.Sleep(10 * time.Minute)
		crashes := []map[string][]byte{content(t, k.store)}
		taken.Store(1)
		time.Sleep(20 * time.Minute)
		crashes = append(crashes, content(t, k.store))
		if len(crashes[0]) != len(crashes[1])+1 {
			t.Fatalf("%d events are stored, then %d", len(crashes[0]), len(crashes[1]))
		}
		k.stop()
		k.c.Answers(nil)
		for _, left := range crashes {
			k.config.Store = stored(t, left)
			k.startAgain()
		}
		k.check("One", "Two", "Three", "Four")
	})
}

// The next start also names dropped events, if the agent crashed before it could report them.
func TestGivenUpIsNamedAfterACrash(t *testing.T) {
	need.Nothing(t)
	bubble(t, func(t *testing.T, k *kit) {
		k.away()
		k.start()
		untold := 0
		var crash map[string][]byte
		for round := 0; untold == 0 && round < 200; round++ {
			k.storm(100, 100, fmt.Sprint("Round", round), strings.Repeat("m", 900))
			time.Sleep(10 * time.Second)
			crash = content(t, k.store)
			for _, value := range crash {
				if bytes.Contains(value, []byte(`"lost":"dropped"`)) {
					untold++
				}
			}
		}
		if untold == 0 {
			t.Fatal("nothing is given up and not told")
		}
		k.stop()
		k.config.Store = stored(t, crash)
		k.startAgain()
	})
}

// Events that are too old for the center are given up and named; newer ones arrive.
func TestTooOld(t *testing.T) {
	bubble(t, func(_ *testing.T, k *kit) {
		k.away()
		k.start()
		k.find("Old")
		time.Sleep(8 * 24 * time.Hour)
		k.find("New")
		k.receiver.Mend()
		k.end(10*time.Minute, "New")
	})
}

// An agent that starts more than a week later, or finds its clock so far ahead, loses no event if the center is there.
func TestWeekLater(t *testing.T) {
	bubble(t, func(_ *testing.T, k *kit) {
		k.away()
		k.start()
		k.find("Kept")
		k.end(time.Minute)
		time.Sleep(8 * 24 * time.Hour)
		k.receiver.Mend()
		k.start()
		k.end(time.Minute, "Kept")
	})
}

// A damaged record only costs its own event: the others arrive, and the missing one is named.
func TestDamagedRecords(t *testing.T) {
	for name, damage := range map[string]func(data []byte) []byte{
		"torn":    func(data []byte) []byte { return data[:len(data)-7] },
		"garbage": func([]byte) []byte { return []byte("garbage of a crash") },
		"flipped": func(data []byte) []byte { data[len(data)/2] ^= 1; return data },
		"empty":   func([]byte) []byte { return []byte{} },
		"another": func(data []byte) []byte { return bytes.Replace(data, []byte(`"seq":`), []byte(`"seq":1`), 1) },
	} {
		subtest(t, name, func(t *testing.T, k *kit) {
			k.away()
			k.start()
			for i := range 7 {
				k.find(fmt.Sprint("Reason", i))
			}
			time.Sleep(time.Minute)
			k.stop()
			for key, value := range content(t, k.store) {
				if bytes.Contains(value, []byte("Reason5")) {
					must(t, k.store.Put(key, damage(value)))
				}
			}
			k.startAgain("Reason0", "Reason1", "Reason2", "Reason3", "Reason4", "Reason6")
			if k.store.Len() > 0 {
				t.Errorf("left: %v", content(t, k.store))
			}
		})
	}
}

// Without trouble the reporter does not write to the disk.
func TestNothingIsWrittenInPeace(t *testing.T) {
	bubble(t, func(t *testing.T, k *kit) {
		k.start()
		for i := range 10 {
			k.find(fmt.Sprint("Reason", i))
			time.Sleep(time.Minute)
		}
		k.end(0)
		if n := len(k.store.Attempts()); n > 0 {
			t.Errorf("%d writes", n)
		}
	})
}

// An agent killed at any moment loses no stored event and leaves no unnamed gap in a stream, and the same event has the
// same content each time.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("EVENTCENTER_KILLED"); dir != "" {
		sendUntilKilled(t, dir, os.Getenv("EVENTCENTER_URL"))
		return
	}
	c, dir := newCenter(), t.TempDir()
	c.Killed = true
	c.Answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
		refused := c.Requests%20 != 0 // most events wait longer than the delay before storing
		if refused {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return refused
	})
	server := httptest.NewServer(c)
	defer server.Close()
	for round := range 4 {
		if round == 3 {
			c.Answers(eventtest.Status(http.StatusServiceUnavailable)) // stored events stay
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestKilled$")
		cmd.Env = append(os.Environ(), "EVENTCENTER_KILLED="+dir, "EVENTCENTER_URL="+server.URL)
		out, err := cmd.StdoutPipe()
		must(t, errors.Join(err, cmd.Start()))
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
	c.Answers(nil)
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

func realConfig(s report.Store, urls ...string) eventcenter.Config {
	return eventcenter.Config{
		Settings: eventcenter.Settings{Endpoints: urls, Cluster: "prod"}, Node: "node-1", Boot: "boot-1",
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
