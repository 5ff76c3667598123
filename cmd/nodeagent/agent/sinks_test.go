package agent

import (
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// askedMeanwhile is an observer that asks for the status at its first call. That must not wait for the calling
// reporter.
type askedMeanwhile struct {
	report.Unobserved
	monitor *sinkMonitor
	ask     func()
}

func (a *askedMeanwhile) Queued(reporter string, length int) {
	if ask := a.ask; ask != nil {
		a.ask = nil
		go ask()
		time.Sleep(100 * time.Millisecond) // time for the question to reach the reporter's lock
	}
	a.monitor.Queued(reporter, length)
}

// A status request while a reporter takes transitions blocks neither of them.
func TestStatusWhileAReporterReports(t *testing.T) {
	monitor := newSinkMonitor(report.Unobserved{})
	observer := &askedMeanwhile{monitor: monitor}
	r := eventcenter.New(eventcenter.Config{Settings: eventcenter.Settings{Endpoints: []string{"http://127.0.0.1:1"},
		Cluster: "c"}, Node: "n", Observer: observer})
	answered := make(chan int, 1)
	observer.ask = func() { answered <- len(monitor.all([]report.Reporter{r})) }
	reported := make(chan struct{})
	go func() {
		state, updates := reporttest.NewWorld().Run("disk", nil, "Readonly")
		r.Update(state, updates)
		r.Report([]finding.Activity{})
		close(reported)
	}()
	for range 2 {
		select {
		case <-reported:
			reported = nil
		case n := <-answered:
			if n != 1 {
				t.Errorf("%d sinks", n)
			}
		case <-time.After(time.Minute):
			t.Fatal("the reporter and the status wait for each other")
		}
	}
}
