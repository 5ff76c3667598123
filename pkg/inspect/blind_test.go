package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// fullNode is a node of which each witness keeps a book of its own, so that they can disagree: what kubelet has, what
// the apiserver lists, what it has by name, and what the runtime runs.
type fullNode struct {
	t         *testing.T
	host      *host.Host
	now       finding.Timestamp
	kubelet   map[string]corev1.Pod // by UID
	list      map[string]corev1.Pod
	names     map[string]corev1.Pod // by namespace/name
	sandboxes map[string]*cri.PodSandbox
	running   map[string]bool // by UID
	metric    map[string]float64
	version   string // of kubelet, as its metrics say
	nameErr   error  // of asking for a pod by name
	namedErr  error  // of listing one pod
	asked     []string
	lists     int
	inspector *Inspector
	history   History
	restarts  bool // the agent is started anew before each pass
	settings  Settings
}

const staticUID = "00000000000000000000000000000abc"

// uidOf is the UID of the pod of that number.
func uidOf(n int) string { return fmt.Sprintf("%08d-0000-4000-8000-000000000000", n) }

// newFullNode is a node with ten pods and a static one, all of which run.
func newFullNode(t *testing.T) *fullNode {
	t.Helper()
	n := &fullNode{
		t: t, now: hosttest.Now(), kubelet: map[string]corev1.Pod{}, list: map[string]corev1.Pod{},
		names:     map[string]corev1.Pod{},
		sandboxes: map[string]*cri.PodSandbox{}, running: map[string]bool{}, history: History{},
		metric:  map[string]float64{`config="runtime_only",lifecycle="terminating",static="unknown"`: 0},
		version: "v1.36.3",
	}
	n.settings = settings()
	n.host = hosttest.Host(t, n.doors)
	for name, text := range map[string]string{
		"etc/machine-id": hosttest.MachineID, "proc/sys/kernel/random/boot_id": hosttest.BootID,
		n.host.Paths.StaticPods + "/etcd.yaml": "{metadata: {name: etcd, namespace: kube-system}}",
	} {
		n.write(name, text)
	}
	for i := range 10 {
		n.add(uidOf(i), fmt.Sprintf("web-%d", i))
	}
	mirror := n.pod("99999999-0000-4000-8000-000000000000", "kube-system", "etcd-"+hosttest.NodeName)
	mirror.Annotations = map[string]string{mirrorAnnotation: staticUID, sourceAnnotation: "file"}
	n.list[string(mirror.UID)] = mirror
	static := n.pod(staticUID, "kube-system", "etcd-"+hosttest.NodeName)
	static.Annotations = map[string]string{sourceAnnotation: "file"}
	n.kubelet[staticUID] = static
	n.run(static)
	n.inspector = New(n.host, n.settings, slog.New(slog.DiscardHandler))
	return n
}

func (n *fullNode) write(name, text string) {
	n.t.Helper()
	file := n.host.Files.Path(name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *fullNode) pod(uid, namespace, name string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: namespace, Name: name}}
	pod.Spec.NodeName, pod.Status.Phase = hosttest.NodeName, corev1.PodRunning
	return pod
}

// add lets a pod live, with everybody's knowledge.
func (n *fullNode) add(uid, name string) {
	pod := n.pod(uid, "default", name)
	n.kubelet[uid], n.list[uid], n.names["default/"+name] = pod, pod, pod
	n.run(pod)
}

func (n *fullNode) run(pod corev1.Pod) {
	n.sandboxes[string(pod.UID)] = &cri.PodSandbox{
		Id:          strings.ReplaceAll(string(pod.UID), "-", "") + strings.Repeat("0", 32),
		State:       cri.PodSandboxState_SANDBOX_READY,
		Annotations: pod.Annotations,
		Metadata:    &cri.PodSandboxMetadata{Uid: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name},
	}
	n.running[string(pod.UID)] = true
}

// forget takes pods away from somebody.
func forget(book map[string]corev1.Pod, uids ...string) {
	maps.DeleteFunc(book, func(_ string, pod corev1.Pod) bool { return slices.Contains(uids, string(pod.UID)) })
}

