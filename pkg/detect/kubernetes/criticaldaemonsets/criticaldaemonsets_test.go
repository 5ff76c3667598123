package criticaldaemonsets

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// daemonNode is a node whose kubelet, apiserver and clock belong to the test.
type daemonNode struct {
	host      *host.Host
	clock     finding.Timestamp
	set       *appsv1.DaemonSet // the only one; nil: deleted
	cached    []appsv1.DaemonSet
	pods      []corev1.Pod
	pending   []corev1.Pod
	revisions []appsv1.ControllerRevision
	node      corev1.Node
	setsErr   error
	nodeErr   error
	requests  int
}

func newDaemonNode() *daemonNode {
	n := &daemonNode{clock: finding.Timestamp{Wall: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), Boot: "b",
		SinceBoot: time.Hour}}
	long := metav1.NewTime(n.clock.Wall.Add(-24 * time.Hour))
	n.node = corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", CreationTimestamp: long,
		Labels: map[string]string{"kubernetes.io/os": "linux"}}}
	n.set = &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "proxy", UID: "ds-1", CreationTimestamp: long,
			Generation: 1},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "proxy"}},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{PriorityClassName: "system-node-critical"}},
		},
		Status: appsv1.DaemonSetStatus{ObservedGeneration: 1},
	}
	n.cached = []appsv1.DaemonSet{*n.set}
	n.pods = []corev1.Pod{n.pod(corev1.ConditionTrue, time.Hour)}
	n.host = &host.Host{NodeName: "node-1", Clock: func() finding.Timestamp { return n.clock }}
	n.host.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return n.pods, nil }
	n.host.Cluster.DaemonSets = func(context.Context) ([]appsv1.DaemonSet, error) { return n.cached, n.setsErr }
	n.host.Cluster.ControllerRevisions = func(context.Context, string) ([]appsv1.ControllerRevision, error) {
		return n.revisions, nil
	}
	n.host.Cluster.Node = func(context.Context) (*corev1.Node, error) { n.requests++; return &n.node, n.nodeErr }
	return n
}

func (n *daemonNode) lookups() DaemonSetLookups {
	return DaemonSetLookups{
		DaemonSet: func(context.Context, string, string) (*appsv1.DaemonSet, error) {
			n.requests++
			if n.set == nil {
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "daemonsets"}, "proxy")
			}
			return n.set, nil
		},
		Unscheduled: func(context.Context, string, string) ([]corev1.Pod, error) {
			n.requests++
			return n.pending, nil
		},
	}
}

func (n *daemonNode) pass(d time.Duration) {
	n.clock.SinceBoot += d
	n.clock.Wall = n.clock.Wall.Add(d)
}

// edit changes the DaemonSet, in the cache too.
func (n *daemonNode) edit(change func(*appsv1.DaemonSet)) {
	change(n.set)
	n.cached = []appsv1.DaemonSet{*n.set}
}

func (n *daemonNode) pod(ready corev1.ConditionStatus, age time.Duration) corev1.Pod {
	controller := true
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: "proxy-x", CreationTimestamp: metav1.NewTime(n.clock.Wall.Add(-age)),
			Labels: map[string]string{"controller-revision-hash": "old"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "proxy", UID: "ds-1",
				Controller: &controller}},
		},
		Spec: corev1.PodSpec{PriorityClassName: "system-node-critical"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: ready, Reason: "ContainersNotReady",
				Message: "containers with unready status: [proxy]"}}},
	}
}

func (n *daemonNode) loop(pod corev1.Pod, running bool) corev1.Pod {
	c := corev1.ContainerStatus{Name: "proxy", RestartCount: 4, LastTerminationState: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "no route",
			FinishedAt: metav1.NewTime(n.clock.Wall.Add(-time.Minute))}}}
	if !running {
		c.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{c}
	return pod
}

// unscheduled returns a pod of the DaemonSet that the controller made for a node.
func (n *daemonNode) unscheduled(node string) corev1.Pod {
	pod := n.pod(corev1.ConditionFalse, time.Hour)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: "Unschedulable", Message: "Insufficient cpu"}}
	required := &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: required}}
	return pod
}

