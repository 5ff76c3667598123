package detect

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// fakeHost has a clock that follows the bubble's.
func fakeHost() *host.Host {
	start := time.Now()
	return &host.Host{Clock: func() finding.Timestamp {
		return finding.Timestamp{Wall: time.Now(), Boot: "boot", SinceBoot: time.Since(start)}
	}}
}

// engineFor runs an engine with the checks until the test ends and returns it and its observations.
func engineFor(t *testing.T, sources []Source, checks ...Check) (*Engine, func() []finding.Observation) {
	t.Helper()
	var mu sync.Mutex // guards observations
	var observations []finding.Observation
	e := NewEngine(fakeHost(), slog.New(slog.DiscardHandler), checks, sources, Observer{}, func(o finding.Observation) {
		mu.Lock()
		defer mu.Unlock()
		observations = append(observations, o)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return e, func() []finding.Observation {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(observations)
	}
}

func counting(n *atomic.Int32) func(context.Context, *host.Host) ([]finding.Finding, error) {
	return func(context.Context, *host.Host) ([]finding.Finding, error) { n.Add(1); return nil, nil }
}

func TestEngineRunsAtItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		engineFor(t, nil, Check{ID: "a", Every: 10 * time.Second, Run: counting(&n)})
		time.Sleep(101 * time.Second)
		synctest.Wait()
		if n := n.Load(); n < 10 || n > 11 {
			t.Errorf("%d runs in 101 s at 10 s", n)
		}
	})
}

// Checks that run seldom all run at start. After that they do not run in the same minute, and none of them runs less
// often than its interval.
func TestEngineSpreadsWhatRunsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every, minutes = 5 * time.Minute, 30
		begun := time.Now()
		var mu sync.Mutex // guards runs and last
		var runs [minutes]int
		last := map[int]time.Time{}
		var checks []Check
		for n := range 20 {
			checks = append(checks, Check{ID: "a", Every: every, Run: func(context.Context, *host.Host) ([]finding.Finding,
				error) {
				mu.Lock()
				defer mu.Unlock()
				now := time.Now()
				if before, ok := last[n]; ok && now.Sub(before) > every+every/20 {
					t.Errorf("a run %s after the one before", now.Sub(before))
				}
				last[n] = now
				runs[int((now.Sub(begun)+time.Minute/2)/time.Minute)]++ // the runs of minute 5 are around it
				return nil, nil
			}})
		}
		engineFor(t, nil, checks...)
		time.Sleep(minutes*time.Minute - time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if runs[0] != len(checks) {
			t.Errorf("%d runs at the start", runs[0])
		}
		if most := slices.Max(runs[1:]); most > len(checks)*3/4 {
			t.Errorf("runs of %d checks by minute: %v", len(checks), runs)
		}
	})
}

// Runs of many checks start at few moments, and each check still keeps its interval.
func TestEngineWakesSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const minutes = 30
		begun := time.Now()
		var mu sync.Mutex // guards moments
		moments := map[time.Duration]bool{}
		var runs [4]atomic.Int32
		var checks []Check
		intervals := []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute}
		for n := range 40 {
			run := func(context.Context, *host.Host) ([]finding.Finding, error) {
				mu.Lock()
				defer mu.Unlock()
				moments[time.Since(begun)] = true
				runs[n%4].Add(1)
				return nil, nil
			}
			checks = append(checks, Check{ID: "a", Every: intervals[n%4], Run: run})
		}
		engineFor(t, nil, checks...)
		time.Sleep(minutes*time.Minute - time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if most := minutes * 6; len(moments) > most {
			t.Errorf("runs began at %d moments, want %d at most", len(moments), most)
		}
		for i, every := range intervals {
			want := 10 * int(minutes*time.Minute/every)
			if got := int(runs[i].Load()); got < want*97/100 || got > want*103/100 {
				t.Errorf("%d runs of ten checks each %s, want %d", got, every, want)
			}
		}
	})
}

// TestWantsWake: a check with Named is woken by changes that name it, or that are not specified.
func TestWantsWake(t *testing.T) {
	named := Check{ID: "a", Wakes: []Wake{{Source: WakeKernelLog, Named: true}}}
	for _, test := range []struct {
		source WakeSource
		change Change
		want   bool
	}{
		{WakeKernelLog, Change{}, true},
		{WakeMounts, Change{}, false},
		{WakeKernelLog, Change{Text: "a"}, false},
		{WakeKernelLog, Change{Text: "x", Checks: []string{"b", "a"}}, true},
		{WakeKernelLog, Change{Checks: []string{"b"}}, false},
	} {
		if got := named.WantsWake(test.source, test.change); got != test.want {
			t.Errorf("%s, %+v: %t", test.source, test.change, got)
		}
	}
}

func TestEngineWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		e, _ := engineFor(t, nil, Check{ID: "a", Every: time.Hour, Run: counting(&n),
			Wakes: []Wake{{Source: WakeKernelLog, Match: "EXT4-fs"}}})
		synctest.Wait()
		e.Wake(WakeKernelLog, Change{Text: "usb 1-1: new device"})
		e.Wake(WakeMounts, Change{})
		synctest.Wait()
		if n := n.Load(); n != 1 {
			t.Errorf("woken by a change that it does not want: %d runs", n)
		}
		e.Wake(WakeKernelLog, Change{Text: "EXT4-fs error (device sda1)"})
		synctest.Wait()
		if n := n.Load(); n != 2 {
			t.Errorf("%d runs, want one at once after the wake", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := n.Load(); n != 3 {
			t.Errorf("%d runs, want one more after settling", n)
		}
		for range 100 { // a storm: 100 messages a second for 10 s
			e.Wake(WakeKernelLog, Change{Text: "EXT4-fs error"})
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if n := n.Load(); n < 40 || n > 60 {
			t.Errorf("%d runs in a storm of 10 s, want about five a second", n)
		}
	})
}