// delete is the end of pods for everybody but the runtime.
func (n *fullNode) delete(uids ...string) {
	for _, book := range []map[string]corev1.Pod{n.kubelet, n.list, n.names} {
		forget(book, uids...)
	}
}

func (n *fullNode) doors(h *host.Host) {
	h.Clock = func() finding.Timestamp { return n.now }
	h.Paths.StaticPods = "/etc/kubernetes/manifests"
	h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return slices.Collect(maps.Values(n.kubelet)), nil }
	h.Kubelet.Metric = func(_ context.Context, family string) (map[string]float64, error) {
		if family == workingFamily || n.version == "" {
			return n.metric, nil
		}
		return map[string]float64{`git_version="` + n.version + `",major="1"`: 1}, nil
	}
	h.Cluster.Pods = func(context.Context) ([]corev1.Pod, error) {
		n.lists++
		return slices.Collect(maps.Values(n.list)), nil
	}
	h.Cluster.Pod = func(_ context.Context, namespace, name string) (*corev1.Pod, error) {
		n.asked = append(n.asked, name)
		pod, ok := n.names[namespace+"/"+name]
		switch {
		case n.nameErr != nil:
			return nil, n.nameErr
		case !ok:
			return nil, hosttest.NotFound("pods", name)
		}
		return &pod, nil
	}
	h.Cluster.PodsNamed = n.podsNamed
	h.Runtime.Sandboxes = func(context.Context) ([]*cri.PodSandbox, error) {
		return slices.Collect(maps.Values(n.sandboxes)), nil
	}
	h.Runtime.Containers = func(context.Context) ([]*cri.Container, error) {
		var all []*cri.Container
		for uid, s := range n.sandboxes {
			state := cri.ContainerState_CONTAINER_EXITED
			if n.running[uid] {
				state = cri.ContainerState_CONTAINER_RUNNING
			}
			all = append(all, &cri.Container{
				Id: "c" + s.Id[1:], PodSandboxId: s.Id, State: state, Metadata: &cri.ContainerMetadata{},
				Labels: map[string]string{uidLabel: uid},
			})
		}
		return all, nil
	}
}

func (n *fullNode) podsNamed(_ context.Context, namespace, name string) ([]corev1.Pod, error) {
	n.asked = append(n.asked, "list "+name)
	if pod, ok := n.names[namespace+"/"+name]; ok && n.namedErr == nil {
		return []corev1.Pod{pod}, nil
	}
	return nil, n.namedErr
}

// pass makes one pass.
func (n *fullNode) pass() Report {
	n.t.Helper()
	if n.restarts {
		data, err := json.Marshal(n.history)
		if err != nil {
			n.t.Fatal(err)
		}
		n.history = nil
		if err := json.Unmarshal(data, &n.history); err != nil {
			n.t.Fatal(err)
		}
		n.inspector = New(n.host, n.settings, slog.New(slog.DiscardHandler))
	}
	asked := len(n.asked)
	report, history := n.inspector.Pass(n.t.Context(), n.history, Sandbox, Container)
	n.history = history
	names := 0
	for _, what := range n.asked[asked:] {
		if !strings.HasPrefix(what, "list ") {
			names++
		}
	}
	if names > 1 {
		n.t.Errorf("asked for %d pods by name in one pass", names)
	}
	return report
}

// verdict returns the one verdict on all objects of a pod, and why.
func (n *fullNode) verdict(report Report, uid string) (Verdict, string) {
	n.t.Helper()
	found := ofPod(report, uid)
	if len(found) != 1 {
		n.t.Fatalf("pod %s: verdicts %v\n%s", uid, found, whys(report, uid))
	}
	for _, o := range report.Objects {
		if o.Pod.UID == uid {
			return o.Verdict, o.Why
		}
	}
	return "", ""
}

// during makes a pass a minute and returns the worst that was said of any pod: a leftover before a candidate.
func (n *fullNode) during(d time.Duration, each func(Report)) {
	n.t.Helper()
	for end := n.now.SinceBoot + d; n.now.SinceBoot <= end; n.after(time.Minute) {
		each(n.pass())
	}
}

func (n *fullNode) after(d time.Duration) {
	n.now.SinceBoot, n.now.Wall = n.now.SinceBoot+d, n.now.Wall.Add(d)
}

