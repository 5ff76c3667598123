package eventcenter_test

import (
	"errors"
	"fmt"
	"io"
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
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

func TestBehaviour(t *testing.T) {
	reporttest.Behaviour(t, func(t *testing.T) reporttest.Subject {
		c := &center{}
		config, receiver := config(c)
		config.Store = reporttest.NewStore()
		return reporttest.Subject{Reporter: eventcenter.New(config), Sink: &receiver.Fault, Edge: true,
			Reports: func() []string { return c.lines(event.FaultRaised, event.FaultUpdated, event.ActionSucceeded) }}
	})
}

// A receiver that takes no batches, or no structured mode, is sent a mode that it takes, after one attempt.
func TestSimplerModes(t *testing.T) {
	for _, mode := range []event.Mode{event.Batch, event.Structured, event.Binary} {
		t.Run(string(mode), func(t *testing.T) {
			bubble(t, func(t *testing.T, k *kit) {
				refused := 0
				k.c.answers(func(w http.ResponseWriter, request *http.Request, _ []cloudevents.Event) bool {
					is := event.Binary
					switch request.Header.Get("Content-Type") {
					case event.BatchMediaType:
						is = event.Batch
					case event.MediaType:
						is = event.Structured
					}
					if is != mode {
						refused++
						w.WriteHeader(http.StatusUnsupportedMediaType)
					}
					return is != mode
				})
				k.start()
				k.find("One", "Two \"é\" %")
				time.Sleep(time.Minute)
				k.find("One", "Two \"é\" %", "Three")
				time.Sleep(time.Minute)
				k.stop()
				k.check("One", "Two \"é\" %", "Three")
				if want := slices.Index([]event.Mode{event.Batch, event.Structured, event.Binary},
					mode); refused != want {
					t.Errorf("%d requests in modes that were refused before, want %d", refused, want)
				}
			})
		})
	}
}

// An event that the center rejects by name is quarantined, reported and counted; all others arrive. If the center names
// none, the reporter finds the culprit.
func TestRejected(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, bad []int){
		"named": func(w http.ResponseWriter, bad []int) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			const names = `{"rejected":[{"index":%d,"reason":"no such thing"},{"index":-1},{"index":99999}]}`
			fmt.Fprintf(w, names, bad[0])
		},
		"not named": func(w http.ResponseWriter, _ []int) { http.Error(w, "bad", http.StatusBadRequest) },
		"too large": func(w http.ResponseWriter, _ []int) { w.WriteHeader(http.StatusRequestEntityTooLarge) },
		"endless": func(w http.ResponseWriter, _ []int) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.CopyN(w, neverEnding{}, 10<<20)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, k *kit) {
				k.c.answers(func(w http.ResponseWriter, _ *http.Request, events []cloudevents.Event) bool {
					var bad []int
					for i, e := range events {
						if strings.Contains(string(e.Data()), `"reason":"Reason7"`) {
							bad = append(bad, i)
						}
					}
					if len(bad) > 0 && events[0].Type() != string(event.NodeSnapshot) {
						answer(w, bad)
						return true
					}
					return false
				})
				var reasons []string
				for i := range 20 {
					reasons = append(reasons, fmt.Sprint("Reason", i))
				}
				k.start()
				k.find(reasons...)
				time.Sleep(10 * time.Minute)
				k.check()
				got, want := k.c.lines(event.FaultRaised), slices.Delete(reasons, 7, 8)
				slices.Sort(got)
				slices.Sort(want)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				for range 2 { // also after a restart
					if stats := k.r.Stats(); stats.Quarantined != 1 {
						t.Errorf("%+v, want one that is set aside", stats)
					}
					k.stop()
					k.start()
					time.Sleep(time.Minute)
				}
			})
		})
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }

// After any other answer of the center no event is lost, and the reporter waits as long as the center asks.
func TestKept(t *testing.T) {
	for _, code := range []int{300, 302, 307, 401, 403, 404, 408, 409, 429, 500, 503} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, k *kit) {
				k.c.answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
					w.Header().Set("Location", "http://169.254.169.254/")
					w.Header().Set("Retry-After", "1800")
					w.WriteHeader(code)
					return true
				})
				seen := &observer{}
				k.config.Observer = seen
				k.start()
				k.find("One")
				time.Sleep(29 * time.Minute)
				synctest.Wait()
				if k.c.asked() != 1 {
					t.Errorf("%d requests before the center's Retry-After was over", k.c.requests)
				}
				if seen.result != "error" || !strings.Contains(fmt.Sprint(seen.err), fmt.Sprint(code)) {
					t.Errorf("observed %q %v", seen.result, seen.err)
				}
				k.c.answers(nil)
				time.Sleep(2 * time.Hour)
				k.stop()
				if k.check("One"); seen.result != "ok" {
					t.Error(seen.result)
				}
			})
		})
	}
}

type observer struct {
	result string
	err    error
}

func (o *observer) Wrote(_, result string, err error)     { o.result, o.err = result, err }
func (o *observer) Queued(string, int)                    {}
func (o *observer) Dropped(string, finding.Severity, int) {}

