package remediate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// simulatedKinds are the kinds that a simulated node has: those of which a tree of files can be the kernel. Links and
// network namespaces are asked of the kernel itself.
var simulatedKinds = []inspect.Kind{
	inspect.Sandbox, inspect.Container, inspect.Process, inspect.Mount, inspect.Cgroup, inspect.PodDirectory,
}

// life is the truth about a pod, which no witness need tell.
type life string

const (
	running   life = "running"   // with a container that runs
	between   life = "between"   // alive, its container waits to be started again
	succeeded life = "succeeded" // ended, still in the apiserver
	starting  life = "starting"  // known to the apiserver and kubelet, and half made
	static    life = "static"    // known to kubelet alone, by its manifest
	deleted   life = "deleted"   // deleted; what it left behind does not run
	haunting  life = "haunting"  // deleted, and its containers still run
)

func (l life) alive() bool { return l != deleted && l != haunting }

// simPod is a pod and what it has on the node.
type simPod struct {
	uid, name string
	life      life
	sandbox   string         // ID; empty: none
	container string         // ID; empty: none
	runs      bool           // the container
	pids      map[int]uint64 // start times by PID
	mounts    map[int]string // points by mount ID
	cgroups   []string       // below the hierarchy
	dir       bool
}

// String names what is left of a pod.
func (p *simPod) String() string {
	return fmt.Sprintf("%s pod %s: sandbox %.6s, container %.6s, runs %t, PIDs %v, %d mounts, %d cgroups, directory %t",
		p.life, p.name, p.sandbox, p.container, p.runs, slices.Collect(maps.Keys(p.pids)), len(p.mounts),
		len(p.cgroups), p.dir)
}

// empty reports whether nothing is left of a pod.
func (p *simPod) empty() bool {
	return p.sandbox == "" && p.container == "" && len(p.pids) == 0 && len(p.mounts) == 0 && len(p.cgroups) == 0 &&
		!p.dir
}

// hostile is a node whose kernel is a tree of files and whose witnesses fail, lie and change their minds at any call.
// The inspector and the runner are the real ones; what an action does to the node is done to the tree.
type hostile struct {
	t    testing.TB
	rng  *rand.Rand
	root string
	host *host.Host
	now  time.Duration
	pods map[string]*simPod
	next int // numbers for PIDs, mounts, start times

	faults     faults
	calm       bool // no faults any more
	stopped    bool // the kill switch is there
	intent     string
	released   map[string]bool // pods that ran when they were touched, in this release
	acts       int
	violations []string
}

// faults are how the witnesses of one node are wrong.
type faults struct {
	errors     float64 // of all calls
	halfBlind  bool    // kubelet has static pods only, and the apiserver's list lacks some pods that run
	kubelet    bool    // kubelet's list lacks any pods
	apiserver  bool    // the apiserver's list lacks any pods
	empty      bool    // the apiserver's list is empty
	node       bool    // the identity is a node's: a pod that does not exist is forbidden
	mischief   float64 // of all calls: the node changes
	dishonest  float64 // of all acts: nothing happens, and no error is returned
	unreliable float64 // of all acts: an error, whatever happened
}