func (n *fullNode) noLeftover(report Report) {
	n.t.Helper()
	for _, o := range report.Objects {
		if o.Verdict == Leftover {
			n.t.Fatalf("at %s pod %s: %s %s is a leftover: %s", n.now.SinceBoot, o.Pod.Name, o.Kind, o.ID, o.Why)
		}
	}
}

func (n *fullNode) allLive(report Report) {
	n.t.Helper()
	for _, o := range report.Objects {
		if o.Verdict != Live {
			n.t.Errorf("pod %s: %s %s is %s: %s", o.Pod.Name, o.Kind, o.ID, o.Verdict, o.Why)
		}
	}
}

var forbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", errors.New("no relationship found"))

// What was seen on a real node: kubelet is started again while its own LIST is refused, and the apiserver's list lacks
// some living pods. In all variants all that run live, for an hour and more, and after it.
func TestHalfBlindWitnesses(t *testing.T) {
	amnesia := func(n *fullNode) {
		maps.DeleteFunc(n.kubelet, func(uid string, _ corev1.Pod) bool { return uid != staticUID })
	}
	old := func(n *fullNode) { n.metric, n.version = nil, "v1.26.9" } // which cannot say whether its sources are ready
	tests := map[string]func(*fullNode){
		"kubelet has static pods only, the list lacks two": func(n *fullNode) {
			amnesia(n)
			n.metric = nil
			forget(n.list, uidOf(3), uidOf(7))
		},
		"the same, by an old kubelet": func(n *fullNode) { amnesia(n); old(n); forget(n.list, uidOf(3), uidOf(7)) },
		"the same, and names are forbidden": func(n *fullNode) {
			amnesia(n)
			old(n)
			forget(n.list, uidOf(3), uidOf(7))
			n.nameErr = forbidden
		},
		"the same, and names do not answer": func(n *fullNode) {
			amnesia(n)
			old(n)
			forget(n.list, uidOf(3), uidOf(7))
			n.nameErr = context.DeadlineExceeded
		},
		"the same, and even the names are gone": func(n *fullNode) {
			amnesia(n)
			old(n)
			forget(n.list, uidOf(3), uidOf(7))
			n.names = nil
		},
		"the same, and nothing runs at this moment": func(n *fullNode) {
			amnesia(n)
			old(n)
			forget(n.list, uidOf(3), uidOf(7))
			n.names, n.running = nil, nil
		},
		"the list lacks one": func(n *fullNode) { amnesia(n); old(n); forget(n.list, uidOf(3)) },
		"only the mirror is in the list": func(n *fullNode) {
			amnesia(n)
			old(n)
			maps.DeleteFunc(n.list, func(_ string, pod corev1.Pod) bool {
				return pod.Annotations[mirrorAnnotation] == ""
			})
			n.names = nil
		},
		"only the mirror is in the list, and kubelet is sure": func(n *fullNode) {
			amnesia(n)
			maps.DeleteFunc(n.list, func(_ string, pod corev1.Pod) bool {
				return pod.Annotations[mirrorAnnotation] == ""
			})
			n.names = nil
		},
		"kubelet has eight, the list nine": func(n *fullNode) {
			forget(n.kubelet, uidOf(3), uidOf(7))
			forget(n.list, uidOf(3))
			n.names = nil
		},
		"both lack the same two, which answer to their names": func(n *fullNode) {
			forget(n.kubelet, uidOf(3), uidOf(7))
			forget(n.list, uidOf(3), uidOf(7))
		},
		"both lack the same two, and to get pods is forbidden": func(n *fullNode) {
			forget(n.kubelet, uidOf(3), uidOf(7))
			forget(n.list, uidOf(3), uidOf(7))
			n.nameErr = forbidden
		},
		"both lack the same two, and everything by name is forbidden": func(n *fullNode) {
			forget(n.kubelet, uidOf(3), uidOf(7))
			forget(n.list, uidOf(3), uidOf(7))
			n.nameErr, n.namedErr = forbidden, forbidden
		},
		"both lack the same two, and the list by name hangs": func(n *fullNode) {
			forget(n.kubelet, uidOf(3), uidOf(7))
			forget(n.list, uidOf(3), uidOf(7))
			n.nameErr, n.namedErr = forbidden, context.DeadlineExceeded
		},
		"both lack the same two, and names hang": func(n *fullNode) {
			forget(n.kubelet, uidOf(3), uidOf(7))
			forget(n.list, uidOf(3), uidOf(7))
			n.nameErr = context.DeadlineExceeded
		},
		"both lack the same two, and nobody can be asked by name": func(n *fullNode) {
			forget(n.kubelet, uidOf(3), uidOf(7))
			forget(n.list, uidOf(3), uidOf(7))
			n.host.Cluster.Pod, n.host.Cluster.PodsNamed = nil, nil
		},
		"both lack the same two, whose names nobody tells": func(n *fullNode) {
			n.delete(uidOf(3), uidOf(7))
			n.sandboxes[uidOf(3)].Metadata.Name, n.sandboxes[uidOf(7)].Metadata.Namespace = "", ""
		},
		"both lack the same two, which crash and start no more": func(n *fullNode) {
			forget(n.kubelet, uidOf(3), uidOf(7))
			forget(n.list, uidOf(3), uidOf(7))
			n.pass()
			n.running[uidOf(3)], n.running[uidOf(7)] = false, false
		},
	}
	for name, bend := range tests {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarts %v", name, restarts), func(t *testing.T) {
				n := newFullNode(t)
				n.allLive(n.pass())
				kubelet, list, names := maps.Clone(n.kubelet), maps.Clone(n.list), maps.Clone(n.names)
				bend(n)
				n.restarts = restarts
				n.during(90*time.Minute, n.noLeftover)
				n.kubelet, n.list, n.names, n.nameErr, n.namedErr = kubelet, list, names, nil, nil
				n.during(15*time.Minute, n.allLive)
				if len(n.history) != 0 {
					t.Errorf("remembered: %v", n.history)
				}
			})
		}
	}
}

