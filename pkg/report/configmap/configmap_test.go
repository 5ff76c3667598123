package configmap_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
	"github.com/nodeagent/nodeagent/pkg/report/configmap"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// cluster holds the ConfigMap, as server-side apply of a single writer leaves it.
type cluster struct {
	reporttest.Fault

	mu      sync.Mutex // guards all below
	uid     types.UID
	node    []corev1.NodeCondition // that the Node shows
	applied []corev1.ConfigMap
	asked   int
}

func (c *cluster) GetNode(context.Context) (*corev1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: c.uid}, Status: corev1.NodeStatus{Conditions: c.node}}, nil
}

func (c *cluster) ApplyConfigMap(ctx context.Context, namespace, name string, object []byte) error {
	return c.Do(ctx, func() error {
		var m corev1.ConfigMap
		if err := json.Unmarshal(object, &m); err != nil || m.Namespace != namespace || m.Name != name {
			return apierrors.NewBadRequest(string(object))
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.applied = append(c.applied, m)
		return nil
	})
}

func (c *cluster) questions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// objects returns all objects applied so far.
func (c *cluster) objects() []corev1.ConfigMap {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.applied)
}

func (c *cluster) last(t *testing.T) (corev1.ConfigMap, map[string]configmap.Condition) {
	t.Helper()
	applied := c.objects()
	if len(applied) == 0 {
		return corev1.ConfigMap{}, nil
	}
	m := applied[len(applied)-1]
	conditions := map[string]configmap.Condition{}
	for key, value := range m.Data {
		var condition configmap.Condition
		if err := json.Unmarshal([]byte(value), &condition); err != nil {
			t.Error(err)
		}
		if problems := utilvalidation.IsConfigMapKey(key); len(problems) > 0 {
			t.Errorf("key %q: %v", key, problems)
		}
		conditions[key] = condition
	}
	return m, conditions
}

func newReporter(c *cluster, conditions condition.Config) *condition.Reporter {
	conditions.Conditions = map[string]finding.Condition{
		reporttest.Check: {Type: "SuiteBroken"}, "other": {Type: "example.com/Other"},
	}
	conditions.Spread = -1
	return configmap.New(configmap.Config{Cluster: c, Node: "node-1", Namespace: "nodeagent", Version: "1.2",
		Configuration: "c0ffee", Conditions: conditions})
}

func TestBehaviour(t *testing.T) {
	reporttest.Behaviour(t, func(t *testing.T) reporttest.Subject {
		c := &cluster{uid: "uid-1"}
		return reporttest.Subject{Reporter: newReporter(c, condition.Config{}), Sink: &c.Fault,
			Reports: func() []string {
				var reasons []string
				_, conditions := c.last(t)
				for _, condition := range conditions {
					if condition.Status == corev1.ConditionTrue {
						reasons = append(reasons, condition.Reason)
					}
				}
				return reasons
			}}
	})
}

// The object as consumers see it.
func TestObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := &cluster{uid: "uid-1"}, reporttest.NewWorld()
		r := newReporter(c, condition.Config{})
		r.Update(w.Run("other", nil))
		broken := time.Now()
		r.Update(w.Run(reporttest.Check, nil, "Broken"))
		stop := reporttest.Start(t, r)
		time.Sleep(10 * time.Second)
		stop()
		m, conditions := c.last(t)
		want := metav1.ObjectMeta{Name: "node-node-1", Namespace: "nodeagent", Labels: map[string]string{
			"nodeagent.github.io/node": "node-1", "nodeagent.github.io/producer": "nodeagent"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "uid-1"}}}
		if diff := cmp.Diff(want, m.ObjectMeta); diff != "" {
			t.Error(diff)
		}
		if err := validation.ValidateObjectMeta(&m.ObjectMeta, true, validation.NameIsDNSSubdomain, nil); len(err) > 0 {
			t.Error(err)
		}
		got := conditions["SuiteBroken"]
		if got.ObservedAt.Before(&got.LastTransitionTime) || got.ObservedAt.Sub(broken) > 10*time.Second {
			t.Errorf("observed at %s", got.ObservedAt)
		}
		got.ObservedAt = metav1.Time{}
		wanted := configmap.Condition{Type: "SuiteBroken", Status: "True", Reason: "Broken",
			Message: "thing 0 is Broken", LastTransitionTime: metav1.NewTime(broken.Truncate(time.Second)), Version: "1.2",
			Configuration: "c0ffee"}
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Error(diff)
		}
		if other := conditions["example.com_Other"]; other.Type != "example.com/Other" || other.Status != "False" {
			t.Errorf("%+v", other)
		}
	})
}