// An expensive check is woken at once, and rarely in a storm; the last wake is not lost.
func TestEngineWakeGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		e, _ := engineFor(t, nil, Check{ID: "a", Every: time.Hour, Run: counting(&n), WakeGap: 10 * time.Second,
			Wakes: []Wake{{Source: WakeMounts}}})
		synctest.Wait()
		for i := range 300 { // ten changes a second
			e.Wake(WakeMounts, Change{})
			synctest.Wait()
			if i == 0 && n.Load() != 2 {
				t.Errorf("%d runs, want one at once after the wake", n.Load())
			}
			time.Sleep(100 * time.Millisecond)
		}
		before := n.Load()
		if before > 2+30/10*2 {
			t.Errorf("%d runs in a storm of 30 s, want two in ten seconds at most", before)
		}
		time.Sleep(12 * time.Second)
		synctest.Wait()
		if n.Load() == before {
			t.Error("the last wake had no effect")
		}
	})
}

func TestEngineAbandonsAHungRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var starts, healthy atomic.Int32
		hang := make(chan struct{})
		defer close(hang)
		_, observations := engineFor(t, nil,
			Check{ID: "hung", Every: 10 * time.Second, Deadline: 5 * time.Second,
				Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
					starts.Add(1)
					<-hang // ignores its context, like a system call in the D state
					return nil, nil
				}},
			Check{ID: "healthy", Every: 10 * time.Second, Run: counting(&healthy)})
		time.Sleep(60 * time.Second)
		synctest.Wait()
		if starts.Load() != 1 {
			t.Errorf("the hung run was started %d times", starts.Load())
		}
		if healthy.Load() < 5 {
			t.Errorf("the other check ran only %d times", healthy.Load())
		}
		blind := 0
		for _, l := range observations() {
			if l.Check == "hung" && l.Err != nil && strings.Contains(l.Err.Error(), "has not returned") {
				blind++
			}
		}
		if blind < 3 {
			t.Errorf("%d observations with an error", blind)
		}
	})
}

func TestEngineSurvivesPanicAndNamesIt(t *testing.T) {
	observations := RunOnce(t.Context(), fakeHost(), []Check{
		{ID: "bad", Run: func(context.Context, *host.Host) ([]finding.Finding, error) { panic("index out of range") }},
		{ID: "good", Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
			return []finding.Finding{{Reason: "R"}}, nil
		}},
	}, nil)
	if observations[0].Err == nil || !strings.Contains(observations[0].Err.Error(), "index out of range") {
		t.Errorf("got %v", observations[0].Err)
	}
	if diff := cmp.Diff([]finding.Finding{{Check: "good", Reason: "R"}}, observations[1].Findings); diff != "" {
		t.Error(diff)
	}
}

// A source that ends just when it would count as working is lost.
func TestEngineLosesASourceThatEndsWhenItIsBelieved(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			ends := func(context.Context, func(Change)) error {
				time.Sleep(sourceProof)
				return errors.New("gone")
			}
			_, observations := engineFor(t, []Source{{Name: WakeKernelLog, Run: ends}})
			time.Sleep(sourceProof + time.Second)
			synctest.Wait()
			if got := observations(); len(got) == 0 || len(got[len(got)-1].Findings) != 1 {
				t.Errorf("last observation: %+v, want the loss of the source", got)
			}
		})
	}
}

func TestEngineReportsALostSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("read /dev/kmsg: no such device")
		n := 0
		watch := func(ctx context.Context, _ func(Change)) error {
			if n++; n > 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return lost
		}
		_, observations := engineFor(t, []Source{{Name: WakeKernelLog, Run: watch}})
		time.Sleep(time.Minute)
		synctest.Wait()
		var got []int
		for _, l := range observations() {
			got = append(got, len(l.Findings))
		}
		if diff := cmp.Diff([]int{1, 0}, got); diff != "" {
			t.Errorf("findings by observation: lost, working again (-want +got):\n%s", diff)
		}
	})
}

// RunNow returns the result of a run that started after the call, even while an older run hangs.
func TestRunNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		check := Check{ID: "x", Every: time.Hour, Deadline: time.Second,
			Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
				runs++
				first := runs == 1
				if first { // it hangs, and then returns the old state
					time.Sleep(2 * time.Second)
				}
				return findings(first), nil
			}}
		reported := 0
		e := NewEngine(fakeHost(), slog.New(slog.DiscardHandler), []Check{check}, nil, Observer{},
			func(finding.Observation) { reported++ })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()
		time.Sleep(time.Second)
		if o, err := e.RunNow(ctx, "x"); err != nil || len(o.Findings) > 0 || o.Err != nil || runs != 2 || reported != 3 {
			t.Errorf("%+v, %v after %d runs, %d reports", o, err, runs, reported)
		}
		if _, err := e.RunNow(ctx, "y"); err == nil {
			t.Error("there is no such check")
		}
		cancel()
		<-ended
		if _, err := e.RunNow(ctx, "x"); err == nil {
			t.Error("an answer after the end")
		}
	})
}

func findings(faulty bool) []finding.Finding {
	if !faulty {
		return nil
	}
	return []finding.Finding{{Subject: finding.Subject{Kind: "k", Name: "n"}, Reason: "R"}}
}
