package witness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Kubelet lets a node's own identity read neither its /pods nor its metrics. Then its podresources socket is asked
// instead, which needs no credentials (see kubelet.PodNames). It is a weaker witness, so the proof needs more:
//
//   - It names pods and has no UIDs. A missing name is a denial; a present name denies a pod only if the apiserver
//     lists another pod of that name, which kubelet is proven to have. A pod without a name is not denied until this is
//     so for every name.
//   - It does not show which force-deleted pods kubelet is still terminating. So a pod with a running container is
//     never a leftover, and an object must be seen for twice the grace period after the last of them ended, or three
//     times if the pod has no name. The apiserver must deny it over a whole grace period, and kubelet must be healthy
//     if its metrics are refused, too.
//   - It does not show the UIDs of static pods: theirs are unknown.
//   - Since 1.34 it lacks ended pods. So that not the apiserver's list alone denies those, the UID must not
//     be in allocatedPods either.
//
// The last list of the apiserver counts for ended pods, so that a node with completed pods costs no list in
// every pass.

// AllocatedPods is kubelet's record of the pods that it has admitted, ended and static ones too, by UID, in kubelet's
// root directory (pkg/kubelet/allocation; in place resizing, on by default since 1.33). It is written when a pod is
// admitted: one that is removed stays in it until then. It is only searched for UIDs, whatever its form:
//
//	{"data":"{\"entries\":{\"UID\":{\"ContainerResources\":{\"NAME\":{}}}}}","checksum":1}
const AllocatedPods = "allocated_pods_state"

// withoutEnded is the first kubelet version whose podresources lack pods that have ended.
var withoutEnded = version.MajorMinor(1, 34)

// namedPods holds the facts about the pods of one name.
type namedPods struct {
	times int      // how often kubelet lists the name
	ready []string // UIDs with a READY sandbox of that name
	has   string   // UID of the pod in the apiserver's list that kubelet is proven to mean, or ""
}

// ByName reports whether kubelet has given names only.
func (k *KubeletInventory) ByName() bool { return k.Names != nil }

// Uncounted reports whether kubelet also refuses to tell which pods it works on.
func (k *KubeletInventory) Uncounted() bool {
	return k.ByName() && errors.Is(k.WorkingErr, fs.ErrPermission)
}

// askNames asks the podresources socket if /pods is refused. If kubelet does not answer in time, it is not asked: it is
// sick.
func (k *KubeletInventory) askNames(ctx context.Context, h *host.Host) {
	if !errors.Is(k.Err, fs.ErrPermission) || h.Kubelet.PodNames == nil {
		return
	}
	names, err := h.Kubelet.PodNames(ctx)
	if err != nil {
		k.Err = fmt.Errorf("%w; nor do its podresources answer: %w", k.Err, err)
		return
	}
	k.Names, k.Refused, k.Err = names, k.Err, nil
	if names == nil {
		k.Names = make(map[string]int)
	}
}

// ResolveNames finds out which UIDs kubelet's names mean, as far as the runtime and the apiserver's list show it.
func (t *Inventory) ResolveNames() {
	k := &t.Kubelet
	if !k.ByName() {
		return
	}
	k.Pods, k.named, k.unproven = make(map[string]PodFact), make(map[string]namedPods), ""
	for name, times := range k.Names {
		k.named[name] = namedPods{times: times}
	}
	for uid, s := range t.Runtime.Pods {
		n, known := k.named[FullName(s.Pod)]
		if !known || s.State != "READY" || t.Runtime.Misnamed[uid] {
			continue
		}
		n.ready = append(n.ready, uid)
		k.named[FullName(s.Pod)] = n
		k.Pods[uid] = PodFact{Pod: s.Pod, Static: isStaticSource(s.Source)}
	}
	if t.Cluster.OK() {
		t.resolveListed()
	}
	for _, name := range slices.Sorted(maps.Keys(k.named)) {
		if k.named[name].has == "" && k.unproven == "" {
			k.unproven = name
		}
	}
}

// resolveListed finds kubelet's pods in the apiserver's list. Kubelet certainly has a listed pod if it has made a
// sandbox for it or set its status; it receives pods in order, so an older pod of that name is gone from kubelet.
func (t *Inventory) resolveListed() {
	k := &t.Kubelet
	for uid, pod := range t.Cluster.Pods {
		n, known := k.named[FullName(pod.Pod)]
		if !known || uid != pod.UID { // a mirror is there by both its UIDs
			continue
		}
		if n.times == 1 && (pod.Started || slices.Contains(n.ready, uid)) {
			n.has = uid
			k.named[FullName(pod.Pod)] = n
			for _, old := range n.ready {
				delete(k.Pods, old)
			}
		}
		pod.Static = pod.Mirror
		k.Pods[uid] = pod
	}
}

func FullName(p object.Pod) string { return p.Namespace + "/" + p.Name }

func isStaticSource(source string) bool { return source != "" && source != "api" }

// answerByName is kubelet's answer if only names are known. A list of the apiserver older than first, when o was first
// seen, shows no facts about o.
func (t *Inventory) answerByName(o *object.Object, first finding.Timestamp) object.Answer {
	k, pod := &t.Kubelet, o.Pod
	listed, isListed := t.Cluster.Pods[pod.UID]
	if isListed && t.Cluster.OK() {
		pod = listed.Pod
	}
	n := k.named[FullName(pod)]
	switch {
	case t.Runtime.Misnamed[pod.UID]:
		return object.Unsure + ": its sandboxes have different pod names"
	case pod.Name == "" || pod.Namespace == "":
		return t.answerNameless(first)
	case n.times == 0:
		return object.Denies
	case isListed || len(n.ready) == 1 && n.ready[0] == pod.UID && (n.has == "" || t.Cluster.older(first)):
		return object.Known("%s, by name", FullName(pod))
	case n.has != "" && n.has != pod.UID && !t.Cluster.older(first):
		return object.Denies
	}
	return object.Unsure + object.Answer(": it has a pod "+FullName(pod)+", and nothing shows that it is another one")
}