func newHostile(t testing.TB, seed uint64) *hostile {
	memory := "/dev/shm" // where there is none, the disk
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	root, err := os.MkdirTemp(memory, "hostile")
	if err != nil {
		t.Fatal(err)
	}
	n := &hostile{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), root: root, now: time.Hour, pods: map[string]*simPod{}, next: 1000,
	}
	n.faults = faults{
		errors: pick(n.rng, 0, 0, 0.02, 0.2), mischief: pick(n.rng, 0, 0.05), dishonest: pick(n.rng, 0, 0, 0.2),
		unreliable: pick(n.rng, 0, 0, 0.2), node: n.rng.IntN(2) == 0,
	}
	switch n.rng.IntN(5) {
	case 0:
		n.faults.halfBlind = true
	case 1:
		n.faults.kubelet = true
	case 2:
		n.faults.apiserver = true
	case 3:
		n.faults.empty = true
	}
	n.host = &host.Host{
		NodeName: "node", Files: host.Files{Root: n.root}, Clock: n.clock,
		Paths: host.Paths{
			InitPID: 1, KubeletRoot: "/var/lib/kubelet", StaticPods: "/manifests", CgroupMount: "/sys/fs/cgroup",
			CgroupRoot:   "/",
			CgroupDriver: "cgroupfs",
		},
	}
	n.witnesses()
	n.write("/etc/machine-id", "machine\n")
	n.write("/proc/sys/kernel/random/boot_id", "boot\n")
	n.write("/proc/self/cgroup", "0::/system.slice/nodeagent.service\n")
	for _, pid := range []string{"self", "1"} {
		n.mkdir("/proc/" + pid + "/ns")
		if err := os.Symlink("mnt:[1]", n.host.Files.Path("/proc/"+pid+"/ns/mnt")); err != nil {
			t.Fatal(err)
		}
	}
	n.mkdir("/manifests")
	n.mkdir("/var/lib/kubelet/pods")
	n.mkdir("/sys/fs/cgroup/kubepods/besteffort")
	lives := []life{running, running, between, succeeded, starting, static, deleted, deleted, haunting}
	for i := range 3 + n.rng.IntN(5) {
		n.add(i, lives[n.rng.IntN(len(lives))])
	}
	n.table()
	return n
}

// close removes the tree.
func (n *hostile) close() {
	if err := os.RemoveAll(n.root); err != nil {
		n.t.Error(err)
	}
}

func pick(rng *rand.Rand, values ...float64) float64 { return values[rng.IntN(len(values))] }

func (n *hostile) clock() finding.Timestamp {
	return finding.Timestamp{Wall: time.Unix(1_700_000_000, 0).Add(n.now).UTC(), Boot: "boot", SinceBoot: n.now}
}

func (n *hostile) hex(digits int) string {
	var s strings.Builder
	for range digits {
		fmt.Fprintf(&s, "%x", n.rng.IntN(16))
	}
	return s.String()
}

func (n *hostile) number() int {
	n.next++
	return n.next
}

// add makes a pod with a random part of everything.
func (n *hostile) add(i int, l life) {
	h := n.hex(32)
	p := &simPod{
		uid:  strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-"),
		name: fmt.Sprintf("pod-%d", i), life: l, pids: map[int]uint64{}, mounts: map[int]string{},
	}
	if l == static {
		p.uid, p.name = h, fmt.Sprintf("static-%d-node", i)
		n.manifest(p)
	}
	n.pods[p.uid] = p
	some := func() bool { return n.rng.IntN(4) > 0 }
	p.runs = l == running || l == static || l == haunting
	if p.runs || some() {
		p.sandbox = n.hex(64)
	}
	if p.runs || p.sandbox != "" && some() {
		p.container = n.hex(64)
	}
	for _, below := range []string{"", "/" + n.hex(64), "/" + n.hex(64) + "/system.slice", "/" + n.hex(64) +
		"/kubepods/podx"} {
		if p.runs || some() {
			p.cgroups = append(p.cgroups, "/kubepods/besteffort/pod"+p.uid+below)
		}
	}
	for _, cgroup := range p.cgroups {
		n.mkdir("/sys/fs/cgroup" + cgroup)
		if p.runs || l != succeeded && n.rng.IntN(3) == 0 {
			n.process(p, cgroup)
		}
	}
	if p.runs || some() {
		p.dir = true
		n.mkdir("/var/lib/kubelet/pods/" + p.uid + "/volumes")
		for range n.rng.IntN(3) {
			id := n.number()
			p.mounts[id] = fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~secret/v%d", p.uid,
				n.rng.IntN(2))
		}
	}
}

