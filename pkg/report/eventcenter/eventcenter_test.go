package eventcenter_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/segment"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// filesIn returns real files.
func filesIn(dir string) eventcenter.Files {
	d := segment.Dir{Path: dir, Max: 2 << 20}
	return eventcenter.Files{Scan: d.Scan, Append: d.Append, ReadAt: d.ReadAt, Remove: d.Remove}
}

// hanging returns files that hang until the test ends.
func hanging(t *testing.T) eventcenter.Files {
	over := make(chan struct{})
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { close(over) }) })
	wait := func() error { <-over; return errors.New("the disk is gone") }
	return eventcenter.Files{
		Scan:   func(func(string, []byte, error)) error { return wait() },
		Append: func(string, []byte) error { return wait() },
		ReadAt: func(string, int64, int) ([]byte, error) { return nil, wait() },
		Remove: func(string) error { return wait() },
	}
}

// broken returns files that fail.
func broken() eventcenter.Files {
	err := errors.New("read-only file system")
	return eventcenter.Files{
		Scan:   func(func(string, []byte, error)) error { return err },
		Append: func(string, []byte) error { return err },
		ReadAt: func(string, int64, int) ([]byte, error) { return nil, err },
		Remove: func(string) error { return err },
	}
}

func TestBehaviour(t *testing.T) {
	reporttest.Behaviour(t, func(t *testing.T) reporttest.Subject {
		c := &center{}
		config, receiver := config(c)
		config.Files = filesIn(t.TempDir())
		return reporttest.Subject{Reporter: eventcenter.New(config), Sink: &receiver.Fault, Edge: true,
			Reports: func() []string { return c.lines(event.FaultRaised, event.FaultUpdated, event.ActionSucceeded) }}
	})
}

// The fault that matters most is the disk's own: it is sent whatever that disk does, also before anything was read.
func TestFatalLeavesWithoutTheDisk(t *testing.T) {
	for name, files := range map[string]func(*testing.T) eventcenter.Files{
		"hung": hanging, "read-only": func(*testing.T) eventcenter.Files { return broken() },
		"none": func(*testing.T) eventcenter.Files { return eventcenter.Files{} },
	} {
		t.Run(name, func(t *testing.T) {
			c := &center{}
			synctest.Test(t, func(t *testing.T) {
				config, _ := config(c)
				over := make(chan struct{})
				config.Files, config.Settings.TokenFile = files(t), "/on/the/same/disk"
				reads := 0
				config.ReadFile = func(string) ([]byte, error) {
					if reads++; reads > 1 {
						<-over
					}
					return []byte("secret"), nil
				}
				r := eventcenter.New(config)
				ctx, w := t.Context(), reporttest.NewWorld()
				go r.Run(ctx) //nolint:errcheck // that a disk hangs is an error of its end
				time.Sleep(5 * time.Minute)
				for i := range 3 {
					began := time.Now()
					r.Update(w.Run("filesystem-readonly", nil, fmt.Sprint("Disk", i)))
					synctest.Wait()
					time.Sleep(2 * time.Second)
					if !slices.Contains(c.lines(event.FaultRaised, event.FaultUpdated), fmt.Sprint("Disk", i)) {
						t.Fatalf("%d: not received after %s: %v", i, time.Since(began), c.lines())
					}
					time.Sleep(10 * time.Minute)
				}
				close(over)
			})
			c.check(t)
		})
	}
}

// A backlog that can no longer be read does not hold up what is new, and is sent when the disk is back.
func TestBacklogOnHungDisk(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, receiver := config(c)
		config.Files = filesIn(dir)
		receiver.Fail(errors.New("connection refused"))
		stop := reporttest.Start(t, eventcenter.New(config))
		time.Sleep(time.Minute)
		stop()
		receiver.Mend()
		read, over := config.Files.ReadAt, make(chan struct{})
		config.Files.ReadAt = func(name string, offset int64, size int) ([]byte, error) {
			<-over
			return read(name, offset, size)
		}
		r, w := eventcenter.New(config), reporttest.NewWorld()
		stop = reporttest.Start(t, r)
		for i := range 5 {
			r.Update(w.Run("a", nil, fmt.Sprint("Reason", i)))
			time.Sleep(2 * time.Second)
			if lines := c.lines(event.FaultRaised, event.FaultUpdated); len(lines) != i+1 {
				t.Errorf("%d: received %v", i, lines)
			}
		}
		close(over)
		time.Sleep(10 * time.Minute)
		stop()
		c.check(t)
		streams := map[string]bool{}
		for _, e := range c.received() {
			if e.Type == event.AgentStarted {
				streams[e.Stream] = true
			}
		}
		if len(streams) != 2 {
			t.Errorf("%d starts arrived, want 2", len(streams))
		}
	})
}