// answerNameless is kubelet's answer about a pod without a known name.
func (t *Inventory) answerNameless(first finding.Timestamp) object.Answer {
	switch {
	case !t.Cluster.OK() || t.Cluster.older(first):
		return object.Unsure + ": the name of its pod is not known, and the apiserver has not been asked since it was first seen"
	case t.Kubelet.unproven != "":
		return object.Unsure + object.Answer(": the name of its pod is not known, and nothing shows which pod "+t.Kubelet.unproven+
			" of kubelet's is")
	}
	return object.Denies
}

// older reports whether the list was requested before first, or not in the same boot.
func (c *ClusterInventory) older(first finding.Timestamp) bool {
	return first.Boot != c.At.Boot || c.At.SinceBoot < first.SinceBoot
}

// Comparison compares the apiserver's list with kubelet's answer.
func (t *Inventory) Comparison(list map[string]PodFact) Comparison {
	if t.Kubelet.ByName() {
		return t.CompareNames(list)
	}
	return Compare(list, t.Kubelet.Pods, t.Runtime.Running)
}

// CompareNames compares like compare. Only the UID of a sandbox that kubelet had made for one of its pods shows that
// the list is this node's: a name alone may be another node's, too.
func (t *Inventory) CompareNames(list map[string]PodFact) Comparison {
	var c Comparison
	listed := make(map[string]bool)
	sandboxes, static := make(map[string]bool), make(map[string]bool)
	for uid, s := range t.Runtime.Pods {
		sandboxes[FullName(s.Pod)+"/"+uid] = !t.Runtime.Misnamed[uid]
		static[FullName(s.Pod)] = static[FullName(s.Pod)] || isStaticSource(s.Source)
	}
	shared := make(map[string]bool)
	for uid, pod := range list {
		name := FullName(pod.Pod)
		static[name] = static[name] || pod.Mirror
		listed[name] = true
		shared[name] = shared[name] || !pod.Mirror && sandboxes[name+"/"+uid]
		ended := pod.Phase == string(corev1.PodSucceeded) || pod.Phase == string(corev1.PodFailed)
		if pod.Mirror || ended && !t.Runtime.Running[uid] {
			continue
		}
		c.Listed++
		if t.Kubelet.Names[name] > 0 {
			continue
		}
		c.Lacked++
		if t.Runtime.Running[uid] || pod.Started {
			c.Proven = append(c.Proven, name)
		}
	}
	for name := range t.Kubelet.Names {
		switch {
		case static[name]:
			continue
		case shared[name]:
			c.Shared++
		case !listed[name]:
			c.Missing++
		}
		c.Wanted++
	}
	slices.Sort(c.Proven)
	return c
}

// MayHaveEnded returns why kubelet may have a pod that its podresources lack because it has ended.
func (t *Inventory) MayHaveEnded(uid string) string {
	if v, err := version.ParseGeneric(t.Cluster.Version); err == nil && v.LessThan(withoutEnded) {
		return ""
	}
	record := t.Kubelet.Record
	switch {
	case t.Kubelet.RecordErr != nil:
		return fmt.Sprintf("kubelet's record of its pods: %v", t.Kubelet.RecordErr)
	case strings.Contains(record, uid):
		return "kubelet's " + AllocatedPods + " still names it; that is written when the next pod is admitted"
	}
	for _, name := range slices.Sorted(maps.Keys(t.Kubelet.named)) {
		if has := t.Kubelet.named[name].has; has != "" && len(has) != 32 && !strings.Contains(record, has) {
			return "kubelet's " + AllocatedPods + " is not current: it lacks the pod " + name
		}
	}
	return ""
}

func readAllocated(h *host.Host) (string, error) {
	data, err := h.Files.Read(path.Join(h.Paths.KubeletRoot, AllocatedPods))
	return string(data), err
}

// StillGoneByName is StillGone if kubelet gives names only. If the name alone is no denial, the apiserver's list is
// read again.
func StillGoneByName(ctx context.Context, scan *hostscan.Scan, t Inventory, pod object.Pod) error {
	o, first := &object.Object{Pod: pod}, scan.Host.Clock()
	if t.Runtime = askRuntime(ctx, scan); t.Runtime.Err != nil {
		return fmt.Errorf("ask the runtime for pod %s again: %w", pod.UID, t.Runtime.Err)
	}
	if t.Runtime.Running[pod.UID] {
		return fmt.Errorf("pod %s runs again", pod.UID)
	}
	t.ResolveNames()
	answer := t.KubeletAnswer(o, first)
	if answer != object.Denies {
		t.Cluster = askCluster(ctx, scan, &t, object.Settings{})
		t.ResolveNames()
		if listed := t.ApiserverAnswer(o, first); listed != object.Denies {
			return fmt.Errorf("ask the apiserver for pod %s again: %s", pod.UID, listed)
		}
		answer = t.KubeletAnswer(o, first)
	}
	if answer != object.Denies {
		return fmt.Errorf("ask kubelet for pod %s again: %s", pod.UID, answer)
	}
	if record, err := readAllocated(scan.Host); err == nil && strings.Contains(record, pod.UID) {
		return fmt.Errorf("kubelet's %s names pod %s again", AllocatedPods, pod.UID)
	}
	return nil
}