func (n *hostile) process(p *simPod, cgroup string) {
	pid, start := n.number(), n.number()
	p.pids[pid] = uint64(start)
	n.write(fmt.Sprintf("/proc/%d/cgroup", pid), "0::"+cgroup+"\n")
	n.write(fmt.Sprintf("/proc/%d/stat", pid),
		fmt.Sprintf("%d (sleep) S 1 %d %d 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0 %s\n",
			pid, pid, pid, start, strings.Repeat("0 ", 28)))
}

func (n *hostile) manifest(p *simPod) {
	n.write("/manifests/"+p.name+".yaml",
		fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: kube-system}\n",
			strings.TrimSuffix(p.name, "-node")))
}

// table writes the mount table.
func (n *hostile) table() {
	var text strings.Builder
	text.WriteString("1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n2 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	for _, p := range n.pods {
		for id, point := range p.mounts {
			fmt.Fprintf(&text, "%d 1 0:%d / %s rw shared:%d - tmpfs tmpfs rw\n", id, id, point, id)
		}
	}
	n.write("/proc/1/mountinfo", text.String())
}

func (n *hostile) write(name, text string) {
	n.mkdir(filepath.Dir(name))
	if err := os.WriteFile(n.host.Files.Path(name), []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *hostile) mkdir(name string) {
	if err := os.MkdirAll(n.host.Files.Path(name), 0o755); err != nil {
		n.t.Fatal(err)
	}
}

func (n *hostile) remove(name string) {
	if err := os.RemoveAll(n.host.Files.Path(name)); err != nil {
		n.t.Fatal(err)
	}
}

// sorted returns the pods in an order that depends on the seed alone.
func (n *hostile) sorted() []*simPod {
	var pods []*simPod
	for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
		pods = append(pods, n.pods[uid])
	}
	return pods
}

// violate notes a broken rule.
func (n *hostile) violate(format string, args ...any) {
	n.violations = append(n.violations, fmt.Sprintf(format, args...))
}

// called is the way into every witness: time goes on, the node may change, and the call may fail.
func (n *hostile) called(ctx context.Context) error {
	n.now += time.Millisecond
	if n.calm {
		return ctx.Err()
	}
	if n.rng.Float64() < n.faults.mischief {
		n.change()
	}
	if n.rng.Float64() < n.faults.errors {
		return errors.New("simulated: no answer")
	}
	return ctx.Err()
}

// change lets something happen on the node that nobody planned.
func (n *hostile) change() {
	pods := n.sorted()
	p := pods[n.rng.IntN(len(pods))]
	switch n.rng.IntN(6) {
	case 0: // a static pod comes back under its UID
		if len(p.uid) == 32 && p.life == deleted {
			p.life = static
			n.manifest(p)
		}
	case 1: // and one goes
		if p.life == static {
			p.life, p.runs = deleted, false
			n.remove("/manifests/" + p.name + ".yaml")
		}
	case 2: // what died leaves something new behind
		if p.life == deleted && len(p.cgroups) > 0 {
			n.process(p, p.cgroups[0])
		}
	case 3: // a process ends, and another one has its number
		for pid := range p.pids {
			n.remove(fmt.Sprintf("/proc/%d", pid))
			delete(p.pids, pid)
			break
		}
	case 4: // an operator stops everything
		if n.rng.IntN(4) == 0 {
			n.stopped = true
			n.write("/stop", "")
		}
	case 5: // a pod is deleted
		if p.life == running {
			p.life = haunting
		}
	}
}

// object is how the API shows a pod.
func (p *simPod) object(mirror bool) corev1.Pod {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(p.uid), Namespace: "default", Name: p.name},
		Spec:       corev1.PodSpec{NodeName: "node"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if p.life == succeeded {
		pod.Status.Phase = corev1.PodSucceeded
	}
	if p.life == static {
		pod.Namespace = "kube-system"
		pod.Annotations = map[string]string{"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": p.uid}
		if mirror {
			pod.UID = types.UID("mirror-" + p.uid)
			pod.Annotations["kubernetes.io/config.mirror"] = p.uid
		}
	}
	return pod
}