// What the apiserver has by name lives, whatever its list says, and such a list proves nothing of others.
func TestNamedPodIsLive(t *testing.T) {
	n := newFullNode(t)
	forget(n.kubelet, uidOf(3))
	forget(n.list, uidOf(3))
	n.delete(uidOf(7))
	n.running[uidOf(7)] = false
	n.during(time.Hour, func(report Report) {
		if verdict, why := n.verdict(report, uidOf(3)); verdict != Live ||
			!strings.Contains(why, "returns pod default/web-3 by name") {
			t.Errorf("%s: %s", verdict, why)
		}
		if verdict, why := n.verdict(report, uidOf(7)); verdict != Unknown ||
			!strings.Contains(why, "gate list-is-ours is closed: the list lacks pods") {
			t.Errorf("%s: %s", verdict, why)
		}
	})
	if most := 7; len(n.asked) > most {
		t.Errorf("asked by name %d times in an hour", len(n.asked))
	}
}

// A pod that runs and is gone: the proof takes longer, and then it is one.
func TestRunningLeftover(t *testing.T) {
	replaced := func(n *fullNode, uid, name string) {
		n.add(uidOf(20), name)
		delete(n.sandboxes, uidOf(20))
	}
	tests := map[string]struct {
		bend func(n *fullNode)
		why  string
		want []string // asked by name
	}{
		"no pod of that name": {func(*fullNode) {}, "the apiserver has no pod default/web-3",
			[]string{"web-3", "web-3"}},
		"another pod of that name": {func(n *fullNode) { replaced(n, uidOf(20), "web-3") },
			"pod default/web-3 is another one now: its UID is " + uidOf(20), []string{"web-3", "web-3"}},
		"forbidden, and the list is empty": {func(n *fullNode) { n.nameErr = forbidden },
			"the apiserver lists no pod default/web-3 on this node", []string{"web-3", "list web-3", "web-3",
				"list web-3"}},
		"forbidden, and the list has another pod": {func(n *fullNode) {
			n.nameErr = forbidden
			replaced(n, uidOf(20), "web-3")
		},
			"pod default/web-3 is another one now", []string{"web-3", "list web-3", "web-3", "list web-3"}},
	}
	for name, test := range tests {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarts %v", name, restarts), func(t *testing.T) {
				n := newFullNode(t)
				n.delete(uidOf(3))
				test.bend(n)
				n.restarts = restarts
				first := n.now.SinceBoot
				for {
					report := n.pass()
					verdict, why := n.verdict(report, uidOf(3))
					if verdict == Leftover {
						if !strings.Contains(why, test.why) {
							t.Errorf("%s: %s", verdict, why)
						}
						break
					}
					if verdict != Candidate || !strings.Contains(why,
						"it is running, so the apiserver must deny it twice, at least 10m0s apart") {
						t.Fatalf("after %s: %s: %s", n.now.SinceBoot-first, verdict, why)
					}
					n.after(time.Minute)
				}
				if took := n.now.SinceBoot - first; took != 10*time.Minute {
					t.Errorf("after %s", took)
				}
				if got := strings.Join(n.asked, " "); got != strings.Join(test.want, " ") {
					t.Errorf("asked for %s", got)
				}
				for _, o := range n.pass().Objects {
					if o.Running != (o.Pod.UID == uidOf(3)) {
						t.Errorf("pod %s runs: %v", o.Pod.Name, o.Running)
					}
				}
			})
		}
	}
}

