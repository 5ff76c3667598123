package report_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

func TestBackoff(t *testing.T) {
	plain := errors.New("connection refused")
	throttled := func(seconds int32) error {
		return fmt.Errorf("wrapped: %w", reporttest.Status(http.StatusTooManyRequests,
			metav1.StatusReasonTooManyRequests, seconds))
	}
	b := report.Backoff{Rand: func() float64 { return 1 }}
	var got []time.Duration
	for _, err := range []error{plain, plain, throttled(10), plain, throttled(1 << 30)} {
		got = append(got, b.Failed(err))
	}
	b.Succeeded()
	got = append(got, b.Failed(plain))
	for range 100 {
		got = append(got[:6], b.Failed(plain))
	}
	want := []time.Duration{time.Second, 2 * time.Second, 14 * time.Second, 8 * time.Second, time.Hour + 16*time.Second,
		time.Second, 5 * time.Minute}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestBackoffIsFullJitter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.Float64Range(0, 0.999).Draw(t, "part")
		b := report.Backoff{Rand: func() float64 { return part }}
		for i := range rapid.IntRange(1, 200).Draw(t, "failures") {
			span := min(time.Second<<min(i, 20), 5*time.Minute)
			if got, want := b.Failed(errors.New("away")), time.Duration(part*float64(span)); got != want {
				t.Fatalf("failure %d: wait %s, want %s", i, got, want)
			}
		}
	})
}

// Ten thousand agents lose the apiserver at the same moment. They return spread over the minutes after it is back.
func TestFleetComesBackSpreadOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const agents = 10000
		perSecond := map[int]int{}
		for range agents {
			var b report.Backoff
			var at time.Duration
			for at < 20*time.Minute {
				at += b.Failed(errors.New("away"))
			}
			perSecond[int(at/time.Second)]++
		}
		for second, n := range perSecond {
			if n > 200 {
				t.Errorf("%d agents come back in second %d", n, second)
			}
		}
	})
}

func TestBudgets(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := report.NewBudgets(3, time.Minute)
	for i := range 3 {
		if !b.Take("storm", now) {
			t.Errorf("token %d is missing", i)
		}
	}
	if b.Take("storm", now) {
		t.Error("a fourth token")
	}
	if !b.Take("other", now) {
		t.Error("a storm took from another key")
	}
	next := b.Next("storm", now)
	if wait := next.Sub(now); wait < time.Minute || wait > time.Minute+time.Millisecond {
		t.Errorf("next token after %s", wait)
	}
	if !b.Take("storm", next) || b.Take("storm", next) {
		t.Error("not one token after a minute")
	}
	if !b.Next("unheard of", now).Equal(now) {
		t.Error("a key without history has to wait")
	}
	for i := range 5000 {
		b.Take(fmt.Sprint(i), now.Add(time.Duration(i)*time.Hour))
	}
}