// known lists the living pods that a witness tells of.
func (n *hostile) known(mirrors bool, lacks func(p *simPod) bool) []corev1.Pod {
	var pods []corev1.Pod
	for _, p := range n.sorted() {
		if p.life.alive() && (n.calm || !lacks(p)) {
			pods = append(pods, p.object(mirrors))
		}
	}
	return pods
}

// witnesses puts the node's answers behind the host. A list that lacks a pod lacks it for the whole life of the node:
// whoever lies, lies well. Two of them never lack the same pod unless it runs, which the third can tell.
func (n *hostile) witnesses() {
	h := n.host
	victim := func(p *simPod) bool { return p.uid[0]%2 == 0 }
	h.Kubelet.Pods = func(ctx context.Context) ([]corev1.Pod, error) {
		if err := n.called(ctx); err != nil {
			return nil, err
		}
		return n.known(false, func(p *simPod) bool {
			return n.faults.halfBlind && p.life != static || n.faults.kubelet && p.life != static && victim(p)
		}), nil
	}
	h.Kubelet.Metric = func(ctx context.Context, family string) (map[string]float64, error) {
		if family != "kubelet_working_pods" {
			return map[string]float64{`git_version="v1.36.3"`: 1}, n.called(ctx)
		}
		return map[string]float64{`config="orphan",lifecycle="terminating",static=""`: 0}, n.called(ctx)
	}
	h.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: 1, Comm: "kubelet"}, nil }
	h.Runtime.Process = func(ctx context.Context) (host.Process, error) { return host.Process{PID: 8}, n.called(ctx) }
	h.Runtime.Version = func(ctx context.Context) (*cri.VersionResponse, error) {
		return &cri.VersionResponse{RuntimeName: "simulated"}, n.called(ctx)
	}
	h.Runtime.Status = func(ctx context.Context) (*cri.StatusResponse, error) {
		status, _ := noSandboxes().Status(ctx)
		return status, n.called(ctx)
	}
	h.Runtime.Sandboxes = func(ctx context.Context) ([]*cri.PodSandbox, error) { return n.sandboxes(), n.called(ctx) }
	h.Runtime.Containers = func(ctx context.Context) ([]*cri.Container, error) { return n.containers(), n.called(ctx) }
	h.Cluster.Pods = func(ctx context.Context) ([]corev1.Pod, error) {
		if err := n.called(ctx); err != nil {
			return nil, err
		}
		return n.known(true, func(p *simPod) bool {
			return n.faults.empty || n.faults.halfBlind && p.life == running && victim(p) || n.faults.apiserver &&
				victim(p)
		}), nil
	}
	h.Cluster.Node = func(ctx context.Context) (*corev1.Node, error) {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{
				MachineID: "machine", BootID: "boot", KubeletVersion: "v1.36.3",
			}}}, n.called(ctx)
	}
	h.Cluster.Pod = func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
		if err := n.called(ctx); err != nil {
			return nil, err
		}
		for _, p := range n.sorted() {
			if pod := p.object(true); p.life.alive() && pod.Name == name && pod.Namespace == namespace {
				return &pod, nil
			}
		}
		if resource := (schema.GroupResource{Resource: "pods"}); n.faults.node {
			return nil, apierrors.NewForbidden(resource, name,
				errors.New("no relationship found between node and this object"))
		} else {
			return nil, apierrors.NewNotFound(resource, name)
		}
	}
	h.Cluster.PodsNamed = func(ctx context.Context, namespace, name string) ([]corev1.Pod, error) {
		if err := n.called(ctx); err != nil {
			return nil, err
		}
		return slices.DeleteFunc(n.known(true, func(*simPod) bool { return false }), func(p corev1.Pod) bool {
			return p.Name != name || p.Namespace != namespace
		}), nil
	}
}

