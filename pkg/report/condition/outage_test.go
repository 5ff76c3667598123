package condition

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

func TestOutages(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		wait time.Duration // before the second attempt, if the random source returns one half
	}{
		{"401", reporttest.Status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, 0), 500 * time.Millisecond},
		{"403", reporttest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, 0), 500 * time.Millisecond},
		{"429 with Retry-After", reporttest.Status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, 17),
			17500 * time.Millisecond},
		{"500", reporttest.Status(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0),
			500 * time.Millisecond},
		{"no connection", errors.New("connect: connection refused"), 500 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, w := reporttest.NewNode(), reporttest.NewWorld()
				r := New(testConfig(node))
				reporttest.Start(t, r)
				node.Fail(test.err)
				r.Update(w.Run("disk", nil, "Ext4Error"))
				moved := time.Now()
				time.Sleep(3 * time.Hour)
				attempts := node.Attempts()
				if got := attempts[1].Sub(attempts[0]); got != test.wait {
					t.Errorf("second attempt after %s, want %s", got, test.wait)
				}
				if got := attempts[len(attempts)-1].Sub(attempts[len(attempts)-2]); got < 2*time.Minute ||
					got > 5*time.Minute {
					t.Errorf("after hours it is tried each %s", got)
				}
				node.Mend()
				time.Sleep(5 * time.Minute)
				want := "True | Ext4Error | thing 0 is Ext4Error | " + at(moved)
				if diff := cmp.Diff(want, shownLine(node.Shown("ReadonlyFilesystem"))); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// A patch whose answer is lost may have been applied. The state believed by then must be written, even if it equals the
// node's earlier one.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(), reporttest.NewWorld()
		r := New(testConfig(node))
		reporttest.Start(t, r)
		r.Update(w.Run("disk", nil))
		r.Update(w.Run(reporttest.Check, finding.NotApplicable("-")))
		time.Sleep(10 * time.Minute)
		node.LoseAnswers(errors.New("EOF"))
		r.Update(w.Run("disk", nil, "Ext4Error"))
		r.Update(w.Run(reporttest.Check, nil, "Other"))
		time.Sleep(200 * time.Millisecond)
		if got := node.Shown("ReadonlyFilesystem").Status; got != corev1.ConditionTrue {
			t.Fatalf("the patch was not applied: %s", got)
		}
		r.Update(w.Run("disk", nil))
		r.Update(w.Run(reporttest.Check, finding.NotApplicable("-")))
		node.Mend()
		time.Sleep(10 * time.Second)
		if got := node.Shown("ReadonlyFilesystem").Status; got != corev1.ConditionFalse {
			t.Errorf("shown %s, want False", got)
		}
		if got := node.Shown("Suite"); got != nil {
			t.Errorf("shown %s, want none", shownLine(got))
		}
	})
}

// A hung disk is a fault to report, so it must not keep the reporter from reporting it.
func TestHungStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w, store := reporttest.NewNode(), reporttest.NewWorld(), reporttest.NewStore()
		hung := &hungStore{Store: store, release: make(chan struct{})}
		c := testConfig(node)
		c.Store = hung
		r := New(c)
		stop := reporttest.Start(t, r)
		for _, reasons := range [][]string{{"Ext4Error"}, nil, {"Again"}} {
			r.Update(w.Run("disk", nil, reasons...))
			time.Sleep(2 * time.Second)
		}
		if got := node.Shown("ReadonlyFilesystem"); got == nil || got.Reason != "Again" {
			t.Errorf("shown %s", shownLine(got))
		}
		close(hung.release)
		stop()
	})
}

type hungStore struct {
	*reporttest.Store
	release chan struct{}
}

func (s *hungStore) Put(key string, value []byte) error {
	<-s.release
	return s.Store.Put(key, value)
}
