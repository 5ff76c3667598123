package release

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// simulatedKinds are the kinds that a simulated node has: those for which a tree of files can stand in for the kernel.
// Links and network namespaces need the kernel itself.
var simulatedKinds = []object.Kind{
	object.Sandbox, object.Container, object.Process, object.Mount, object.Cgroup, object.PodDirectory,
}

// life is the real state of a pod, which witnesses may not report.
type life string

const (
	running   life = "running"   // with a container that runs
	between   life = "between"   // alive, its container is waiting for a restart
	succeeded life = "succeeded" // ended, still in the apiserver
	starting  life = "starting"  // known to the apiserver and kubelet, partly created
	static    life = "static"    // known to kubelet alone, from its manifest
	deleted   life = "deleted"   // deleted; its leftovers do not run
	haunting  life = "haunting"  // deleted, but its containers still run
)

func (l life) alive() bool { return l != deleted && l != haunting }

// simPod is a pod and its objects on the node.
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

// String names the remaining objects of a pod.
func (p *simPod) String() string {
	return fmt.Sprintf("%s pod %s: sandbox %.6s, container %.6s, runs %t, PIDs %v, %d mounts, %d cgroups, directory %t",
		p.life, p.name, p.sandbox, p.container, p.runs, slices.Collect(maps.Keys(p.pids)), len(p.mounts),
		len(p.cgroups), p.dir)
}

// empty reports whether a pod has no objects left.
func (p *simPod) empty() bool {
	return p.sandbox == "" && p.container == "" && len(p.pids) == 0 && len(p.mounts) == 0 && len(p.cgroups) == 0 &&
		!p.dir
}

// hostile is a node whose kernel is a tree of files and whose witnesses fail, lie and change their minds at any call.
// The inspector and the runner are real; an action's changes are made to the tree.
type hostile struct {
	t    testing.TB
	rng  *rand.Rand
	root string
	host *host.Host
	now  time.Duration
	pods map[string]*simPod
	next int // numbers for PIDs, mounts, start times

	faults     faults
	calm       bool // no more faults
	stopped    bool // the kill switch exists
	intent     string
	released   map[string]bool // pods that ran when touched, in this release
	acts       int
	violations []string
}

// faults define how the witnesses of one node are wrong.
type faults struct {
	errors     float64 // of all calls
	halfBlind  bool    // kubelet has static pods only, and the apiserver's list lacks some running pods
	kubelet    bool    // kubelet's list lacks any pods
	apiserver  bool    // the apiserver's list lacks any pods
	empty      bool    // the apiserver's list is empty
	node       bool    // the identity is a node's: a pod that does not exist is forbidden
	refused    bool    // kubelet gives the agent only the names of its pods
	mischief   float64 // of all calls: the node changes
	dishonest  float64 // of all acts: no effect, and no error either
	unreliable float64 // of all acts: an error, whatever the effect
}

// refusedSeeds is the first seed of nodes whose kubelet refuses its /pods.
const refusedSeeds = 1 << 32

func newHostile(t testing.TB, seed uint64) *hostile {
	memory := "/dev/shm" // if missing, the disk
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
		unreliable: pick(n.rng, 0, 0, 0.2), node: n.rng.IntN(2) == 0, refused: seed >= refusedSeeds,
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

// violate records a broken rule.
func (n *hostile) violate(format string, args ...any) {
	n.violations = append(n.violations, fmt.Sprintf(format, args...))
}

// called is the entry to every witness: time passes, the node may change, and the call may fail.
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

// change makes an unexpected change on the node.
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
	case 3: // a process ends, and its PID is reused
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