// Of several pods that run and are gone there is never more than one in a report, and each has its turn.
func TestOneRunningLeftoverAtATime(t *testing.T) {
	n := newFullNode(t)
	dead := []string{uidOf(2), uidOf(5)}
	n.delete(dead...)
	n.after(time.Minute)
	n.delete(uidOf(8))
	dead = append(dead, uidOf(8))
	var released []string
	n.during(2*time.Hour, func(report Report) {
		found := map[string]bool{}
		for _, o := range report.Objects {
			if o.Verdict == Leftover {
				found[o.Pod.UID] = true
			}
		}
		if len(found) > 1 {
			t.Fatalf("leftovers: %v", found)
		}
		for uid := range found {
			for _, later := range dead {
				if verdict, why := n.verdict(report, later); later != uid && n.sandboxes[later] != nil &&
					len(released) == 0 &&
					verdict != Candidate {
					t.Errorf("%s: %s", verdict, why)
				}
			}
			released = append(released, uid)
			dead = slices.DeleteFunc(dead, func(d string) bool { return d == uid })
			delete(n.sandboxes, uid)
		}
	})
	if len(released) != 3 || released[2] != uidOf(8) {
		t.Errorf("released: %v", released)
	}
}

// An old memory, written before there was anything about pods that run, is read, and proves nothing of them.
func TestOldHistoryIsReadable(t *testing.T) {
	n := newFullNode(t)
	n.delete(uidOf(3))
	data := fmt.Sprintf(
		`{"sandbox/%[1]s":{"identity":{"id":"%[1]s","created":"0"},"first":%[2]s,"last":%[2]s,"passes":9,"denials":[%[2]s]}}`,
		n.sandboxes[uidOf(3)].Id, `{"wall":"2026-03-01T10:00:00Z","boot":"`+hosttest.BootID+`","up":3600000000000}`)
	if err := json.Unmarshal([]byte(data), &n.history); err != nil {
		t.Fatal(err)
	}
	if verdict, why := n.verdict(n.pass(), uidOf(3)); verdict != Candidate || !strings.Contains(why, "10m0s apart") {
		t.Errorf("%s: %s", verdict, why)
	}
}

// While a witness cannot be believed nothing ripens: when kubelet is believed again the proof begins anew.
func TestUnbelievedPassesDoNotCount(t *testing.T) {
	n := newFullNode(t)
	n.delete(uidOf(3))
	n.running[uidOf(3)] = false
	known := maps.Clone(n.kubelet)
	maps.DeleteFunc(n.kubelet, func(uid string, _ corev1.Pod) bool { return uid != staticUID })
	n.during(time.Hour, func(report Report) {
		if verdict, why := n.verdict(report, uidOf(3)); verdict != Unknown {
			t.Fatalf("%s: %s", verdict, why)
		}
	})
	n.kubelet = known
	n.during(9*time.Minute, func(report Report) {
		if verdict, why := n.verdict(report, uidOf(3)); verdict != Candidate {
			t.Fatalf("%s: %s", verdict, why)
		}
	})
	n.after(time.Minute)
	if verdict, why := n.verdict(n.pass(), uidOf(3)); verdict != Leftover {
		t.Errorf("%s: %s", verdict, why)
	}
}

