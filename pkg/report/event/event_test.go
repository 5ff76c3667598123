package event

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

func testConfig(sink Sink) Config {
	return Config{Node: "node-1", Sink: sink, Resend: -1, Rand: func() float64 {
		return 0.5
	}, Log: slog.New(slog.DiscardHandler)}
}

func TestBehaviour(t *testing.T) {
	reporttest.Behaviour(t, func(t *testing.T) reporttest.Subject {
		events := &fakeEvents{}
		return reporttest.Subject{
			Reporter: New(testConfig(events)), Sink: &events.Fault, Edge: true,
			Reports: func() []string {
				var reasons []string
				for _, e := range events.Created() {
					reasons = append(reasons, e.Reason)
				}
				return reasons
			},
		}
	})
}

func TestEventIsWhatTheApiserverTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, w := &fakeEvents{}, reporttest.NewWorld()
		r := New(testConfig(events))
		reporttest.Start(t, r)
		state, updates := w.Run("disk", nil, "Ext4Error")
		r.Update(state, updates)
		now := metav1.NewTime(w.Now().Wall)
		time.Sleep(time.Second)
		var id string
		for _, u := range updates {
			if u.Kind == finding.Raised {
				id = u.ID
			}
		}
		want := []*corev1.Event{{
			ObjectMeta: metav1.ObjectMeta{Name: nameOf("node-1", id), Namespace: "default",
				Annotations: map[string]string{
					"nodeagent/id": id, "nodeagent/check": "disk", "nodeagent/subject": "thing/0"}},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "node-1"},
			Reason:         "Ext4Error", Message: "thing 0 is Ext4Error", Type: "Warning", Count: 1,
			Source: corev1.EventSource{Component: "nodeagent", Host: "node-1"}, FirstTimestamp: now, LastTimestamp: now,
			ReportingController: "nodeagent", ReportingInstance: "node-1",
		}}
		if diff := cmp.Diff(want, events.Created()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestNotes(t *testing.T) {
	f := finding.Finding{Check: "disk", Subject: finding.Subject{Kind: "disk", Name: "sda"}, Severity: finding.Fatal,
		Reason: "Ext4Error", Message: "bad\nblock"}
	info, oneShot := f, f
	oneShot.OneShot = true
	info.Severity = finding.Info
	long := f
	long.Reason, long.Message = strings.Repeat("R", 300), strings.Repeat("é", 3000)
	for _, test := range []struct {
		name   string
		update finding.Update
		want   string
	}{
		{"raised", finding.Update{Kind: finding.Raised, Finding: f}, "Warning Ext4Error bad block"},
		{"raised info", finding.Update{Kind: finding.Raised, Finding: info}, "Normal Ext4Error bad block"},
		{"changed", finding.Update{Kind: finding.Changed, Finding: f}, "Warning Ext4Error bad block"},
		{"cleared", finding.Update{Kind: finding.Cleared, Finding: f},
			"Normal Ext4ErrorCleared resolved: bad block"},
		{"a one-shot", finding.Update{Kind: finding.Raised, Finding: oneShot}, "Warning Ext4Error bad block"},
		{"a one-shot is never cleared", finding.Update{Kind: finding.Cleared, Finding: oneShot}, "none"},
		{"status changed", finding.Update{Kind: finding.StatusChanged, From: finding.StatusHealthy,
			To: finding.StatusFaulty}, "none"},
		{"long", finding.Update{Kind: finding.Cleared, Finding: long}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			n, ok := noteOf(test.update)
			got := strings.Join([]string{n.Type, n.Reason, n.Message}, " ")
			if !ok {
				got = "none"
			}
			if test.name == "long" {
				test.want = got
			}
			if diff := cmp.Diff(test.want, got); diff != "" || len(n.Reason) > maxReason ||
				len(n.Message) > maxMessage {
				t.Errorf("reason of %d bytes, message of %d: %s", len(n.Reason), len(n.Message), diff)
			}
		})
	}
}

func TestNames(t *testing.T) {
	again := nameOf("node-1", "a")
	if nameOf("node-1", "a") != again || nameOf("node-1", "a") == nameOf("node-1", "b") ||
		nameOf("node-1", "a") == nameOf("node-2", "a") {
		t.Error("names are not those of their node and ID alone")
	}
	long := nameOf(strings.Repeat("a", 235)+"-."+strings.Repeat("b", 16), "a")
	if len(long) > maxName || strings.Contains(long, "-.") || strings.Contains(long, "..") {
		t.Errorf("%d bytes: %s", len(long), long)
	}
}

