package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
	"github.com/nodeagent/nodeagent/test/need"
)

// inThePass triggers events within each pass: before the apiserver lists its pods, and before kubelet is asked again.
// It returns how often kubelet was asked.
func (n *fullNode) inThePass(beforeList func(), beforeAgain func() error) *int {
	asked, listed := 0, false
	pods, list, sandboxes := n.host.Kubelet.Pods, n.host.Cluster.Pods, n.host.Runtime.Sandboxes
	n.host.Runtime.Sandboxes = func(ctx context.Context) ([]*cri.PodSandbox, error) {
		listed = false // a pass begins
		return sandboxes(ctx)
	}
	n.host.Kubelet.Pods = func(ctx context.Context) ([]corev1.Pod, error) {
		asked++
		if !listed || beforeAgain == nil {
			return pods(ctx)
		}
		if err := beforeAgain(); err != nil {
			return nil, err
		}
		return pods(ctx)
	}
	n.host.Cluster.Pods = func(ctx context.Context) ([]corev1.Pod, error) {
		if beforeList != nil {
			beforeList()
		}
		listed = true
		return list(ctx)
	}
	return &asked
}

// start starts a pod as far as kubelet and the apiserver are concerned: kubelet has received it and set its status.
func (n *fullNode) start(uid, name string) {
	pod := n.pod(uid, "default", name)
	pod.Status.StartTime = &metav1.Time{Time: n.now.Wall}
	n.kubelet[uid], n.list[uid], n.names["default/"+name] = pod, pod, pod
}

// On a busy node some pods come and go between kubelet's answer and the apiserver's in each pass. A leftover is proven
// nevertheless, and in time.
func TestPodsComeAndGoInAPass(t *testing.T) {
	need.Nothing(t)
	for name, change := range map[string]func(n *fullNode, turn int){
		"one starts": func(n *fullNode, turn int) { n.start(inspecttest.UIDOf(100+turn), fmt.Sprint("new-", turn)) },
		"most have just been bound": func(n *fullNode, turn int) {
			for i := range 30 {
				n.start(inspecttest.UIDOf(100*turn+i), fmt.Sprintf("new-%d-%d", turn, i))
				n.delete(inspecttest.UIDOf(100*(turn-1) + 10 + i)) // the ten of the beginning stay
			}
		},
		"six end, six start": func(n *fullNode, turn int) {
			for i := range 6 {
				n.delete(inspecttest.UIDOf(100*(turn-1) + 10 + i))
				n.start(inspecttest.UIDOf(100*turn+10+i), fmt.Sprintf("new-%d-%d", turn, i))
			}
		},
		"six end": func(n *fullNode, turn int) {
			if turn > 1 {
				return // the next lists agree
			}
			for i := range 6 {
				n.delete(inspecttest.UIDOf(i))
				delete(n.sandboxes, inspecttest.UIDOf(i))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, turn := newFullNode(t), 0
			n.delete(inspecttest.UIDOf(9))
			n.running[inspecttest.UIDOf(9)] = false
			n.inThePass(func() { turn++; change(n, turn) }, nil)
			n.during(9*time.Minute, func(report object.Report) {
				if verdict, why := n.verdict(report, inspecttest.UIDOf(9)); verdict != object.Candidate ||
					strings.Contains(why, "gate") {
					t.Fatalf("%s: %s", verdict, why)
				}
			})
			if verdict, why := n.verdict(n.pass(), inspecttest.UIDOf(9)); verdict != object.Leftover {
				t.Errorf("%s: %s", verdict, why)
			}
		})
	}
}

