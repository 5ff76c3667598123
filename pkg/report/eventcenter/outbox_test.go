package eventcenter_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
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
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, receiver := config(c)
		store := reporttest.NewStore()
		config.Store = store
		receiver.Fail(errors.New("connection refused"))
		r := eventcenter.New(config)
		stop := reporttest.Start(t, r)
		w := reporttest.NewWorld()
		fatal := 0
		for round := range 160 {
			time.Sleep(9 * time.Minute)
			observation := finding.Observation{Check: "storm", At: w.Now()}
			for i := range 250 {
				f := reporttest.Fatal("storm", i, fmt.Sprint("Round", round))
				if f.Severity = finding.Info; i%50 == 0 {
					f.Severity = finding.Fatal
					fatal++
				}
				observation.Findings = append(observation.Findings, f)
			}
			r.Update(w.Observe(observation))
		}
		time.Sleep(time.Minute)
		if size, kept := sizeOf(t, store), r.Stats().Bytes; size > 12<<20 || kept > 8<<20 || kept < 6<<20 {
			t.Errorf("%d bytes in the outbox, %d in the store", kept, size)
		}
		stop()
		receiver.Mend()
		r = eventcenter.New(config) // all of it survives a restart
		stop = reporttest.Start(t, r)
		time.Sleep(10 * time.Minute)
		stop()
		c.check(t)
		got := 0
		for _, e := range c.received() {
			if _, ok := e.Data.(event.Fault); ok && e.Severity == finding.Fatal {
				got++
			}
		}
		if got != fatal {
			t.Errorf("%d of %d fatal events arrived", got, fatal)
		}
		if size := sizeOf(t, store); size > 0 {
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
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, _ := config(c)
		store := reporttest.NewStore()
		config.Store, config.Settings.Mode = store, event.Structured
		r, w := eventcenter.New(config), reporttest.NewWorld()
		stop := reporttest.Start(t, r)
		r.Update(w.Run("a", nil, "One"))
		time.Sleep(time.Minute)
		var taken atomic.Int64 // how many more events are accepted
		c.answers(func(w http.ResponseWriter, _ *http.Request, events []cloudevents.Event) bool {
			refused := events[0].Type() != string(event.NodeSnapshot) && taken.Add(-1) < 0
			if refused {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return refused
		})
		for _, reason := range []string{"Two", "Three", "Four"} {
			r.Update(w.Run("a", nil, reason))
		}
		time.Sleep(10 * time.Minute)
		crashes := []map[string][]byte{content(t, store)}
		taken.Store(1)
		time.Sleep(20 * time.Minute)
		crashes = append(crashes, content(t, store))
		if len(crashes[0]) != len(crashes[1])+1 {
			t.Fatalf("%d events are stored, then %d", len(crashes[0]), len(crashes[1]))
		}
		stop()
		c.answers(nil)
		for _, left := range crashes {
			config.Store = stored(t, left)
			stop = reporttest.Start(t, eventcenter.New(config))
			time.Sleep(10 * time.Minute)
			stop()
			c.check(t)
		}
		got := c.lines(event.FaultRaised, event.FaultUpdated)
		if diff := cmp.Diff([]string{"One", "Two", "Three", "Four"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

// The next start also names dropped events, if the agent crashed before it could report them.
func TestGivenUpIsNamedAfterACrash(t *testing.T) {
	need.Nothing(t)
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, receiver := config(c)
		store := reporttest.NewStore()
		config.Store = store
		receiver.Fail(errors.New("connection refused"))
		r, w := eventcenter.New(config), reporttest.NewWorld()
		stop := reporttest.Start(t, r)
		untold := 0
		var crash map[string][]byte
		for round := 0; untold == 0 && round < 200; round++ {
			observation := finding.Observation{Check: "a", At: w.Now()}
			for i := range 100 {
				f := reporttest.Fatal("a", i, fmt.Sprint("Round", round))
				f.Message = strings.Repeat("m", 900)
				if i > 0 {
					f.Severity = finding.Info
				}
				observation.Findings = append(observation.Findings, f)
			}
			r.Update(w.Observe(observation))
			time.Sleep(10 * time.Second)
			crash = content(t, store)
			for _, value := range crash {
				if bytes.Contains(value, []byte(`"lost":"dropped"`)) {
					untold++
				}
			}
		}
		if untold == 0 {
			t.Fatal("nothing is given up and not told")
		}
		stop()
		receiver.Mend()
		config.Store = stored(t, crash)
		stop = reporttest.Start(t, eventcenter.New(config))
		time.Sleep(10 * time.Minute)
		stop()
		c.check(t)
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &center{}
				config, receiver := config(c)
				store := reporttest.NewStore()
				config.Store = store
				receiver.Fail(errors.New("connection refused"))
				r := eventcenter.New(config)
				stop := reporttest.Start(t, r)
				w := reporttest.NewWorld()
				for i := range 10 {
					r.Update(w.Run("a", nil, fmt.Sprint("Reason", i)))
				}
				time.Sleep(time.Minute)
				stop()
				for key, value := range content(t, store) {
					if !bytes.Contains(value, []byte("Reason5")) {
						continue
					}
					must(t, store.Put(key, damage(value)))
				}
				receiver.Mend()
				stop = reporttest.Start(t, eventcenter.New(config))
				time.Sleep(time.Minute)
				stop()
				c.check(t)
				if got := c.lines(event.FaultRaised, event.FaultUpdated); len(got) != 9 {
					t.Errorf("%v", got)
				}
				if store.Len() > 0 {
					t.Errorf("left: %v", content(t, store))
				}
			})
		})
	}
}

// Without trouble the reporter does not write to the disk.
func TestNothingIsWrittenInPeace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, _ := config(c)
		store := reporttest.NewStore()
		config.Store = store
		r := eventcenter.New(config)
		stop := reporttest.Start(t, r)
		w := reporttest.NewWorld()
		for i := range 10 {
			r.Update(w.Run("a", nil, fmt.Sprint("Reason", i)))
			time.Sleep(time.Minute)
		}
		stop()
		c.check(t)
		if n := len(store.Attempts()); n > 0 {
			t.Errorf("%d writes", n)
		}
	})
}
