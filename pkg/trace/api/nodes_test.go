package api_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

// The scores count the misses of the system in the last day, on the nodes that exist. They need a right to all pods.
func TestNodes(t *testing.T) {
	f := newFixture(t, 8)
	for _, name := range []string{"node-a", "node-b"} {
		f.api.Follower.Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(sunday)}}}}, false, sunday)
	}
	at := sunday.Add(-time.Hour)
	for i := range 40 {
		f.save(act(record.Creation, fmt.Sprint("a", i), verdict.Delivered, at, ""), act(record.Creation, fmt.Sprint("g", i), verdict.Missed, at, "NodeLost"),
			act(record.Creation, fmt.Sprint("b", i), verdict.Delivered, at, ""), act(record.Deletion, fmt.Sprint("b", i), verdict.Missed, at, "InitSlow"),
			act(record.Creation, fmt.Sprint("bo", i), verdict.Missed, sunday.AddDate(0, 0, -2), "NodeLost"))
	}
	for i := range 10 {
		f.save(act(record.Creation, fmt.Sprint("am", i), verdict.Missed, at, "SandboxFailed"))
	}
	nodes, err := f.api.Nodes(t.Context(), nil)
	if err != nil || len(nodes.Scores) != 2 || nodes.Total != 2 {
		t.Fatalf("%v %+v", err, nodes)
	}
	if got := fmt.Sprint(nodes.Scores[0].Node, nodes.Scores[0].Score, nodes.Scores[0].Why, nodes.Scores[1].Node, nodes.Scores[1].Score, nodes.Scores[1].Samples); got !=
		"node-a80 [20 points: 80.0 % of 50 were in time, 100.0 % on the other nodes of its pool]node-b100 40" {
		t.Error(got)
	}
	f.api.Access, f.api.Authenticate = everyone{}, anybody
	for _, path := range []string{"/v1/nodes", "/v1/nodes?namespace=team", "/v1/avoid?owner=u"} {
		answer := httptest.NewRecorder()
		f.api.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if answer.Code != http.StatusForbidden || strings.Contains(answer.Body.String(), "node-") {
			t.Errorf("%s: %d %s", path, answer.Code, answer.Body)
		}
	}
}