// The center sets the interval of agent.alive, within bounds.
func TestAlive(t *testing.T) {
	for header, want := range map[string]int{"": 60, "120": 30, "1": 360, "999999999999": 1, "90000": 1, "-5": 60,
		"x": 60} {
		t.Run(header, func(t *testing.T) {
			bubble(t, func(t *testing.T, k *kit) {
				k.c.answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
					w.Header().Set("Nodeagent-Alive-Seconds", header)
					return false
				})
				k.config.Rand = func() float64 { return 0.999 } // the next snapshot comes after the hour
				k.start()
				time.Sleep(time.Hour - time.Second)
				n := 0
				for _, e := range k.c.received() {
					if e.Type == event.AgentAlive {
						n++
					}
				}
				k.stop()
				k.check()
				if n < want-2 || n > want {
					t.Errorf("%d agent.alive in an hour, want %d", n, want)
				}
			})
		})
	}
}

// After connecting, the reporter sends the backlog, then all active faults, and the unknown checks.
func TestSnapshotBehindWhatWaited(t *testing.T) {
	bubble(t, func(t *testing.T, k *kit) {
		left := finding.NewActivity(finding.LeftoverFound, "leftovers", finding.Subject{Kind: "mount", Name: "/a",
			UID: "u"}, finding.Timestamp{Wall: time.Now(), Boot: "boot-1"})
		left.Message = "left"
		k.config.Checks, k.config.Leftovers = []string{"a", "b"}, []finding.Activity{left}
		ended := uint64(7)
		k.config.PodsEnded = func() *uint64 { return &ended }
		k.away()
		k.start()
		k.find("One")
		time.Sleep(time.Hour)
		k.find("Two")
		time.Sleep(time.Hour)
		k.receiver.Mend()
		time.Sleep(10 * time.Minute)
		k.stop()
		k.check("One", "Two")
		received := k.c.received()
		i := slices.IndexFunc(received, func(e event.Event) bool { return e.Type == event.NodeSnapshot })
		if i != 3 {
			t.Fatalf("%d events came before the snapshot", i)
		}
		first := received[i]
		snapshot, ok := first.Data.(event.Snapshot)
		if !ok || len(snapshot.Faults) != 1 || snapshot.Faults[0].Reason != "Two" || !snapshot.End ||
			snapshot.AsOf != "00000000000000000003" || snapshot.Of == first.Stream {
			t.Errorf("first came %s %+v", first.Type, snapshot)
		}
		if snapshot.PodsEnded == nil || *snapshot.PodsEnded != 7 {
			t.Error("how many pods ended is not said")
		}
		if diff := cmp.Diff([]string{"b"}, snapshot.Unknown); diff != "" || len(snapshot.Leftovers) != 1 {
			t.Errorf("%d leftovers %s", len(snapshot.Leftovers), diff)
		}
	})
}

// A snapshot too large for one event is sent in parts.
func TestSnapshotParts(t *testing.T) {
	bubble(t, func(t *testing.T, k *kit) {
		state, _ := k.w.Run("a", nil, slices.Repeat([]string{strings.Repeat("R", 5000)}, 1000)...)
		k.r = eventcenter.New(k.config)
		k.r.Update(state, nil)
		stop := reporttest.Start(t, k.r)
		time.Sleep(time.Minute)
		stop()
		k.check()
		faults, ends, parts := 0, 0, 0
		for _, e := range k.c.received() {
			if s, ok := e.Data.(event.Snapshot); ok {
				if s.PodsEnded != nil {
					t.Error("an agent that does not count pods says how many ended")
				}
				parts++
				faults += len(s.Faults)
				if s.End {
					ends++
				}
				if s.Part != parts {
					t.Errorf("part %d is called %d", parts, s.Part)
				}
			}
		}
		if faults != 1000 || ends != 1 || parts < 2 {
			t.Errorf("%d faults in %d parts with %d ends", faults, parts, ends)
		}
	})
}

// If a check becomes known after a snapshot called it unknown, another snapshot follows soon, once, even if the center
// refuses it at first: a fault of an earlier start may have ended meanwhile, without an event.
func TestSnapshotOfWhatBecameKnown(t *testing.T) {
	bubble(t, func(t *testing.T, k *kit) {
		var refuse atomic.Bool
		k.c.answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
			once := refuse.Swap(false)
			if once {
				w.WriteHeader(http.StatusTooManyRequests)
			}
			return once
		})
		k.config.Checks = []string{"a", "b", "c"}
		k.start()
		time.Sleep(time.Minute)
		refuse.Store(true)
		k.find()
		time.Sleep(time.Second)
		k.r.Update(k.w.Run("b", errors.New("unreadable")))
		time.Sleep(10 * time.Minute)
		k.stop()
		k.check()
		var unknown [][]string
		for _, e := range k.c.received() {
			if s, ok := e.Data.(event.Snapshot); ok {
				unknown = append(unknown, s.Unknown)
			}
		}
		if diff := cmp.Diff([][]string{{"a", "b", "c"}, {"b", "c"}}, unknown); diff != "" {
			t.Error(diff)
		}
	})
}