// A list says nothing of the kubelet that was started after it, nor while kubelet lacks most of it: it is made anew.
func TestListIsComparedWithThisKubelet(t *testing.T) {
	for name, change := range map[string]func(n *fullNode){
		"started again": func(n *fullNode) {
			start := uint64((n.now.SinceBoot + 30*time.Second).Seconds()) * 100
			n.host.Kubelet.Process = func() (host.Process, error) {
				return host.Process{PID: 901, StartTime: start}, nil
			}
		},
		"its process is not found": func(n *fullNode) {
			n.host.Kubelet.Process = func() (host.Process, error) { return host.Process{}, errors.New("none") }
		},
		"lacks most": func(n *fullNode) {
			for i := range 6 {
				forget(n.kubelet, uidOf(i))
				delete(n.sandboxes, uidOf(i))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			n.delete(uidOf(9))
			n.running[uidOf(9)] = false
			n.pass()
			n.after(time.Minute)
			n.pass() // the second denial
			before := n.lists
			n.after(time.Minute)
			if n.pass(); n.lists != before {
				t.Fatalf("%d lists although nothing is new", n.lists-before)
			}
			change(n)
			n.after(time.Minute)
			if n.pass(); n.lists != before+1 {
				t.Errorf("%d lists", n.lists-before)
			}
		})
	}
}

// A container of which the runtime says that it runs, or not what it does, makes its pod one that runs, whatever its
// sandbox.
func TestWhatRuns(t *testing.T) {
	for state, want := range map[cri.ContainerState]bool{
		cri.ContainerState_CONTAINER_RUNNING: true, cri.ContainerState_CONTAINER_UNKNOWN: true,
		cri.ContainerState_CONTAINER_CREATED: false, cri.ContainerState_CONTAINER_EXITED: false,
	} {
		for _, label := range []string{uidOf(3), ""} {
			n := newFullNode(t)
			s := n.sandboxes[uidOf(3)]
			s.State = cri.PodSandboxState_SANDBOX_NOTREADY
			n.host.Runtime.Containers = func(context.Context) ([]*cri.Container, error) {
				return []*cri.Container{{Id: "c", PodSandboxId: s.Id, State: state,
					Labels: map[string]string{uidLabel: label}}}, nil
			}
			inventory := askRuntime(t.Context(), NewScan(t.Context(), n.host))
			if inventory.Running[uidOf(3)] != want || inventory.Running[""] {
				t.Errorf("%s, label %q: %v", state, label, inventory.Running)
			}
		}
	}
}

// Two names for one UID: none can be asked for.
func TestMisnamedPodIsNotProven(t *testing.T) {
	n := newFullNode(t)
	n.delete(uidOf(3))
	n.sandboxes["second"] = &cri.PodSandbox{
		Id: strings.Repeat("f", 64), Metadata: &cri.PodSandboxMetadata{Uid: uidOf(3), Namespace: "default",
			Name: "nobody"},
	}
	n.during(time.Hour, n.noLeftover)
	if len(n.asked) > 0 {
		t.Errorf("asked for %v", n.asked)
	}
}