// At rest it is applied once per 40 minutes, well before readers call it old; the Node is read once.
func TestAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := &cluster{uid: "uid-1"}, reporttest.NewWorld()
		r := newReporter(c, condition.Config{})
		stop := reporttest.Start(t, r)
		for range 24 * 60 {
			r.Update(w.Run("other", nil))
			r.Update(w.Run(reporttest.Check, nil))
			time.Sleep(time.Minute)
		}
		stop()
		n, asked := len(c.objects()), c.questions()
		if n < 32 || n > 41 || asked > 1 {
			t.Errorf("%d applies and %d questions for the Node in a day", n, asked)
		}
	})
}

// A restart changes no lastTransitionTime, and a removed check takes its key with it.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w, store := &cluster{uid: "uid-1"}, reporttest.NewWorld(), reporttest.NewStore()
		r := newReporter(c, condition.Config{Store: store})
		r.Update(w.Run("other", nil))
		r.Update(w.Run(reporttest.Check, nil, "Broken"))
		stop := reporttest.Start(t, r)
		time.Sleep(time.Minute)
		stop()
		_, before := c.last(t)
		time.Sleep(time.Hour)
		r = newReporter(c, condition.Config{Store: store, Started: w.Now()})
		state, _ := w.Run("other", finding.NotApplicable("nothing of the kind"))
		r.Update(state, nil)
		stop = reporttest.Start(t, r)
		time.Sleep(time.Minute)
		stop()
		_, after := c.last(t)
		if diff := cmp.Diff([]string{"SuiteBroken"}, slices.Sorted(maps.Keys(after))); diff != "" {
			t.Error(diff)
		}
		if a, b := before["SuiteBroken"], after["SuiteBroken"]; !a.LastTransitionTime.Equal(&b.LastTransitionTime) {
			t.Errorf("lastTransitionTime %s, %s before the restart", b.LastTransitionTime, a.LastTransitionTime)
		}
	})
}

// After a period of refusals the apiserver gets the newest state.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := &cluster{uid: "uid-1"}, reporttest.NewWorld()
		c.Fail(apierrors.NewForbidden(corev1.Resource("configmaps"), "node-node-1", errors.New("no")))
		r := newReporter(c, condition.Config{})
		stop := reporttest.Start(t, r)
		r.Update(w.Run(reporttest.Check, nil, "Broken"))
		time.Sleep(time.Hour)
		if n := len(c.Attempts()); n > 40 {
			t.Errorf("%d attempts in an hour", n)
		}
		r.Update(w.Run(reporttest.Check, nil))
		c.Mend()
		time.Sleep(time.Hour)
		stop()
		if _, conditions := c.last(t); conditions["SuiteBroken"].Status != "False" {
			t.Errorf("%+v", conditions)
		}
	})
}

// A name that does not fit into a label is only in the owner reference and the object's name.
func TestLongName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := &cluster{uid: "uid-1"}, reporttest.NewWorld()
		r := configmap.New(configmap.Config{Cluster: c, Node: strings.Repeat("n", 64), Namespace: "nodeagent",
			Conditions: condition.Config{Spread: -1, Conditions: map[string]finding.Condition{"a": {Type: "A"}}}})
		r.Update(w.Run("a", nil))
		stop := reporttest.Start(t, r)
		time.Sleep(time.Minute)
		stop()
		if m, _ := c.last(t); len(m.Labels) != 1 || len(m.Data) != 1 {
			t.Errorf("%v", m)
		}
	})
}
