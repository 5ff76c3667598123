package release

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostkubelet "github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// world is a private node with real objects, a real inspector, and fake witnesses: kubelet and the apiserver know one
// living pod.
type world struct {
	*mutatetest.Node
	t          testing.TB
	living     string // UID of the pod known to all
	known      map[string]bool
	beside     *mutatetest.Bystanders
	settings   Settings
	inspector  *inspect.Inspector
	kinds      []object.Kind // that a pass lists; nil: all
	history    object.History
	faultPoint func(string) error
	paused     string
	timeouts   struct{ server, socket time.Duration }
	inUse      []corev1.UniqueVolumeName // by the Node's status
	attached   []corev1.AttachedVolume
	csiNode    func() (*storagev1.CSINode, error) // nil: it names no driver
	working    map[string]float64                 // kubelet_working_pods
	confirms   int
	blind      map[string]map[string]bool // UIDs that a witness lacks although they are known: see disagree
	onConfirm  func(n int)
}

func newWorld(t testing.TB, set ...func(*host.Paths)) *world {
	w := &world{Node: mutatetest.New(t, set...), t: t, living: mutatetest.UID(t), history: object.History{},
		working: map[string]float64{`config="desired",lifecycle="sync",static=""`: 1,
			`config="orphan",lifecycle="terminated",static=""`: 0}}
	w.known = map[string]bool{w.living: true}
	w.Host.NodeName = "node"
	w.Host.Paths.StaticPods = w.Mkdir(filepath.Join(w.Dir, "manifests"))
	w.beside = w.Bystanders()
	w.Host.Kubelet = host.Kubelet{
		Pods:   w.pods(w.beside.Kubelet),
		Metric: func(context.Context, string) (map[string]float64, error) { return w.working, nil },
	}
	w.Host.Cluster = host.Cluster{Pods: w.pods(w.beside.Cluster), Node: w.node, CSINode: w.askCSINode}
	w.Host.Plugins = hostkubelet.NewPlugins(w.Host.Paths.KubeletRoot)
	w.disagree()
	w.Host.Runtime = noSandboxes()
	w.settings = Settings{
		StopAfter: 1000,
		Mode:      On, PodsPerHour: 100, KillSwitch: filepath.Join(w.Dir, "stop"), Lock: filepath.Join(w.Dir, "lock"),
		OwnerGrace: 30 * time.Millisecond, ContainerGrace: time.Second, ProcessGrace: 100 * time.Millisecond,
		VerifyWithin: 5 * time.Second, Quarantine: QuarantineSettings{MaxBytes: 1 << 30, Keep: 30 * 24 * time.Hour},
	}
	w.driversGone()
	w.inspector = inspect.New(w.Host, object.Settings{
		Passes: 1, MassOrphaning: 1000, MassPercent: 100, HostNamespaces: true,
	}, slog.New(slog.DiscardHandler))
	w.kinds = withoutOptIn()
	return w
}

// withoutOptIn are the kinds that are released unless configured otherwise.
func withoutOptIn() []object.Kind {
	return slices.DeleteFunc(kinds.Kinds(), func(kind object.Kind) bool {
		return kinds.Of(kind).OptIn || kinds.Of(kind).ReportOnly != ""
	})
}

// pods lists the bystanders and what is known now.
func (w *world) pods(beside []corev1.Pod) func(context.Context) ([]corev1.Pod, error) {
	return func(context.Context) ([]corev1.Pod, error) {
		list := slices.Clone(beside)
		for uid := range w.known {
			list = append(list, corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "default", Name: "living-" + uid[:8]},
				Spec:       corev1.PodSpec{NodeName: "node"},
			})
		}
		return list, nil
	}
}

func (w *world) node(context.Context) (*corev1.Node, error) {
	machine, err := w.Host.Files.Text("/etc/machine-id")
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	boot, err := w.Host.Files.Text("/proc/sys/kernel/random/boot_id")
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{MachineID: machine, BootID: boot}, VolumesInUse: w.inUse,
			VolumesAttached: w.attached,
		},
	}, err
}