// What is missing of a pod that runs, one thing at a time.
func TestRunningPodRules(t *testing.T) {
	answer := func(bend func(*NameAnswer)) NameAnswer {
		a := NameAnswer{At: at(55 * time.Minute), Gone: true, Why: "nobody"}
		bend(&a)
		return a
	}
	for name, test := range map[string]struct {
		denials []time.Duration
		named   NameAnswer
		want    string
	}{
		"proven": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(*NameAnswer) {}),
			""},
		"never denied": {nil, answer(func(*NameAnswer) {}), "must deny it twice"},
		"denied once": {[]time.Duration{40 * time.Minute}, answer(func(*NameAnswer) {}),
			"must deny it twice"},
		"denied twice, too soon": {[]time.Duration{40*time.Minute + 1, 50 * time.Minute}, answer(func(*NameAnswer) {}),
			"must deny it twice"},
		"not asked by name": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, NameAnswer{},
			"was not asked for it by name yet"},
		"asked long ago": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *NameAnswer) {
			a.At = at(50 * time.Minute)
		}), "by name recently"},
		"asked in an old boot": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *NameAnswer) {
			a.At.Boot = "boot-0"
		}), "by name recently"},
		"asked, proved nothing": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *NameAnswer) {
			a.Gone = false
		}), "proved nothing: nobody"},
		"asked in the future": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *NameAnswer) {
			a.At = at(2 * time.Hour)
		}), "by name recently"},
		"asked, and it was alive": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *NameAnswer) {
			a.Gone, a.Alive = false, true
		}), "has its"},
	} {
		t.Run(name, func(t *testing.T) {
			o := object(Cgroup, dead)
			inventory, history := healthy(), seenLong(o)
			inventory.Runtime.Running = map[string]bool{dead: true}
			inventory.Runtime.Pods[dead] = SandboxFact{Pod: Pod{UID: dead, Namespace: "default", Name: "x"},
				State: "READY"}
			s := Sighting{First: at(30 * time.Minute), Last: at(50 * time.Minute), Passes: 5, Named: test.named}
			for _, d := range test.denials {
				s.Denials = append(s.Denials, at(d))
			}
			history[podKey(dead)] = s
			inventory.Cluster.At = at(50 * time.Minute) // the list that was the last denial
			if len(test.denials) < 2 {
				inventory.Cluster.At = at(40 * time.Minute)
			}
			if test.denials == nil {
				inventory.Cluster.At = at(30 * time.Minute)
			}
			history[key(&o)] = Sighting{
				Identity: o.Identity, First: at(30 * time.Minute), Last: at(50 * time.Minute), Passes: 5,
				Denials: []finding.Timestamp{at(31 * time.Minute), at(40 * time.Minute)},
			}
			report, _ := Evaluate([]Object{o}, inventory, history, settings(), hour)
			got := report.Objects[0]
			switch {
			case test.want == "" && got.Verdict != Leftover:
				t.Errorf("%s: %s", got.Verdict, got.Why)
			case test.named.Alive && got.Verdict != Live:
				t.Errorf("%s: %s", got.Verdict, got.Why)
			case test.want != "" && !test.named.Alive &&
				(got.Verdict != Candidate || !strings.Contains(got.Why, test.want)):
				t.Errorf("%s: %s", got.Verdict, got.Why)
			}
			if !got.Running {
				t.Error("is not told to run")
			}
		})
	}
	n := newFullNode(t)
	n.delete(uidOf(3))
	n.nameErr, n.namedErr, n.host.Cluster.PodsNamed = forbidden, forbidden, nil
	inventory := Gather(t.Context(), NewScan(t.Context(), n.host))
	if got := askByName(t.Context(), NewScan(t.Context(), n.host), &inventory, uidOf(3)); got.Gone || got.Alive {
		t.Errorf("forbidden: %+v", got)
	}
}

// Of several that are proven it is the one that was first denied, and of those denied at once the one of the lower UID.
func TestFirstDeniedIsFirst(t *testing.T) {
	denied := func(d time.Duration) *runningPod {
		return &runningPod{Sighting: Sighting{Denials: []finding.Timestamp{at(d)}}}
	}
	for _, order := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c", "a"}} {
		j := evaluation{pods: map[string]*runningPod{"a": denied(2 * time.Minute), "b": denied(time.Minute),
			"c": denied(time.Minute)}}
		var objects []Assessment
		for _, uid := range order {
			objects = append(objects, Assessment{Object: object(Process, uid), Verdict: Leftover, Running: true})
		}
		objects = append(objects, Assessment{Object: object(Process, "d"), Verdict: Leftover})
		j.onlyOneRuns(objects)
		for _, o := range objects {
			if want := map[string]Verdict{"a": Candidate, "b": Leftover, "c": Candidate,
				"d": Leftover}[o.Pod.UID]; o.Verdict != want {
				t.Errorf("%v: %s is %s", order, o.Pod.UID, o.Verdict)
			}
		}
	}
}
