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
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// fullNode is a node on which each witness has its own data, so that they can disagree: kubelet's pods, the apiserver's
// list, its pods by name, and the runtime's running pods.
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
	nameErr   error  // of GET of one pod
	namedErr  error  // of listing one pod
	asked     []string
	lists     int
	inspector *Inspector
	history   object.History
	restarts  bool // the agent restarts before each pass
	settings  object.Settings
}

const staticUID = "00000000000000000000000000000abc"

// newFullNode is a node with ten pods and a static one, all of which run.
func newFullNode(t *testing.T) *fullNode {
	t.Helper()
	n := &fullNode{
		t: t, now: hosttest.Now(), kubelet: map[string]corev1.Pod{}, list: map[string]corev1.Pod{},
		names:     map[string]corev1.Pod{},
		sandboxes: map[string]*cri.PodSandbox{}, running: map[string]bool{}, history: object.History{},
		metric:  map[string]float64{`config="runtime_only",lifecycle="terminating",static="unknown"`: 0},
		version: "v1.36.3",
	}
	n.settings = inspecttest.Settings()
	n.host = hosttest.Host(t, n.clients)
	for name, text := range map[string]string{
		"etc/machine-id": hosttest.MachineID, "proc/sys/kernel/random/boot_id": hosttest.BootID,
		n.host.Paths.StaticPods + "/etcd.yaml": "{metadata: {name: etcd, namespace: kube-system}}",
	} {
		n.write(name, text)
	}
	for i := range 10 {
		n.add(inspecttest.UIDOf(i), fmt.Sprintf("web-%d", i))
	}
	mirror := n.pod("99999999-0000-4000-8000-000000000000", "kube-system", "etcd-"+hosttest.NodeName)
	mirror.Annotations = map[string]string{witness.MirrorAnnotation: staticUID, witness.SourceAnnotation: "file"}
	n.list[string(mirror.UID)] = mirror
	static := n.pod(staticUID, "kube-system", "etcd-"+hosttest.NodeName)
	static.Annotations = map[string]string{witness.SourceAnnotation: "file"}
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

// add starts a pod that all witnesses know.
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

// forget removes pods from the list of a witness.
func forget(book map[string]corev1.Pod, uids ...string) {
	maps.DeleteFunc(book, func(_ string, pod corev1.Pod) bool { return slices.Contains(uids, string(pod.UID)) })
}

// delete removes pods from all witnesses except the runtime.
func (n *fullNode) delete(uids ...string) {
	for _, book := range []map[string]corev1.Pod{n.kubelet, n.list, n.names} {
		forget(book, uids...)
	}
}

func (n *fullNode) clients(h *host.Host) {
	h.Clock = func() finding.Timestamp { return n.now }
	h.Paths.StaticPods = "/etc/kubernetes/manifests"
	h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return slices.Collect(maps.Values(n.kubelet)), nil }
	h.Kubelet.Metric = func(_ context.Context, family string) (map[string]float64, error) {
		if family == witness.WorkingFamily || n.version == "" {
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
				Labels: map[string]string{witness.UIDLabel: uid},
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
func (n *fullNode) pass() object.Report {
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
	report, history := n.inspector.Pass(n.t.Context(), n.history, object.Sandbox, object.Container)
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

// verdict returns the single verdict on all objects of a pod, and why.
func (n *fullNode) verdict(report object.Report, uid string) (object.Verdict, string) {
	n.t.Helper()
	found := ofPod(report, uid)
	if len(found) != 1 {
		n.t.Fatalf("pod %s: verdicts %v\n%s", uid, found, inspecttest.Whys(report, uid))
	}
	for _, o := range report.Objects {
		if o.Pod.UID == uid {
			return o.Verdict, o.Why
		}
	}
	return "", ""
}

// during makes a pass a minute and calls each with its report.
func (n *fullNode) during(d time.Duration, each func(object.Report)) {
	n.t.Helper()
	for end := n.now.SinceBoot + d; n.now.SinceBoot <= end; n.after(time.Minute) {
		each(n.pass())
	}
}

func (n *fullNode) after(d time.Duration) {
	n.now.SinceBoot, n.now.Wall = n.now.SinceBoot+d, n.now.Wall.Add(d)
}

func (n *fullNode) noLeftover(report object.Report) {
	n.t.Helper()
	for _, o := range report.Objects {
		if o.Verdict == object.Leftover {
			n.t.Fatalf("at %s pod %s: %s %s is a leftover: %s", n.now.SinceBoot, o.Pod.Name, o.Kind, o.ID, o.Why)
		}
	}
}

func (n *fullNode) allLive(report object.Report) {
	n.t.Helper()
	for _, o := range report.Objects {
		if o.Verdict != object.Live {
			n.t.Errorf("pod %s: %s %s is %s: %s", o.Pod.Name, o.Kind, o.ID, o.Verdict, o.Why)
		}
	}
}

var forbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x",
	errors.New("no relationship found"))