// A second answer opens a gate only if it comes from the same process and agrees with the list by itself.
func TestSecondAnswerThatProvesNothing(t *testing.T) {
	need.Nothing(t)
	amnesia := func(n *fullNode) {
		maps.DeleteFunc(n.kubelet, func(uid string, _ corev1.Pod) bool { return uid != staticUID })
	}
	forgetful := func(n *fullNode) { forget(n.kubelet, inspecttest.UIDOf(1)) }
	empty := func(n *fullNode) {
		maps.DeleteFunc(n.list, func(_ string,
			pod corev1.Pod) bool {
			return pod.Annotations[witness.MirrorAnnotation] == ""
		})
	}
	var process host.Process // kubelet's
	var processErr error
	for name, test := range map[string]struct {
		first func(n *fullNode)
		again func(n *fullNode, all map[string]corev1.Pod) error
		gate  string
	}{
		"it says the same: the sources have not been received": {amnesia, nil, "kubelet-sources"},
		"it says the same: a pod that it has known is lacking": {forgetful, nil, "kubelet-sources"},
		"it fails": {amnesia, func(*fullNode, map[string]corev1.Pod) error {
			return errors.New("kubelet has gone")
		}, "kubelet-sources"},
		"another process gives it": {forgetful, func(n *fullNode, all map[string]corev1.Pod) error {
			n.kubelet, process.PID = all, process.PID+1
			return nil
		}, "kubelet-sources"},
		"another process of the same PID gives it": {forgetful, func(n *fullNode, all map[string]corev1.Pod) error {
			n.kubelet, process.StartTime = all, process.StartTime+1
			return nil
		}, "kubelet-sources"},
		"whose it is cannot be found": {forgetful, func(n *fullNode, all map[string]corev1.Pod) error {
			n.kubelet, processErr = all, errors.New("none")
			return nil
		}, "kubelet-sources"},
		"it lacks another one": {forgetful, func(n *fullNode, all map[string]corev1.Pod) error {
			n.kubelet = maps.Clone(all)
			forget(n.kubelet, inspecttest.UIDOf(2))
			return nil
		}, "kubelet-sources"},
		"it shows that the list is outdated": {amnesia, func(n *fullNode, all map[string]corev1.Pod) error {
			n.kubelet = maps.Clone(all)
			for i := range 4 {
				n.kubelet[inspecttest.UIDOf(20+i)] = n.pod(inspecttest.UIDOf(20+i), "default", fmt.Sprint("later-", i))
			}
			return nil
		}, "list-is-ours"},
		"the list is outdated, and stays so": {func(n *fullNode) {
			forget(n.list, inspecttest.UIDOf(1), inspecttest.UIDOf(2), inspecttest.UIDOf(3), inspecttest.UIDOf(4))
		}, nil, "list-is-ours"},
		"neither has anything": {empty, func(n *fullNode, _ map[string]corev1.Pod) error {
			amnesia(n)
			return nil
		}, "list-is-ours"},
		"of another node": {func(n *fullNode) { empty(n) }, func(n *fullNode, _ map[string]corev1.Pod) error {
			n.kubelet = map[string]corev1.Pod{inspecttest.UIDOf(50): n.pod(inspecttest.UIDOf(50), "default", "another")}
			return nil
		}, "list-is-ours"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			n.metric, n.version = nil, "v1.26.9" // does not show whether its sources are ready
			n.delete(inspecttest.UIDOf(9))
			n.running[inspecttest.UIDOf(9)] = false
			all := maps.Clone(n.kubelet)
			test.first(n)
			books, found := maps.Clone(n.kubelet), n.host.Kubelet.Process
			process, processErr = found()
			n.host.Kubelet.Process = func() (host.Process, error) { return process, processErr }
			asked := n.inThePass(nil, func() error {
				if test.again == nil {
					return nil
				}
				return test.again(n, all)
			})
			n.during(30*time.Minute, func(report object.Report) {
				closed := slices.ContainsFunc(report.Gates, func(g object.Gate) bool {
					return g.Name == test.gate &&
						!g.Open
				})
				if verdict, why := n.verdict(report, inspecttest.UIDOf(9)); verdict != object.Unknown || !closed {
					t.Fatalf("%s: %s; gates %+v", verdict, why, report.Gates)
				}
				n.kubelet = maps.Clone(books)
				process, processErr = found()
			})
			if *asked < 2 {
				t.Errorf("kubelet was asked %d times", *asked)
			}
		})
	}
}