func (n *hostile) sandboxes() []*cri.PodSandbox {
	var all []*cri.PodSandbox
	for _, p := range n.sorted() {
		if p.sandbox != "" {
			pod := p.object(false)
			all = append(all, &cri.PodSandbox{
				Id: p.sandbox, CreatedAt: 7, State: cri.PodSandboxState_SANDBOX_READY, Annotations: pod.Annotations,
				Metadata: &cri.PodSandboxMetadata{Uid: p.uid, Namespace: pod.Namespace, Name: p.name},
			})
		}
	}
	return all
}

func (n *hostile) containers() []*cri.Container {
	var all []*cri.Container
	for _, p := range n.sorted() {
		if p.container == "" {
			continue
		}
		pod, state := p.object(false), cri.ContainerState_CONTAINER_EXITED
		if p.runs {
			state = cri.ContainerState_CONTAINER_RUNNING
		}
		all = append(all, &cri.Container{
			Id: p.container, PodSandboxId: p.sandbox, CreatedAt: 8, State: state,
			Metadata: &cri.ContainerMetadata{Name: "app"},
			Labels: map[string]string{
				"io.kubernetes.pod.uid": p.uid, "io.kubernetes.pod.namespace": pod.Namespace,
				"io.kubernetes.pod.name": p.name,
			},
		})
	}
	return all
}

// actions are the real ones with another effect.
func (n *hostile) actions() actions {
	var all actions
	for _, a := range Actions() {
		if !slices.Contains(simulatedKinds, a.Kind) {
			continue
		}
		a.Preview, a.Prepare = nil, nil
		a.Do = n.act
		a.Verify = func(_ context.Context, _ Tools, o inspect.Assessment) (bool, error) {
			if !n.calm && n.rng.Float64() < n.faults.errors {
				return false, errors.New("simulated: nobody can say")
			}
			return !n.has(o), nil
		}
		all = append(all, a)
	}
	return all
}

// act does what is asked to the tree, after it has held the act against the truth.
func (n *hostile) act(_ context.Context, _ Tools, o inspect.Assessment) error {
	p, ok := n.pods[o.Pod.UID]
	if !ok || !n.has(o) {
		return mutate.ErrChanged // the real Mutator compares the identity right before the call
	}
	n.acts++
	switch {
	case p.life.alive():
		n.violate("%s %s of %s pod %s was touched", o.Kind, o.ID, p.life, p.name)
	case n.stopped:
		n.violate("%s %s was touched although the kill switch is there", o.Kind, o.ID)
	case n.intent != string(o.Kind)+" "+o.ID:
		n.violate("%s %s was touched, and the last intent is of %q", o.Kind, o.ID, n.intent)
	}
	if p.runs {
		n.released[p.uid] = true
	}
	if len(n.released) > 1 {
		n.violate("%d pods that ran were touched in one release", len(n.released))
	}
	lies := !n.calm && n.rng.Float64() < n.faults.dishonest
	if !lies {
		n.take(p, o)
	}
	if !n.calm && n.rng.Float64() < n.faults.unreliable {
		return []error{errors.New("simulated: failed"), mutate.ErrBusy, mutate.ErrChanged,
			mutate.Refusal{Why: "simulated"}}[n.rng.IntN(4)]
	}
	return nil
}

// take removes an object from the node.
func (n *hostile) take(p *simPod, o inspect.Assessment) {
	switch o.Kind {
	case inspect.Sandbox:
		p.sandbox, p.container, p.runs = "", "", false
	case inspect.Container:
		p.container, p.runs = "", false
	case inspect.Process:
		pid, _ := strconv.Atoi(o.ID)
		delete(p.pids, pid)
		n.remove("/proc/" + o.ID)
	case inspect.Mount:
		id, _ := strconv.Atoi(o.Identity["id"])
		delete(p.mounts, id)
		n.table()
	case inspect.Cgroup:
		if n.populated(p) {
			return // EBUSY
		}
		p.cgroups = slices.DeleteFunc(p.cgroups, func(c string) bool { return mount.Below("/sys/fs/cgroup"+c, o.ID) })
		n.remove(o.ID)
	case inspect.PodDirectory:
		if len(p.mounts) > 0 {
			n.violate("the directory of pod %s was removed with mounts in it", p.name)
		}
		p.dir = false
		n.remove(o.ID)
	}
}

