package inspect

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// refuse makes kubelet refuse its /pods and metrics to the agent. Its podresources lack pods that have ended.
func (n *fullNode) refuse() {
	n.host.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return nil, inspecttest.ErrRefused }
	n.host.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) { return nil, inspecttest.ErrRefused }
	n.host.Kubelet.Healthz = hosttest.Answer("ok", nil)
	n.host.Kubelet.PodNames = func(context.Context) (map[string]int, error) {
		names, record := make(map[string]int), ""
		for _, p := range n.kubelet {
			record += string(p.UID) + " "
			if p.Status.Phase == corev1.PodRunning {
				names[p.Namespace+"/"+p.Name]++
			}
		}
		n.write(n.host.Paths.KubeletRoot+"/"+witness.AllocatedPods, record)
		return names, nil
	}
}

// A node with the agent from the rpm: an idle node costs no list, and leftovers are proven twenty minutes after the
// pod's last container has ended. A running pod is never proven, however long.
func TestLeftoverByName(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarts %v", restarts), func(t *testing.T) {
			n := newFullNode(t)
			n.refuse()
			n.restarts = restarts
			n.during(time.Hour, n.allLive)
			if n.lists != 0 {
				t.Errorf("%d lists although nothing is suspicious", n.lists)
			}
			n.delete(inspecttest.UIDOf(3))
			n.during(2*time.Hour, func(report object.Report) {
				if verdict, why := n.verdict(report, inspecttest.UIDOf(3)); verdict != object.Candidate ||
					!strings.Contains(why, "it is running") {
					t.Fatalf("%s: %s", verdict, why)
				}
			})
			n.running[inspecttest.UIDOf(3)] = false
			n.sandboxes[inspecttest.UIDOf(3)].State = cri.PodSandboxState_SANDBOX_NOTREADY
			if took := n.until(inspecttest.UIDOf(3), object.Leftover); took != 20*time.Minute {
				t.Errorf("after %s", took)
			}
		})
	}
}

// until makes passes until the objects of a pod have a verdict, and returns how long that took.
func (n *fullNode) until(uid string, want object.Verdict) time.Duration {
	n.t.Helper()
	for began := n.now.SinceBoot; n.now.SinceBoot < began+3*time.Hour; n.after(time.Minute) {
		verdict, why := n.verdict(n.pass(), uid)
		if verdict == want {
			return n.now.SinceBoot - began
		}
		if verdict != object.Candidate {
			n.t.Fatalf("%s: %s", verdict, why)
		}
	}
	n.t.Fatalf("pod %s is never %s", uid, want)
	return 0
}

// A pod re-created under its old name (StatefulSet) waits for the stuck one: the old one's leftovers are proven, and
// the new one lives.
func TestReplacedPodByName(t *testing.T) {
	n := newFullNode(t)
	n.refuse()
	n.delete(inspecttest.UIDOf(3))
	n.running[inspecttest.UIDOf(3)] = false
	n.add(inspecttest.UIDOf(20), "web-3")
	n.during(15*time.Minute, func(report object.Report) {
		n.noLeftover(report)
		if verdict, why := n.verdict(report, inspecttest.UIDOf(20)); verdict != object.Live {
			t.Fatalf("%s: %s", verdict, why)
		}
	})
	n.until(inspecttest.UIDOf(3), object.Leftover)
	n.during(time.Hour, func(report object.Report) {
		if verdict, why := n.verdict(report, inspecttest.UIDOf(20)); verdict != object.Live {
			t.Fatalf("%s: %s", verdict, why)
		}
	})
}

// Pods that have ended stay in the apiserver, and podresources lack them: they live, and cost an occasional list.
func TestEndedPodsByName(t *testing.T) {
	n := newFullNode(t)
	n.refuse()
	for _, book := range []map[string]corev1.Pod{n.kubelet, n.list} {
		p := book[inspecttest.UIDOf(3)]
		p.Status.Phase = corev1.PodSucceeded
		book[inspecttest.UIDOf(3)] = p
	}
	n.running[inspecttest.UIDOf(3)] = false
	n.sandboxes[inspecttest.UIDOf(3)].State = cri.PodSandboxState_SANDBOX_NOTREADY
	n.during(time.Hour, n.allLive)
	if n.lists > 7 {
		t.Errorf("%d lists in an hour", n.lists)
	}
}

// A kubelet that does not answer is not treated as one that refuses.
func TestNamesAreAskedOnlyWhereRefused(t *testing.T) {
	for name, test := range map[string]struct {
		pods, names error
		want        string
	}{
		"refused":     {inspecttest.ErrRefused, nil, ""},
		"not in time": {context.DeadlineExceeded, nil, "deadline exceeded"},
		"refused, no socket": {inspecttest.ErrRefused, fs.ErrNotExist,
			"permission denied; nor do its podresources answer: file does"},
		"refused, does not know": {inspecttest.ErrRefused, context.DeadlineExceeded,
			"nor do its podresources answer: context deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			n.refuse()
			n.host.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return nil, test.pods }
			answer := n.host.Kubelet.PodNames
			n.host.Kubelet.PodNames = func(ctx context.Context) (map[string]int, error) {
				names, _ := answer(ctx)
				return names, test.names
			}
			report := n.pass()
			if test.want == "" {
				n.allLive(report)
				return
			}
			if verdict, why := n.verdict(report, inspecttest.UIDOf(3)); verdict != object.Unknown ||
				!strings.Contains(why, test.want) {
				t.Errorf("%s: %s", verdict, why)
			}
		})
	}
}

// On a node where pods end all the time, the apiserver is asked twice in a grace period, not for each of them.
func TestManyEndedPodsByName(t *testing.T) {
	n := newFullNode(t)
	n.refuse()
	next := 100
	n.during(time.Hour, func(report object.Report) {
		n.noLeftover(report)
		n.add(inspecttest.UIDOf(next), fmt.Sprintf("job-%d", next))
		for _, book := range []map[string]corev1.Pod{n.kubelet, n.list} {
			p := book[inspecttest.UIDOf(next)]
			p.Status.Phase = corev1.PodSucceeded
			book[inspecttest.UIDOf(next)] = p
		}
		n.running[inspecttest.UIDOf(next)] = false
		n.sandboxes[inspecttest.UIDOf(next)].State = cri.PodSandboxState_SANDBOX_NOTREADY
		next++
	})
	if n.lists < 10 || n.lists > 13 {
		t.Errorf("%d lists in an hour", n.lists)
	}
}