func (n *daemonNode) revision(name string, number int64, age time.Duration) {
	controller := true
	n.revisions = append(n.revisions, appsv1.ControllerRevision{Revision: number, ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"controller-revision-hash": name},
		CreationTimestamp: metav1.NewTime(n.clock.Wall.Add(-age)),
		OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", UID: types.UID("ds-1"),
			Controller: &controller}}}})
	n.edit(func(s *appsv1.DaemonSet) {
		s.Status.DesiredNumberScheduled, s.Status.UpdatedNumberScheduled = 10, 4
	})
}

func TestCriticalDaemonSetsReasons(t *testing.T) {
	const subject = "daemonset/kube-system/proxy="
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "daemonsets"}, "", errors.New("no"))
	listed := func(s *Settings) { s.DaemonSets = []string{"kube-system/proxy"} }
	tests := []struct {
		name    string
		arrange func(n *daemonNode)
		set     func(s *Settings)
		want    []string // findings, then the beginning of the error
		message string
	}{
		{name: "ready", arrange: func(*daemonNode) {}},
		{name: "not critical", arrange: func(n *daemonNode) {
			n.pods = nil
			n.edit(func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.PriorityClassName = "" })
		}},
		{name: "critical by label", arrange: func(n *daemonNode) {
			n.pods = nil
			n.edit(func(s *appsv1.DaemonSet) {
				s.Spec.Template.Spec.PriorityClassName, s.Labels = "",
					map[string]string{"nodeagent.io/critical": "true"}
			})
		}, want: []string{subject + "DaemonSetPodMissing"}},
		{name: "ignored", arrange: func(n *daemonNode) { n.pods = nil }, set: func(s *Settings) {
			s.Ignore = []string{"kube-system/proxy"}
		}},
		{name: "no pod", arrange: func(n *daemonNode) {
			n.pods = nil
		}, want: []string{subject + "DaemonSetPodMissing"}},
		{name: "pod evicted", arrange: func(n *daemonNode) {
			n.pods[0].Status.Phase = corev1.PodFailed
		}, want: []string{subject + "DaemonSetPodMissing"}},
		{name: "pod of an earlier DaemonSet", arrange: func(n *daemonNode) {
			n.pods[0].OwnerReferences[0].UID = "ds-0"
		}, want: []string{subject + "DaemonSetPodMissing"}},
		{name: "deleted since the cache", arrange: func(n *daemonNode) { n.pods, n.set = nil, nil }},
		{name: "not scheduled", arrange: func(n *daemonNode) {
			n.pods, n.pending = nil, []corev1.Pod{n.unscheduled("node-2"), n.unscheduled("node-1")}
		}, want: []string{subject + "DaemonSetPodNotScheduled"}, message: "Insufficient cpu"},
		{name: "not scheduled elsewhere", arrange: func(n *daemonNode) {
			n.pods, n.pending = nil, []corev1.Pod{n.unscheduled("node-2")}
		},
			want: []string{subject + "DaemonSetPodMissing"}},
		{name: "not ready", arrange: func(n *daemonNode) {
			n.pods = []corev1.Pod{n.pod(corev1.ConditionFalse, time.Hour)}
		},
			want: []string{subject + "DaemonSetPodNotReady"}, message: "unready status: [proxy]"},
		{name: "image missing", arrange: func(n *daemonNode) {
			n.pods = []corev1.Pod{n.pod(corev1.ConditionFalse, time.Hour)}
			n.pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "proxy", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
		}, want: []string{subject + "DaemonSetPodNotReady"},
			message: "container proxy: ImagePullBackOff no such image"},
		{name: "starting", arrange: func(n *daemonNode) {
			n.pods = []corev1.Pod{n.pod(corev1.ConditionFalse, time.Minute)}
		},
			want: []string{"daemonset/kube-system/proxy: pod proxy-x is starting"}},
		{name: "crash looping", arrange: func(n *daemonNode) {
			n.pods = []corev1.Pod{n.loop(n.pod(corev1.ConditionFalse, time.Minute), false)}
		}, want: []string{subject + "DaemonSetPodCrashLooping"}, message: "exit code 1 (Error) no route"},
		{name: "between two crashes", arrange: func(n *daemonNode) {
			n.pods = []corev1.Pod{n.loop(n.pod(corev1.ConditionTrue, time.Hour), true)}
		}, want: []string{subject + "DaemonSetPodCrashLooping marginal"}},
		{name: "does not end", arrange: func(n *daemonNode) {
			n.pods = []corev1.Pod{n.pod(corev1.ConditionFalse, time.Hour)}
			n.pods[0].DeletionTimestamp = &metav1.Time{Time: n.clock.Wall.Add(-10 * time.Minute)}
		}, want: []string{subject + "DaemonSetPodNotReady"}, message: "has not terminated"},
		{name: "machine boots", arrange: func(n *daemonNode) {
			n.pods, n.clock.SinceBoot = nil, time.Minute
		}, want: []string{"daemonset/kube-system/proxy: the machine has been up"}},
		{name: "kubelet has just started", arrange: func(n *daemonNode) {
			n.pods = nil
			n.host.Kubelet.Process = func() (host.Process, error) {
				return host.Process{PID: 7, StartTime: uint64(n.clock.SinceBoot.Seconds()-5) * 100}, nil
			}
		}, want: []string{"daemonset/kube-system/proxy: kubelet has been up for 5s"}},
		{name: "node has just joined", arrange: func(n *daemonNode) {
			n.pods, n.node.CreationTimestamp = nil, metav1.NewTime(n.clock.Wall)
		},
			want: []string{"daemonset/kube-system/proxy: the node has just joined"}},
		{name: "just made", arrange: func(n *daemonNode) {
			n.pods = nil
			n.edit(func(s *appsv1.DaemonSet) { s.CreationTimestamp = metav1.NewTime(n.clock.Wall) })
		}, want: []string{"daemonset/kube-system/proxy: it has just been created or changed"}},
		{name: "not for this node", arrange: func(n *daemonNode) {
			n.pods = nil
			n.edit(func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.NodeSelector = map[string]string{"gpu": "true"} })
		}},
		{name: "node cannot be read", arrange: func(n *daemonNode) {
			n.pods, n.nodeErr = nil, errors.New("unreachable")
		},
			want: []string{"daemonset/kube-system/proxy: it has no pod here, and whether it should i"}},
		{name: "apiserver unreachable from the start", arrange: func(n *daemonNode) {
			n.setsErr = errors.New("unreachable")
		}, want: []string{"which DaemonSets are critical: unreachable"}},
		{name: "kubelet's credentials, none listed", arrange: func(n *daemonNode) {
			n.pods, n.cached, n.setsErr = nil, nil, forbidden
		}, want: []string{"not applicable: DaemonSets"}},
		{name: "kubelet's credentials, ready", arrange: func(n *daemonNode) {
			n.cached, n.setsErr = nil, forbidden
		}, set: listed},
		{name: "kubelet's credentials, missing", arrange: func(n *daemonNode) {
			n.pods, n.cached, n.setsErr = nil, nil, forbidden
		}, set: listed,
			want: []string{subject + "DaemonSetPodMissing"}},
		{name: "kubelet's credentials, a critical pod is not ready", arrange: func(n *daemonNode) {
			n.pods, n.cached, n.setsErr = []corev1.Pod{n.pod(corev1.ConditionFalse, time.Hour)}, nil, forbidden
		}, want: []string{subject + "DaemonSetPodNotReady"}},
		{name: "listed, no such DaemonSet", arrange: func(n *daemonNode) {
			n.pods, n.cached = nil, nil
		}, set: listed, want: []string{subject + "DaemonSetNotFound warning"}},
		{name: "old revision stands still", arrange: func(n *daemonNode) {
			n.revision("old", 1, 24*time.Hour)
			n.revision("new", 2, 3*time.Hour)
		},
			want: []string{subject + "DaemonSetRevisionStuck warning"}, message: "of revision old, not new"},
		{name: "rollout goes on", arrange: func(n *daemonNode) {
			n.revision("old", 1, 24*time.Hour)
			n.revision("new", 2, time.Hour)
		}},
		{name: "rollout waits for other nodes", arrange: func(n *daemonNode) {
			n.revision("old", 1, 24*time.Hour)
			n.revision("new", 2, 3*time.Hour)
			n.edit(func(s *appsv1.DaemonSet) { s.Status.NumberUnavailable = 1 })
		}},
		{name: "OnDelete", arrange: func(n *daemonNode) {
			n.revision("old", 1, 24*time.Hour)
			n.revision("new", 2, 3*time.Hour)
			n.edit(func(s *appsv1.DaemonSet) { s.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType })
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, s := newDaemonNode(), DefaultSettings()
			tt.arrange(n)
			if tt.set != nil {
				tt.set(&s)
			}
			found, err := New(s, n.lookups()).Run(t.Context(), n.host)
			got := checktest.Reasons(found)
			if err != nil {
				last := ""
				if len(tt.want) > 0 {
					last = tt.want[len(tt.want)-1]
				}
				got = append(got, err.Error()[:min(max(len(last), 20), len(err.Error()))])
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
			if len(found) > 0 && !strings.Contains(found[0].Message, tt.message) {
				t.Errorf("message %q does not say %q", found[0].Message, tt.message)
			}
		})
	}
}

