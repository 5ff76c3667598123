package api_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/web/identity/identitytest"
)

// BenchmarkIntake takes requests of 1 and of 10 events, 64 at a time, without a network. Compare cpu-µs/event: it is
// that of the process, so other programs hardly change it.
func BenchmarkIntake(b *testing.B) {
	for _, many := range []int{1, 10} {
		b.Run(fmt.Sprintf("%d", many), func(b *testing.B) { benchmarkIntake(b, many) })
	}
}

func benchmarkIntake(b *testing.B, many int) {
	log := slog.New(slog.DiscardHandler)
	c, err := eventcenter.Open(b.Context(), eventcenter.Options{Dir: b.TempDir(), Log: log})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	server := api.New(api.Config{Journal: c.Journal, Model: c.Model, Log: log, Authenticate: identitytest.Administrator(b, token)})
	const nodes = 10_000
	bodies := make([]string, b.N)
	for i := range bodies {
		var texts []string
		for k := range many {
			e := raised(fmt.Sprintf("node-%05d.example.internal", i%nodes), uint64(i/nodes*many+k+1), "sda", "warning")
			text, err := e.Encode()
			if err != nil {
				b.Fatal(err)
			}
			texts = append(texts, string(text))
		}
		bodies[i] = "[" + strings.Join(texts, ",") + "]"
	}
	var at atomic.Int64
	before := cpuTime(b)
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := httptest.NewRequest(http.MethodPost, "/v1/events", strings.NewReader(bodies[at.Add(1)-1]))
			r.Header.Set("Content-Type", batch)
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			server.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				b.Errorf("%d: %s", w.Code, w.Body)
			}
		}
	})
	if err := c.Reports.Follow(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/1000/float64(b.N*many), "cpu-µs/event")
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