func (n *hostile) populated(p *simPod) bool { return len(p.pids) > 0 }

// has reports whether a judged object is still there, as the same one.
func (n *hostile) has(o inspect.Assessment) bool {
	p, ok := n.pods[o.Pod.UID]
	if !ok {
		return false
	}
	switch o.Kind {
	case inspect.Sandbox:
		return p.sandbox == o.ID
	case inspect.Container:
		return p.container == o.ID
	case inspect.Process:
		pid, _ := strconv.Atoi(o.ID)
		return p.pids[pid] != 0 && strconv.FormatUint(p.pids[pid], 10) == o.Identity["startTime"]
	case inspect.Mount:
		id, _ := strconv.Atoi(o.Identity["id"])
		return p.mounts[id] != ""
	}
	_, err := n.host.Files.Stat(o.ID)
	return err == nil
}

// runner is the real one, with this node's hands.
func (n *hostile) runner(inspector func() inspect.Report) *Runner {
	n.t.Helper()
	r, err := New(Options{
		Settings: Settings{
			Mode: On, PodsPerHour: 1000, KillSwitch: "/stop", Lock: filepath.Join(n.root, "lock"),
			VerifyWithin: time.Nanosecond,
		},
		Host: n.host, Mutator: &mutate.Mutator{}, Log: slog.New(slog.DiscardHandler),
		StateDir: filepath.Join(n.root, "state"),
		Confirm: func(ctx context.Context, _ string) (inspect.Report, error) {
			if err := n.called(ctx); err != nil {
				return inspect.Report{}, err
			}
			return inspector(), nil
		},
		StillGone: inspect.New(n.host, n.settings(), slog.New(slog.DiscardHandler)).StillGone,
		Paused:    func(ctx context.Context) (string, error) { return "", n.called(ctx) },
		actions:   n.actions(),
		onWrite: func(r Record) error {
			if r.Event == Intent {
				n.intent = string(r.Kind) + " " + r.ID
			}
			return nil
		},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	r.swept.due(n.clock()) // the quarantine is the machine's own
	return r
}

func (n *hostile) settings() inspect.Settings {
	s := inspect.DefaultSettings()
	s.HostNamespaces = true
	return s
}

// run lets the agent live on the node for 40 minutes: a pass and a release every five.
func (n *hostile) run() {
	history := inspect.History{}
	inspector := inspect.New(n.host, n.settings(), slog.New(slog.DiscardHandler))
	for range 8 {
		n.now += 5 * time.Minute
		report, next := inspector.Pass(n.t.Context(), history, simulatedKinds...)
		history = next
		n.released = map[string]bool{}
		outcome, err := n.runner(func() inspect.Report {
			confirming, _ := inspect.New(n.host, n.settings(), slog.New(slog.DiscardHandler)).Pass(n.t.Context(),
				history, simulatedKinds...)
			return confirming
		}).Release(n.t.Context(), report)
		if err != nil {
			n.violate("release: %v", err)
		}
		n.audit(outcome)
	}
}

// audit holds what is said of a release against the truth.
func (n *hostile) audit(outcome Outcome) {
	for _, pod := range outcome.Pods {
		if p := n.pods[pod.Group]; p != nil && pod.Result == Released && !p.empty() {
			n.violate("is said to be released: %s", p)
		}
	}
	records, _, err := ReadJournal(filepath.Join(n.root, "state"))
	if err != nil || len(unfinished(records)) > 0 {
		n.violate("journal: %v, unfinished %+v", err, unfinished(records))
	}
}
