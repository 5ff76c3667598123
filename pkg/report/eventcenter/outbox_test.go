package eventcenter_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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
	"github.com/nodeagent/nodeagent/test/need"
)

// A day without the center, in a storm: what is kept stays below 20 MiB, the fatal ones are all kept, and what was
// dropped is named.
func TestDayWithoutTheCenter(t *testing.T) {
	need.Nothing(t)
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
	need.Nothing(t)
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