// A pod in either answer is kubelet's, even if the list lacks it: the first answer may come from a kubelet that has
// received no pods yet, the second from one started meanwhile.
func TestPodOfEitherAnswerIsLive(t *testing.T) {
	need.Nothing(t)
	for name, second := range map[string]bool{"the second": true, "the first": false} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			forget(n.list, inspecttest.UIDOf(3))
			whole, without := maps.Clone(n.kubelet), maps.Clone(n.kubelet)
			forget(without, inspecttest.UIDOf(3))
			without[inspecttest.UIDOf(20)] = n.pod(inspecttest.UIDOf(20), "default", "new")
			forget(whole, inspecttest.UIDOf(2)) // its leftovers make the agent ask the apiserver
			forget(without, inspecttest.UIDOf(2))
			forget(n.list, inspecttest.UIDOf(2))
			first, again := without, whole
			if !second {
				first, again = whole, without
			}
			n.start(inspecttest.UIDOf(30), "in-between") // which only the second answer has
			again[inspecttest.UIDOf(30)] = n.kubelet[inspecttest.UIDOf(30)]
			asked := n.inThePass(nil, func() error { n.kubelet = again; return nil })
			for range 60 {
				n.kubelet = first
				if verdict, why := n.verdict(n.pass(), inspecttest.UIDOf(3)); verdict != object.Live {
					t.Fatalf("%s: %s", verdict, why)
				}
				n.after(time.Minute)
			}
			if *asked <= 60 {
				t.Error("kubelet was not asked again")
			}
		})
	}
}

// A second answer counts in its own pass only: its pods differ from those that this pass's list is later compared with.
func TestSecondAnswerIsForgotten(t *testing.T) {
	need.Nothing(t)
	n, once := newFullNode(t), true
	n.delete(inspecttest.UIDOf(9))
	n.running[inspecttest.UIDOf(9)] = false
	n.inThePass(func() {
		if once {
			n.start(inspecttest.UIDOf(20), "new")
		}
	}, func() error {
		if once { // it is on its way out
			n.kubelet[inspecttest.UIDOf(9)] = n.pod(inspecttest.UIDOf(9), "default", "web-9")
		}
		once = false
		return nil
	})
	if verdict, why := n.verdict(n.pass(), inspecttest.UIDOf(9)); verdict != object.Live {
		t.Errorf("%s: %s", verdict, why)
	}
	forget(n.kubelet, inspecttest.UIDOf(9))
	n.after(time.Minute)
	if verdict, why := n.verdict(n.pass(), inspecttest.UIDOf(9)); verdict != object.Candidate {
		t.Errorf("%s: %s", verdict, why)
	}
}

// Kubelet is asked a second time only if it and the list disagree, and only once; the apiserver is not asked again.
func TestKubeletIsAskedAgainOnlyOnDisagreement(t *testing.T) {
	need.Nothing(t)
	for name, test := range map[string]struct {
		bend    func(n *fullNode)
		asks    int
		lists   int
		refused bool
	}{
		"nothing is suspicious": {bend: func(*fullNode) {}, asks: 1},
		"they agree":            {bend: func(n *fullNode) { n.delete(inspecttest.UIDOf(9)) }, asks: 1, lists: 1},
		"three have ended since": {bend: func(n *fullNode) {
			n.delete(inspecttest.UIDOf(9))
			forget(n.list, inspecttest.UIDOf(1), inspecttest.UIDOf(2), inspecttest.UIDOf(3))
		}, asks: 1, lists: 1},
		"four have ended since": {bend: func(n *fullNode) {
			n.delete(inspecttest.UIDOf(9))
			forget(n.list, inspecttest.UIDOf(1), inspecttest.UIDOf(2), inspecttest.UIDOf(3), inspecttest.UIDOf(4))
		}, asks: 2, lists: 1},
		"kubelet lacks one": {bend: func(n *fullNode) { forget(n.kubelet, inspecttest.UIDOf(9)) }, asks: 2, lists: 1},
		"kubelet lacks one, and tells names only": {bend: func(n *fullNode) {
			forget(n.kubelet, inspecttest.UIDOf(9))
		}, asks: 1, lists: 1, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			if test.refused {
				n.refuse()
			}
			test.bend(n)
			asked := n.inThePass(nil, nil)
			n.pass()
			if *asked != test.asks || n.lists != test.lists {
				t.Errorf("kubelet was asked %d times, the apiserver for %d lists", *asked, n.lists)
			}
		})
	}
}