// A receiver that takes no batches, or no structured mode, is sent what it takes, and asked once.
func TestSimplerModes(t *testing.T) {
	for _, mode := range []eventcenter.Mode{eventcenter.Batch, eventcenter.Structured, eventcenter.Binary} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &center{}
				refused := 0
				c.answers(func(w http.ResponseWriter, request *http.Request, _ []cloudevents.Event) bool {
					is := eventcenter.Binary
					switch request.Header.Get("Content-Type") {
					case event.BatchMediaType:
						is = eventcenter.Batch
					case event.MediaType:
						is = eventcenter.Structured
					}
					if is != mode {
						refused++
						w.WriteHeader(http.StatusUnsupportedMediaType)
					}
					return is != mode
				})
				config, _ := config(c)
				r := eventcenter.New(config)
				stop := reporttest.Start(t, r)
				w := reporttest.NewWorld()
				r.Update(w.Run("a", nil, "One", "Two \"é\" %"))
				time.Sleep(time.Minute)
				r.Update(w.Run("a", nil, "One", "Two \"é\" %", "Three"))
				time.Sleep(time.Minute)
				stop()
				c.check(t)
				if diff := cmp.Diff([]string{"One", "Two \"é\" %", "Three"}, c.lines(event.FaultRaised)); diff != "" {
					t.Error(diff)
				}
				if want := slices.Index([]eventcenter.Mode{eventcenter.Batch, eventcenter.Structured, eventcenter.Binary},
					mode); refused != want {
					t.Errorf("%d requests in modes that were refused before, want %d", refused, want)
				}
			})
		})
	}
}

// What the center names is set aside, told and counted; all else arrives. Where it names nothing, the culprit is
// found.
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
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				c := &center{}
				c.answers(func(w http.ResponseWriter, _ *http.Request, events []cloudevents.Event) bool {
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
				config, _ := config(c)
				config.Files = filesIn(dir)
				r := eventcenter.New(config)
				w := reporttest.NewWorld()
				var want []string
				reasons := []string{}
				for i := range 20 {
					reasons = append(reasons, fmt.Sprint("Reason", i))
					if i != 7 {
						want = append(want, fmt.Sprint("Reason", i))
					}
				}
				r.Update(w.Run("a", nil, reasons...))
				stop := reporttest.Start(t, r)
				time.Sleep(10 * time.Minute)
				c.check(t)
				got := c.lines(event.FaultRaised)
				slices.Sort(got)
				slices.Sort(want)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				if stats := r.Stats(); stats.SetAside != 1 {
					t.Errorf("%+v, want one that is set aside", stats)
				}
				stop()
				again := eventcenter.New(config)
				stop = reporttest.Start(t, again)
				time.Sleep(time.Minute)
				if stats := again.Stats(); stats.SetAside != 1 {
					t.Errorf("after a restart %+v, want one that is set aside", stats)
				}
				stop()
			})
		})
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }

// Whatever else a center answers, nothing is lost, and it is left alone for as long as it asks.
func TestKept(t *testing.T) {
	for _, code := range []int{300, 302, 307, 401, 403, 404, 408, 409, 429, 500, 503} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &center{}
				c.answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
					w.Header().Set("Location", "http://169.254.169.254/")
					w.Header().Set("Retry-After", "1800")
					w.WriteHeader(code)
					return true
				})
				config, _ := config(c)
				seen := &observer{}
				config.Observer = seen
				r := eventcenter.New(config)
				r.Update(reporttest.NewWorld().Run("a", nil, "One"))
				stop := reporttest.Start(t, r)
				time.Sleep(29 * time.Minute)
				synctest.Wait()
				if c.asked() != 1 {
					t.Errorf("%d requests before the center's Retry-After was over", c.requests)
				}
				if seen.result != "error" || !strings.Contains(fmt.Sprint(seen.err), fmt.Sprint(code)) {
					t.Errorf("observed %q %v", seen.result, seen.err)
				}
				c.answers(nil)
				time.Sleep(2 * time.Hour)
				stop()
				c.check(t)
				if diff := cmp.Diff([]string{"One"}, c.lines(event.FaultRaised)); diff != "" || seen.result != "ok" {
					t.Error(seen.result, diff)
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

// The center says how often it wants to be sent something, within bounds.
func TestAlive(t *testing.T) {
	for header, want := range map[string]int{"": 60, "120": 30, "1": 360, "999999999999": 1, "90000": 1, "-5": 60,
		"x": 60} {
		t.Run(header, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &center{}
				c.answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
					w.Header().Set("Nodeagent-Alive-Seconds", header)
					return false
				})
				config, _ := config(c)
				config.Rand = func() float64 { return 0.999 } // the next snapshot comes after the hour
				r := eventcenter.New(config)
				stop := reporttest.Start(t, r)
				time.Sleep(time.Hour - time.Second)
				n := 0
				for _, e := range c.received() {
					if e.Type == event.AgentAlive {
						n++
					}
				}
				stop()
				c.check(t)
				if n < want-2 || n > want {
					t.Errorf("%d agent.alive in an hour, want %d", n, want)
				}
			})
		})
	}
}

// On connecting comes everything that is active, and of what nothing is known; what waited is sent after that.
func TestSnapshotFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, receiver := config(c)
		left := finding.NewActivity(finding.LeftoverFound, "leftovers", finding.Subject{Kind: "mount", Name: "/a",
			UID: "u"}, finding.Timestamp{Wall: time.Now(), Boot: "boot-1"})
		left.Message = "left"
		config.Checks, config.Leftovers = []string{"a", "b"}, []finding.Activity{left}
		r := eventcenter.New(config)
		w := reporttest.NewWorld()
		receiver.Fail(errors.New("connection refused"))
		stop := reporttest.Start(t, r)
		r.Update(w.Run("a", nil, "One"))
		time.Sleep(time.Hour)
		r.Update(w.Run("a", nil, "Two"))
		time.Sleep(time.Hour)
		receiver.Mend()
		time.Sleep(10 * time.Minute)
		stop()
		c.check(t)
		first := c.received()[0]
		snapshot, ok := first.Data.(event.Snapshot)
		if !ok || len(snapshot.Faults) != 1 || snapshot.Faults[0].Reason != "Two" || !snapshot.End ||
			snapshot.AsOf != "00000000000000000003" || snapshot.Of == first.Stream {
			t.Errorf("first came %s %+v", first.Type, snapshot)
		}
		if diff := cmp.Diff([]string{"b"}, snapshot.Unknown); diff != "" || len(snapshot.Leftovers) != 1 {
			t.Errorf("%d leftovers %s", len(snapshot.Leftovers), diff)
		}
		if diff := cmp.Diff([]string{"One", "Two"}, c.lines(event.FaultRaised, event.FaultUpdated)); diff != "" {
			t.Error(diff)
		}
	})
}

// A snapshot that is too large for one event comes in parts.
func TestSnapshotParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, _ := config(c)
		r := eventcenter.New(config)
		w := reporttest.NewWorld()
		reasons := slices.Repeat([]string{strings.Repeat("R", 5000)}, 1000)
		state, _ := w.Run("a", nil, reasons...)
		r.Update(state, nil)
		stop := reporttest.Start(t, r)
		time.Sleep(time.Minute)
		stop()
		c.check(t)
		faults, ends, parts := 0, 0, 0
		for _, e := range c.received() {
			if s, ok := e.Data.(event.Snapshot); ok {
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

// A day without the center, in a storm: what is kept stays below 20 MiB, the fatal ones are all kept, and what was
// dropped is named.
func TestDayWithoutTheCenter(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, receiver := config(c)
		config.Files = filesIn(dir)
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
		if size := sizeOf(t, dir); size > 20<<20 || size < 10<<20 {
			t.Errorf("%d bytes in the outbox", size)
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
		if size := sizeOf(t, dir); size > 1<<20 {
			t.Errorf("%d bytes are kept of what has arrived", size)
		}
	})
}

func sizeOf(t *testing.T, dir string) (size int64) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return size
}