// A storm of one reason is reported ten times and then aggregated, and hides no other reason.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, w := &fakeEvents{}, reporttest.NewWorld()
		r := New(testConfig(events))
		reporttest.Start(t, r)
		var storm []string
		for range 47 {
			storm = append(storm, "Storm")
		}
		r.Update(w.Run("stormy", nil, storm...))
		r.Update(w.Run("calm", nil, "Calm"))
		time.Sleep(45 * time.Second)
		count := map[string]int{}
		for _, e := range events.Created() {
			count[e.Reason]++
		}
		if diff := cmp.Diff(map[string]int{"Storm": 10, "Calm": 1}, count); diff != "" {
			t.Errorf("in the first seconds:\n%s", diff)
		}
		time.Sleep(30 * time.Second)
		last := events.Lines()[len(events.Lines())-1]
		if diff := cmp.Diff("Warning Storm 37 thing 9 is Storm (and 36 more)", last); diff != "" {
			t.Error(diff)
		}
		if n := len(events.Created()); n != 12 {
			t.Errorf("%d events", n)
		}
	})
}

// A day of outage with a storm in it: the backlog is bounded, the storm's count is complete, and no reason is hidden.
func TestStormDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, w := &fakeEvents{}, reporttest.NewWorld()
		r := New(testConfig(events))
		reporttest.Start(t, r)
		events.Fail(errors.New("away"))
		r.Update(w.Run("quiet", nil, "Quiet"))
		const raised = 24 * 60
		for i := range raised {
			r.Update(w.State(), []finding.Update{{ID: fmt.Sprint("storm-", i), Kind: finding.Raised, At: w.Now(),
				Finding: reporttest.Fatal("stormy", i, "Storm")}})
			time.Sleep(time.Minute)
		}
		if n := r.outbox.Len(); n > 12 {
			t.Errorf("%d wait", n)
		}
		events.Mend()
		time.Sleep(2 * time.Hour)
		reported := 0
		for _, e := range events.Created() {
			if e.Reason == "Storm" {
				reported += int(e.Count)
			}
		}
		if reported != raised {
			t.Errorf("%d reported of %d", reported, raised)
		}
		if !slices.Contains(events.Lines(), "Warning Quiet 1 thing 0 is Quiet") {
			t.Errorf("the storm hid another:\n%s", strings.Join(events.Lines(), "\n"))
		}
	})
}

func TestOverflowIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, w := &fakeEvents{}, reporttest.NewWorld()
		c := testConfig(events)
		c.Limit = 5
		r := New(c)
		reporttest.Start(t, r)
		events.Fail(errors.New("away"))
		for i := range 12 {
			r.Update(w.Run(fmt.Sprint("check-", i), nil, fmt.Sprint("Reason", i)))
		}
		time.Sleep(time.Hour)
		events.Mend()
		time.Sleep(time.Hour)
		want := []string{
			"Warning Reason7 1 thing 0 is Reason7", "Warning Reason8 1 thing 0 is Reason8",
			"Warning Reason9 1 thing 0 is Reason9",
			"Warning Reason10 1 thing 0 is Reason10", "Warning Reason11 1 thing 0 is Reason11",
			"Warning EventsDropped 1 7 events could not be delivered and were dropped: 7 fatal",
		}
		if diff := cmp.Diff(want, events.Lines()); diff != "" {
			t.Error(diff)
		}
	})
}

// The answer to a create is lost: the event exists once, and the next ones follow.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, w := &fakeEvents{}, reporttest.NewWorld()
		r := New(testConfig(events))
		reporttest.Start(t, r)
		events.LoseAnswers(errors.New("EOF"))
		r.Update(w.Run("disk", nil, "First"))
		time.Sleep(time.Minute)
		events.Mend()
		r.Update(w.Run("other", nil, "Second"))
		time.Sleep(10 * time.Minute)
		want := []string{"Warning First 1 thing 0 is First", "Warning Second 1 thing 0 is Second"}
		if diff := cmp.Diff(want, events.Lines()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRejectedEventHoldsUpNothing(t *testing.T) {
	for _, test := range []struct {
		code     int
		reason   metav1.StatusReason
		hopeless bool
	}{
		{http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, true},
		{http.StatusBadRequest, metav1.StatusReasonBadRequest, true},
		{http.StatusUnauthorized, metav1.StatusReasonUnauthorized, false},
		{http.StatusForbidden, metav1.StatusReasonForbidden, false},
		{http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, false},
		{http.StatusInternalServerError, metav1.StatusReasonInternalError, false},
	} {
		t.Run(fmt.Sprint(test.code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events, w := &fakeEvents{}, reporttest.NewWorld()
				r := New(testConfig(events))
				reporttest.Start(t, r)
				events.Fail(reporttest.Status(test.code, test.reason, 17))
				r.Update(w.Run("disk", nil, "First"))
				time.Sleep(time.Hour)
				events.Mend()
				time.Sleep(10 * time.Minute)
				if got := len(events.Created()) == 0; got != test.hopeless {
					t.Errorf("given up: %t, want %t", got, test.hopeless)
				}
				attempts := events.Attempts()
				if test.hopeless && len(attempts) != 1 {
					t.Errorf("%d attempts", len(attempts))
				}
				// Retry-After of 17 s plus half a second, then ever longer.
				if wait := attempts[min(1, len(attempts)-1)].Sub(attempts[0]); !test.hopeless &&
					(wait != 17500*time.Millisecond || len(attempts) > 40) {
					t.Errorf("%d attempts, the second after %s", len(attempts), wait)
				}
			})
		})
	}
}

func TestRestartGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, w := &fakeEvents{}, reporttest.NewWorld()
		c := testConfig(events)
		c.Store = reporttest.NewStore()
		r := New(c)
		stop := reporttest.Start(t, r)
		events.Fail(errors.New("away"))
		state, updates := w.Run("disk", nil, "Ext4Error")
		r.Update(state, updates)
		time.Sleep(time.Minute)
		stop()
		events.Mend()
		r = New(c)
		reporttest.Start(t, r)
		r.Update(state, updates) // reported twice
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{"Warning Ext4Error 1 thing 0 is Ext4Error"}, events.Lines()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestResend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, w := &fakeEvents{}, reporttest.NewWorld()
		c := testConfig(events)
		c.Resend = 6 * time.Hour
		r := New(c)
		reporttest.Start(t, r)
		r.Update(w.Run("disk", nil, "Ext4Error"))
		since := time.Now().UTC().Format("2006-01-02T15:04:05Z")
		time.Sleep(13 * time.Hour)
		r.Update(w.Run("disk", nil))
		time.Sleep(13 * time.Hour)
		again := "Warning Ext4Error 1 thing 0 is Ext4Error (since " + since + ")"
		want := []string{"Warning Ext4Error 1 thing 0 is Ext4Error", again, again,
			"Normal Ext4ErrorCleared 1 resolved: thing 0 is Ext4Error"}
		if diff := cmp.Diff(want, events.Lines()); diff != "" {
			t.Error(diff)
		}
	})
}

// The client allows one request a second; the conditions must get through while events have a backlog.
func TestBacklogLeavesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, w := &fakeEvents{}, reporttest.NewWorld()
		r := New(testConfig(events))
		reporttest.Start(t, r)
		for i := range 100 {
			r.Update(w.Run(fmt.Sprint("check-", i), nil, fmt.Sprint("Reason", i)))
		}
		time.Sleep(time.Minute)
		if n := len(events.Attempts()); n < 30 || n > 34 {
			t.Errorf("%d requests in a minute", n)
		}
	})
}

// Of the activities of leftovers, events report only the end of a pod's release: none before a release, and a repeated
// failure once.
func TestActivities(t *testing.T) {
	pod := finding.Subject{Kind: "pod", Name: "default/web", UID: "u1"}
	mount := finding.Subject{Kind: "mount", Name: "/var/lib/kubelet/pods/u1/volumes/v", UID: "u1"}
	synctest.Test(t, func(t *testing.T) {
		events, w := &fakeEvents{}, reporttest.NewWorld()
		r := New(testConfig(events))
		reporttest.Start(t, r)
		report := func(kind finding.ActivityKind, subject finding.Subject, severity finding.Severity, repeated bool) {
			a := finding.NewActivity(kind, "leftovers", subject, w.Now())
			a.Pod, a.Severity, a.Repeated, a.Message = pod, severity, repeated, string(kind)+" of "+subject.String()
			r.Report([]finding.Activity{a})
			time.Sleep(time.Minute)
		}
		for _, kind := range []finding.ActivityKind{finding.LeftoverFound, finding.LeftoverPresent,
			finding.LeftoverReleased, finding.LeftoverGone, finding.ActionPlanned, finding.ActionRefused,
			finding.ActionStarted, finding.ActionDone, finding.ActionFailed} {
			report(kind, mount, finding.Warning, false)
		}
		report(finding.ActionStarted, pod, finding.Info, false)
		report(finding.ActionFailed, pod, finding.Warning, false)
		report(finding.ActionFailed, pod, finding.Warning, true)
		report(finding.ActionVerified, pod, finding.Info, false)
		pod = finding.Subject{} // repairs
		report(finding.ActionFailed, mount, finding.Warning, false)
		report(finding.ActionVerified, finding.Subject{Kind: "daemon", Name: "kubelet"}, finding.Info, false)
		want := []string{
			"Warning LeftoverReleaseFailed 1 action-failed of pod/default/web",
			"Normal LeftoversReleased 1 action-verified of pod/default/web",
			"Normal Repaired 1 action-verified of daemon/kubelet",
		}
		if diff := cmp.Diff(want, events.Lines()); diff != "" {
			t.Error(diff)
		}
	})
}