func (w *world) askCSINode(context.Context) (*storagev1.CSINode, error) {
	if w.csiNode != nil {
		return w.csiNode()
	}
	return namesDrivers(), nil
}

// namesDrivers makes a CSINode.
func namesDrivers(names ...string) *storagev1.CSINode {
	object := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "csinode"}}
	for _, name := range names {
		object.Spec.Drivers = append(object.Spec.Drivers, storagev1.CSINodeDriver{Name: name, NodeID: "id"})
	}
	return object
}

// driversGone simulates that no driver was seen for a while.
func (w *world) driversGone() {
	w.t.Helper()
	var observations []driverObservation
	for ago := 12 * time.Minute; ago > 0; ago -= 2 * time.Minute {
		at := host.Now()
		at.SinceBoot -= ago
		observations = append(observations, driverObservation{At: at, CSINode: "csinode"})
	}
	data, err := json.Marshal(observations)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Write(w.driverFile(), string(data))
}

// driverObservation is an observation of CSI drivers in the file that agents share, as it is on disk.
type driverObservation struct {
	At      finding.Timestamp `json:"at"`
	CSINode string            `json:"csiNode"`
}

func (w *world) driverFile() string { return filepath.Join(w.Dir, "state", "csi-drivers.json") }

func (w *world) driverObservations() (observations []driverObservation) {
	w.t.Helper()
	data, err := os.ReadFile(w.driverFile())
	if err == nil {
		err = json.Unmarshal(data, &observations)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return observations
}

// volumeNoteOf is kubelet's note beside a volume.
func volumeNoteOf(volume, handle, driver string) string {
	return fmt.Sprintf(
		`{"specVolID":%q,"volumeHandle":%q,"driverName":%q,"nodeName":"node","attachmentID":"csi-0","volumeLifecycleMode":"Persistent"}`,
		volume, handle, driver)
}

// noSandboxes is a working runtime without objects.
func noSandboxes() host.Runtime {
	return host.Runtime{
		Version: func(context.Context) (*cri.VersionResponse, error) {
			return &cri.VersionResponse{RuntimeName: "none"}, nil
		},
		Status: func(context.Context) (*cri.StatusResponse, error) {
			return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
				{Type: cri.RuntimeReady, Status: true}, {Type: cri.NetworkReady, Status: true},
			}}}, nil
		},
		Sandboxes:  func(context.Context) ([]*cri.PodSandbox, error) { return nil, nil },
		Containers: func(context.Context) ([]*cri.Container, error) { return nil, nil },
	}
}

// inspect makes one pass.
func (w *world) inspect() object.Report {
	w.t.Helper()
	report, history := w.inspector.Pass(w.t.Context(), w.history, w.kinds...)
	w.history = history
	for _, failure := range report.Errors {
		if failure.What != "kubelet" { // its process does not exist here
			w.t.Logf("inspection: %s: %s", failure.What, failure.Error)
		}
	}
	return report
}

