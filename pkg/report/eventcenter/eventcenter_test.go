package eventcenter_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

func TestBehaviour(t *testing.T) {
	reporttest.Behaviour(t, func(t *testing.T) reporttest.Subject {
		k := newKit(t)
		return reporttest.Subject{Reporter: eventcenter.New(k.config), Sink: &k.receiver.Fault, Edge: true,
			Reports: func() []string { return k.c.lines(event.FaultRaised, event.FaultUpdated, event.ActionSucceeded) }}
	})
}

// A receiver that takes no batches, or no structured mode, is sent a mode that it takes, after one attempt.
func TestSimplerModes(t *testing.T) {
	for simpler, mode := range event.Modes() {
		subtest(t, string(mode), func(t *testing.T, k *kit) {
			refused := 0
			k.c.Answers(func(w http.ResponseWriter, request *http.Request, _ []cloudevents.Event) bool {
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
			k.end(time.Minute, "One", "Two \"é\" %", "Three")
			if refused != simpler {
				t.Errorf("%d requests in modes that were refused before, want %d", refused, simpler)
			}
		})
	}
}

// After any other answer of the center no event is lost, and the reporter waits as long as the center asks.
func TestKept(t *testing.T) {
	for _, code := range []int{300, 302, 307, 401, 403, 404, 408, 409, 429, 500, 503} {
		subtest(t, fmt.Sprint(code), func(t *testing.T, k *kit) {
			k.c.Answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
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
			if k.c.Asked() != 1 {
				t.Errorf("%d requests before the center's Retry-After was over", k.c.Asked())
			}
			if seen.result != "error" || !strings.Contains(fmt.Sprint(seen.err), fmt.Sprint(code)) {
				t.Errorf("observed %q %v", seen.result, seen.err)
			}
			k.c.Answers(nil)
			if k.end(2*time.Hour, "One"); seen.result != "ok" {
				t.Error(seen.result)
			}
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
		subtest(t, header, func(t *testing.T, k *kit) {
			k.c.Answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
				w.Header().Set("Nodeagent-Alive-Seconds", header)
				return false
			})
			k.config.Rand = func() float64 { return 0.999 } // the next snapshot comes after the hour
			k.start()
			k.end(time.Hour - time.Second)
			n := 0
			for _, e := range k.c.received() {
				if e.Type == event.AgentAlive {
					n++
				}
			}
			if n < want-2 || n > want {
				t.Errorf("%d agent.alive in an hour, want %d", n, want)
			}
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
		k.end(10*time.Minute, "One", "Two")
		received := k.c.received()
		i := slices.IndexFunc(received, func(e event.Event) bool { return e.Type == event.NodeSnapshot })
		if i != 3 {
			t.Fatalf("%d events came before the snapshot", i)
		}
		snapshot := received[i].Data.(event.Snapshot)
		if len(snapshot.Faults) != 1 || snapshot.Faults[0].Reason != "Two" || len(snapshot.Leftovers) != 1 ||
			snapshot.Of == received[i].Stream {
			t.Errorf("first came %+v", snapshot)
		}
		snapshot.Of, snapshot.Faults, snapshot.Leftovers = "", nil, nil
		want := event.Snapshot{AsOf: event.Sequence(3), Part: 1, End: true, Unknown: []string{"b"}, PodsEnded: &ended}
		if diff := cmp.Diff(want, snapshot); diff != "" {
			t.Error(diff)
		}
	})
}

// A snapshot too large for one event is sent in parts.
func TestSnapshotParts(t *testing.T) {
	bubble(t, func(t *testing.T, k *kit) {
		state, _ := k.w.Run("a", nil, slices.Repeat([]string{strings.Repeat("R", 5000)}, 1000)...)
		k.r = eventcenter.New(k.config)
		k.r.Update(state, nil)
		k.stop = reporttest.Start(t, k.r)
		k.end(time.Minute)
		faults, parts := 0, data[event.Snapshot](k.c)
		for i, s := range parts {
			faults += len(s.Faults)
			if s.Part != i+1 || s.End != (s.Part == len(parts)) || s.PodsEnded != nil {
				t.Errorf("part %d of %d: %d, end %v, pods ended %v", i+1, len(parts), s.Part, s.End, s.PodsEnded)
			}
		}
		if faults != 1000 || len(parts) < 2 {
			t.Errorf("%d faults in %d parts", faults, len(parts))
		}
	})
}

// If a check becomes known after a snapshot called it unknown, another snapshot follows soon, once, even if the center
// refuses it at first: a fault of an earlier start may have ended meanwhile, without an event.
func TestSnapshotOfWhatBecameKnown(t *testing.T) {
	bubble(t, func(t *testing.T, k *kit) {
		var refuse atomic.Bool
		k.c.Answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
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
		k.end(10 * time.Minute)
		var unknown [][]string
		for _, s := range data[event.Snapshot](k.c) {
			unknown = append(unknown, s.Unknown)
		}
		if diff := cmp.Diff([][]string{{"a", "b", "c"}, {"b", "c"}}, unknown); diff != "" {
			t.Error(diff)
		}
	})
}

// follow returns the faults that a follower believes active: it takes each event once, in the order of arrival.
func (c *center) follow() []string {
	active, seen := map[string]string{}, map[string]bool{}
	for _, e := range c.received() {
		f, ok := e.Data.(event.Fault)
		if !ok || seen[e.ID()] {
			continue
		}
		seen[e.ID()] = true
		if active[f.Subject.Name] = f.Reason; e.Type == event.FaultCleared {
			delete(active, f.Subject.Name)
		}
	}
	return slices.Sorted(maps.Values(active))
}

// snapshotsAreLast fails the test if a snapshot arrived before an event that it includes, or before one of an earlier
// start: the center would infer the change, and the late event would then repeat or undo it.
func (c *center) snapshotsAreLast(t *testing.T) {
	t.Helper()
	asOf, of := "", ""
	for _, e := range c.received() {
		if s, ok := e.Data.(event.Snapshot); ok {
			asOf, of = s.AsOf, s.Of
		} else if e.Type != event.AgentAlive && of != "" {
			if e.Stream < of || e.Stream == of && event.Sequence(e.Sequence) <= asOf {
				t.Errorf("%s %s arrives after the snapshot of %s %s", e.Type, e.ID(), of, asOf)
			}
		}
	}
}

// However long the center was away and however often the agent started meanwhile, a follower that takes events in the
// order of arrival ends with the present faults. The snapshot comes after all events that it includes.
func TestOrderAfterOutage(t *testing.T) {
	for _, before := range [][]string{{}, {"A"}, {"A", "B"}} {
		for starts := range 4 {
			for _, last := range [][]string{{}, {"B"}, {"A", "C"}} {
				subtest(t, fmt.Sprint(before, starts, last), func(t *testing.T, k *kit) {
					k.start()
					k.find(before...)
					time.Sleep(time.Minute)
					k.away()
					for range starts {
						k.find("A", "B")
						time.Sleep(10 * time.Minute)
						k.stop()
						k.start()
					}
					k.find("X", "Y", "Z")
					time.Sleep(10 * time.Minute)
					k.find(last...)
					time.Sleep(10 * time.Minute)
					k.receiver.Mend()
					k.end(10 * time.Minute)
					k.c.snapshotsAreLast(t)
					if diff := cmp.Diff(last, k.c.follow(), cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("a follower believes: %s", diff)
					}
					waiting := 0
					for _, e := range k.c.received() {
						if e.Type == event.AgentStarted {
							waiting = e.Data.(event.Agent).Waiting
						}
					}
					if starts > 0 && waiting == 0 {
						t.Error("the last agent.started says that nothing waits")
					}
				})
			}
		}
	}
}

func TestSettings(t *testing.T) {
	for name, want := range map[string]string{
		`{"Endpoints":["https://10.0.0.1:1/v1/events"]}`:                                       "cluster",
		`{"Endpoints":["http://10.0.0.1:1/v1/events"],"Cluster":"c"}`:                          "endpoints.0",
		`{"Endpoints":["http://localhost:1/"],"Cluster":"c"}`:                                  "endpoints.0",
		`{"Endpoints":["http://127.0.0.1:1/","https://u:p@x/"],"Cluster":"c"}`:                 "endpoints.1",
		`{"Endpoints":["http://127.0.0.1:1/","http://[::1]:1/","https://x:1/"],"Cluster":"c"}`: "",
		`{"ClientCertFile":"/a"}`:                                                              "clientKeyFile",
		`{"TokenFile":"../token"}`:                                                             "tokenFile",
		`{"TokenFile":"token"}`:                                                                "",
		`{"Mode":"pigeon"}`:                                                                    "mode",
	} {
		s := eventcenter.Settings{Mode: event.Batch}
		must(t, json.Unmarshal([]byte(name), &s))
		var got []string
		mistakes, _ := errors.AsType[setting.Mistakes](s.Validate())
		for key := range mistakes {
			got = append(got, key)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: problems with %v, want %q", name, got, want)
		}
	}
}