// After a crash, what has arrived is not called lost: neither what was never written, nor what was in files that are gone.
func TestNothingThatCameIsCalledLost(t *testing.T) {
	dir, crashed := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, _ := config(c)
		config.Files, config.Settings.Mode = filesIn(dir), eventcenter.Structured
		r, w := eventcenter.New(config), reporttest.NewWorld()
		stop := reporttest.Start(t, r)
		r.Update(w.Run("a", nil, "One"))
		time.Sleep(time.Minute)
		var accept atomic.Value // the severity that is taken
		accept.Store("none")
		c.answers(func(w http.ResponseWriter, _ *http.Request, events []cloudevents.Event) bool {
			refused := events[0].Extensions()["severity"] != accept.Load() &&
				events[0].Type() != string(event.NodeSnapshot)
			if refused {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return refused
		})
		r.Update(w.Run("a", nil, "Two"))
		r.Update(w.Run("a", nil, "Three"))
		info := reporttest.Fatal("b", 0, "Four")
		info.Severity = finding.Info
		r.Update(w.Observe(finding.Observation{Check: "b", At: w.Now(), Findings: []finding.Finding{info}}))
		time.Sleep(10 * time.Minute)
		if err := os.CopyFS(crashed+"-before", os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		accept.Store(string(finding.Fatal))
		time.Sleep(20 * time.Minute)
		if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if files, _ := filepath.Glob(crashed + "/*"); len(files) != 1 {
			t.Fatalf("stored: %v", files)
		}
		stop()
		c.answers(nil)
		for _, dir := range []string{crashed, crashed + "-before"} {
			config.Files = filesIn(dir)
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

// A file that ends in the middle of a record, or is damaged, costs what was in it: the rest arrives, and what is
// missing is named.
func TestDamagedFiles(t *testing.T) {
	for name, damage := range map[string]func(data []byte) []byte{
		"torn":    func(data []byte) []byte { return data[:len(data)-7] },
		"garbage": func(data []byte) []byte { return append(data, "garbage of a crash"...) },
		"flipped": func(data []byte) []byte { data[len(data)/2] ^= 1; return data },
		"empty":   func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				c := &center{}
				config, receiver := config(c)
				config.Files = filesIn(dir)
				receiver.Fail(errors.New("connection refused"))
				r := eventcenter.New(config)
				stop := reporttest.Start(t, r)
				w := reporttest.NewWorld()
				for i := range 10 {
					r.Update(w.Run("a", nil, fmt.Sprint("Reason", i)))
				}
				time.Sleep(time.Minute)
				stop()
				files, err := filepath.Glob(dir + "/*fatal*")
				if err != nil || len(files) != 1 {
					t.Fatal(files, err)
				}
				data, err := os.ReadFile(files[0])
				if err == nil {
					err = os.WriteFile(files[0], damage(data), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				receiver.Mend()
				stop = reporttest.Start(t, eventcenter.New(config))
				time.Sleep(time.Minute)
				stop()
				c.check(t)
				if name == "garbage" && len(c.lines(event.FaultRaised, event.FaultUpdated)) != 10 {
					t.Errorf("%v", c.lines())
				}
				if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}

// Without trouble nothing is written at all.
func TestNothingIsWrittenInPeace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "outbox")
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, _ := config(c)
		config.Files = filesIn(dir)
		r := eventcenter.New(config)
		stop := reporttest.Start(t, r)
		w := reporttest.NewWorld()
		for i := range 10 {
			r.Update(w.Run("a", nil, fmt.Sprint("Reason", i)))
			time.Sleep(time.Minute)
		}
		stop()
		c.check(t)
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s: %v", dir, err)
		}
	})
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
		s := eventcenter.Settings{Mode: eventcenter.Batch}
		if err := json.Unmarshal([]byte(name), &s); err != nil {
			t.Fatal(err)
		}
		var got []string
		for key := range s.Problems() {
			got = append(got, key)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: problems with %v, want %q", name, got, want)
		}
	}
}
