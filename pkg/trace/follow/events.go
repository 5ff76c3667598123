package follow

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

// pulledText is kubelet's: Successfully pulled image "a:1" in 2.5s (4.1s including waiting). Image size: 1234 bytes.
var pulledText = regexp.MustCompile(`in ([0-9.a-zµ]+)(?: \(([0-9.a-zµ]+) including waiting\))?(?:\. Image size: (\d+) bytes)?`)

// Event takes an Event of a pod. Of probes and hooks, it keeps only the fact: a pod's own program writes their texts.
func (f *Follower) Event(e *corev1.Event, listed bool, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive(now)
	m := record.Mark{Source: record.Own, Arrival: now, Late: listed || now.Before(f.late)}
	name := containerOf(e.InvolvedObject.FieldPath)
	uid := string(e.InvolvedObject.UID)
	if _, there := f.pods[uid]; !there && !listed {
		f.early = append(f.early, early{uid: uid, at: m, e: trimmed(e)})
		f.early = f.early[max(0, len(f.early)-maxEarly):]
	}
	for _, a := range f.acts[uid] {
		if listed && e.LastTimestamp.Time.Before(a.Timeline.Begin().Time.Add(-time.Second)) {
			continue
		}
		f.event(&a.Timeline, e, name, m)
		a.changed = true
	}
}

// maxEarly bounds the Events kept for pods not seen yet.
const (
	maxEarly     = 1000
	maxEarlyText = 1024 // bytes
)

// early is an Event that arrived before its pod: they come in different streams.
type early struct {
	uid string
	at  record.Mark
	e   *corev1.Event
}

func trimmed(e *corev1.Event) *corev1.Event {
	return &corev1.Event{Type: e.Type, Reason: strings.Clone(e.Reason), Message: finding.Clip(strings.Clone(e.Message), maxEarlyText),
		InvolvedObject: corev1.ObjectReference{FieldPath: strings.Clone(e.InvolvedObject.FieldPath)}}
}

// recall takes the Events that arrived before their pod.
func (f *Follower) recall(uid string) {
	f.early = slices.DeleteFunc(f.early, func(x early) bool {
		if x.uid != uid {
			return false
		}
		for _, a := range f.acts[uid] {
			f.event(&a.Timeline, x.e, containerOf(x.e.InvolvedObject.FieldPath), x.at)
		}
		return true
	})
}

func (f *Follower) event(t *record.Timeline, e *corev1.Event, name string, m record.Mark) {
	c := t.Container(name)
	switch e.Reason {
	case "Pulling", "Pulled":
		pull(t, e, c, m)
	case "SuccessfulAttachVolume":
		delete(t.Marks, record.Attached) // the last one counts
		t.Set(record.Attached, m)
	case "Started":
		if c != nil && (t.Act == record.Creation || t.Replaces != "") {
			c.Started.Set(m)
		}
	case "Killing":
		if t.Act == record.Deletion {
			t.Set(record.KillNoticed, m)
		}
	case "Unhealthy":
		if c != nil && !strings.HasPrefix(e.Message, "Liveness") {
			c.Unhealthy = true
		}
	case "Failed":
		if strings.HasPrefix(e.Message, "Failed to pull image") {
			t.AddError(record.Error{Mark: m, From: "Failed:pull", Container: name, Text: redact(e.Message)})
		}
	case "BackOff", "FailedSync": // they repeat others
	case "FailedPostStartHook", "FailedPreStopHook":
		t.AddError(record.Error{Mark: m, From: e.Reason, Container: name})
	default:
		if e.Type != corev1.EventTypeWarning && e.Reason != "VolumePermissionChangeInProgress" {
			return
		}
		if _, known := reason.Match(f.chooser.Texts(), e.Reason, e.Message); !known {
			f.counts.UnknownTexts++
		}
		t.AddError(record.Error{Mark: m, From: strings.Clone(e.Reason), Container: name, Text: redact(e.Message)})
	}
}