func (w *world) runner() *Runner {
	w.t.Helper()
	r, err := New(Options{
		Settings: w.settings, Host: w.Host, Mutator: w.Mutator, Log: slog.New(slog.DiscardHandler),
		StateDir: filepath.Join(w.Dir, "state"),
		Confirm: func(context.Context, string) (object.Report, error) {
			w.confirms++
			if w.onConfirm != nil {
				w.onConfirm(w.confirms)
			}
			return w.inspect(), nil
		},
		StillGone:     w.inspector.StillGone,
		Paused:        func(context.Context) (string, error) { return w.paused, nil },
		faultPoint:    w.faultPoint,
		serverTimeout: w.timeouts.server, socketTimeout: w.timeouts.socket,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) release() Outcome {
	w.t.Helper()
	outcome, err := w.runner().Release(w.t.Context(), w.inspect())
	if err != nil {
		w.t.Fatal(err)
	}
	return outcome
}

// left lists the objects of a pod, as kind and ID.
func (w *world) left(uid string) []string {
	w.t.Helper()
	var all []string
	for _, o := range w.inspect().Objects {
		if o.Pod.UID == uid {
			all = append(all, string(o.Kind)+" "+o.ID)
		}
	}
	return all
}

// pod lists the objects of one pod on the node.
type pod struct {
	uid, data, netns string
	attached         mutatetest.Attached
}

// makePod makes every kind of object for a pod: processes that ignore SIGTERM in cgroups of all hierarchies, an
// attachment to a network with a pinned namespace, volumes in memory (stacked ones too), a bind of a directory of the
// same filesystem, and kubelet's own files.
func (w *world) makePod(uid string) pod {
	w.t.Helper()
	p := pod{uid: uid, data: filepath.Join(w.Dir, "data-"+uid)}
	w.Write(filepath.Join(p.data, "sub/canary"), "alive")
	cgroups := w.Cgroups(uid, mutatetest.Hex(w.t, 64))
	w.Shell(uid, cgroups, "trap '' TERM; echo ready; exec sleep 100000")
	w.Write(w.PodDir(uid, "etc-hosts"), "127.0.0.1 localhost\n")
	w.Write(w.PodDir(uid, "containers/app/1a2b3c4d"), "")
	w.Write(w.PodDir(uid, "plugins/kubernetes.io~empty-dir/wrapped_token/ready"), "")
	w.Write(w.PodDir(uid, "volumes/kubernetes.io~csi/gone/vol_data.json"),
		volumeNoteOf("gone", "vol-"+uid, "gone.example.com"))
	w.Mount("tmpfs", w.PodDir(uid, "volumes/kubernetes.io~projected/token"), "tmpfs", 0)
	w.Mount("tmpfs", w.PodDir(uid, "volumes/kubernetes.io~secret/stacked"), "tmpfs", 0)
	w.Mount("tmpfs", w.PodDir(uid, "volumes/kubernetes.io~secret/stacked"), "tmpfs", 0)
	w.Mount(filepath.Join(p.data, "sub"), w.PodDir(uid, "volume-subpaths/data/app/0"), "", unix.MS_BIND)
	p.netns = w.MountNetns(filepath.Join(w.Dir, "netns", "cni-"+mutatetest.UID(w.t))).Path
	p.attached = w.Attach(uid, p.netns)
	return p
}

// census lists everything of a pod that must not change: object identities, data, and its directory with the mounts.
func (w *world) census(p pod) map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for _, o := range w.inspect().Objects {
		if o.Pod.UID != p.uid {
			continue
		}
		text, values := string(o.Verdict), o.Identity.Values()
		for _, key := range []string{"id", "inode", "device", "startTime", "index", "peerIndex", "namespace",
			"created"} {
			text += " " + key + "=" + values[key]
		}
		all[string(o.Kind)+" "+o.ID] = text
	}
	for _, root := range []string{p.data, w.PodDir(p.uid)} {
		for name, content := range mutatetest.Snapshot(w.t, root) {
			all["file "+name] = content
		}
	}
	return all
}

func unchanged(t testing.TB, what string, before, after map[string]string) {
	t.Helper()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("%s changed: %s", what, diff)
	}
}

func describe(outcome Outcome) string {
	var lines []string
	for _, p := range outcome.Pods {
		lines = append(lines, "pod "+p.Group+": "+string(p.Result)+" "+p.Why)
		for _, s := range p.Steps {
			lines = append(lines, "  "+string(s.Result)+" "+string(s.Kind)+" "+s.ID+": "+s.Error+" "+s.Blocked)
		}
	}
	return strings.Join(append(lines, "stopped: "+outcome.Stopped), "\n")
}

func itoa(n int) string { return strconv.Itoa(n) }

// await waits until a process is in a state.
func (w *world) await(pid int, state byte) {
	w.t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		stat, err := w.Host.ProcStat(pid)
		if err != nil {
			w.t.Fatal(err)
		}
		if stat.State == state {
			return
		}
		select {
		case <-deadline:
			w.t.Fatalf("process %d is in state %c", pid, stat.State)
		case <-tick.C:
		}
	}
}