// A rollout without progress is reported after the grace, and not before.
func TestRevisionStuckIsMeasuredFromTheLastMove(t *testing.T) {
	n := newDaemonNode()
	n.revision("old", 1, 24*time.Hour)
	n.revision("new", 2, 20*time.Hour)
	n.edit(func(s *appsv1.DaemonSet) { s.Status.NumberUnavailable = 1 })
	check := New(DefaultSettings(), n.lookups())
	expect := func(want ...string) { t.Helper(); checktest.Expect(t, check, n.host, want...) }
	expect()
	n.pass(100 * time.Minute)
	n.edit(func(s *appsv1.DaemonSet) { s.Status.UpdatedNumberScheduled++; s.Status.NumberUnavailable = 0 })
	expect()
	n.pass(100 * time.Minute)
	expect()
	n.pass(30 * time.Minute)
	expect("daemonset/kube-system/proxy=DaemonSetRevisionStuck warning")
	n.edit(func(s *appsv1.DaemonSet) { s.Status.UpdatedNumberScheduled = 10 })
	expect()
}

// A healthy node reads its Node from the apiserver a few times an hour; one whose pod is missing reads it at growing
// intervals.
func TestCriticalDaemonSetsRequests(t *testing.T) {
	tests := []struct {
		name        string
		arrange     func(n *daemonNode)
		least, most int
	}{
		{"healthy", func(*daemonNode) {}, 4, 7},
		{"missing", func(n *daemonNode) { n.pods = nil }, 30, 60},
		{"apiserver unreachable", func(n *daemonNode) { n.nodeErr = errors.New("unreachable") }, 12, 20},
		{"forbidden", func(n *daemonNode) {
			n.cached, n.setsErr = nil, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no"))
			list := n.host.Cluster.DaemonSets
			n.host.Cluster.DaemonSets = func(ctx context.Context) ([]appsv1.DaemonSet, error) {
				n.requests++
				return list(ctx)
			}
		}, 4, 7},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newDaemonNode()
			tt.arrange(n)
			check := New(DefaultSettings(), n.lookups())
			for range 120 { // an hour
				if _, err := check.Run(t.Context(), n.host); err != nil {
					t.Fatal(err)
				}
				n.pass(30 * time.Second)
			}
			if n.requests < tt.least || n.requests > tt.most {
				t.Errorf("%d requests in an hour, want %d to %d", n.requests, tt.least, tt.most)
			}
		})
	}
}