func pull(t *record.Timeline, e *corev1.Event, c *record.Container, m record.Mark) {
	if c == nil {
		return
	}
	p := t.PullOf(c)
	switch {
	case p == nil:
		return
	case e.Reason == "Pulling":
		p.Began.Set(m)
		return
	}
	p.Ended.Set(m)
	if strings.Contains(e.Message, "already present") {
		p.Cached = true
		return
	}
	if parts := pulledText.FindStringSubmatch(e.Message); parts != nil {
		p.Took, _ = time.ParseDuration(parts[1])
		if whole, err := time.ParseDuration(parts[2]); err == nil {
			p.Waited = max(0, whole-p.Took)
		}
		p.Bytes, _ = strconv.ParseInt(parts[3], 10, 64)
	}
}

// containerOf returns the container of a field path: spec.containers{name}.
func containerOf(path string) string {
	_, rest, found := strings.Cut(path, "{")
	name, closed := strings.CutSuffix(rest, "}")
	if !found || !closed {
		return ""
	}
	return strings.Clone(name)
}

// maxBuilds limits the combinations of software to tell apart: pools, and versions of the parts of record.Build.
const maxBuilds = 1000

// node is the recorded state of a Node.
type node struct {
	ready      time.Time // since when; zero: not ready
	faulty     bool      // it has a taint of a fault, or is cordoned
	cordoned   bool      // its only such taint is that of a person who cordoned it
	cpu, bytes int64     // allocatable
	build      int64     // ID of its software
}

// Node takes a Node.
func (f *Follower) Node(n *corev1.Node, gone bool, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive(now)
	if gone {
		delete(f.nodes, n.Name)
		delete(f.plugins, n.Name)
		delete(f.skews, "node/"+n.Name)
		return
	}
	kept := node{cpu: n.Status.Allocatable.Cpu().MilliValue(), bytes: n.Status.Allocatable.Memory().Value()}
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			kept.ready = c.LastTransitionTime.Time
		}
	}
	isFault := func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, "node.kubernetes.io/") || strings.Contains(t.Key, "nodeagent")
	}
	kept.faulty = slices.ContainsFunc(n.Spec.Taints, isFault)
	kept.cordoned = kept.faulty && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return isFault(t) && t.Key != corev1.TaintNodeUnschedulable
	})
	kept.build = f.built(n)
	f.nodes[f.share(strings.Clone(n.Name))] = kept
}

// built returns the ID of the software of a Node; 0 if there are too many.
func (f *Follower) built(n *corev1.Node) int64 {
	info := &n.Status.NodeInfo
	b := record.Build{Kubelet: info.KubeletVersion, Runtime: info.ContainerRuntimeVersion, System: info.OSImage + ", " + info.KernelVersion}
	if f.config.PoolLabel != "" {
		b.Pool = n.Labels[f.config.PoolLabel]
	}
	if info.KubeletVersion == "" {
		return 0
	}
	return f.buildID(record.Build{Pool: f.share(strings.Clone(b.Pool)), Kubelet: f.share(strings.Clone(b.Kubelet)),
		Runtime: f.share(strings.Clone(b.Runtime)), System: f.share(b.System)})
}

// Builds returns the software of the Nodes that were seen, by ID.
func (f *Follower) Builds() map[int64]record.Build {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.builds)
}

// Lease takes a component's Lease. Leaders renew theirs every 2 s, which proves that the watch is current.
func (f *Follower) Lease(name string, listed bool, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive(now)
	f.leases[strings.Clone(name)] = now
	if (name == "kube-scheduler" || name == "kube-controller-manager") && !listed {
		f.beat = fastBeat
	}
}

// Nodes returns the number of Nodes, and of those not ready or with the taint of a fault.
func (f *Follower) Nodes() (all, faulty int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		if n.ready.IsZero() || n.faulty && !n.cordoned {
			faulty++
		}
	}
	return len(f.nodes), faulty
}

// Renewed reports whether a leader renews its Lease. known is false if the cluster never showed the Lease, or the watch
// is behind.
func (f *Follower) Renewed(lease string, now time.Time) (renewed, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, shown := f.leases[lease]
	seen := f.seen(now)
	return seen.Sub(last) <= leaseStale, shown && f.synced && now.Sub(seen) <= f.beat
}
